"""Folding of one task's mixture into plain weights, and unpacking of quantised backbones."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from mttl.aggregation.packed_weights import (
    dense_weight,
    is_foreign,
    is_packed,
    is_transposed,
    packed_layers,
)
from mttl.io.errors import CheckpointError, raised_as
from mttl.routing.task.task_router import TaskRouter
from mttl.skills.skilled_layer import SkilledLayer, SkilledLinear, innermost
from mttl.skills.skilled_model import SkilledModel


@dataclass(frozen=True)
class FoldedBackbone:
    """A backbone in which plain layers replace skilled ones."""

    backbone: nn.Module  # of one task, without task ids
    replaced: dict[str, SkilledLayer]  # skilled layers by path, for `unfold`


def task_mixing(router: TaskRouter, task_id: int) -> Float[Tensor, "G H K"]:
    """Return the mixing weights of one task without noise; CheckpointError if the text matters."""
    if router.reads_text:
        raise CheckpointError(
            f"{type(router).__name__} mixes skills by the text, so a task has no fixed weights. "
            "Use the run itself, or merge the average"
        )
    return router.matrix()[:, task_id].detach()


def average_mixing(router: TaskRouter) -> Float[Tensor, "G H K"]:
    """Return uniform mixing weights, which give the average skill (MHR-μ).

    References:
        Caccia et al., arXiv:2211.03831, section 4.
    """
    return torch.full_like(router.matrix()[:, 0].detach(), 1 / router.n_skills)


def skill_mixing(router: TaskRouter, skill: int) -> Float[Tensor, "G H K"]:
    """Return the mixing weights of a single skill; CheckpointError if it does not exist."""
    n_skills = router.n_skills
    if not 0 <= skill < n_skills:
        raise CheckpointError(f"there is no skill {skill}; skills have numbers 0 … {n_skills - 1}")
    mixing = torch.zeros_like(average_mixing(router))
    mixing[..., skill] = 1
    return mixing


@torch.no_grad()
def fold(model: SkilledModel, mixing: Float[Tensor, "G H K"]) -> FoldedBackbone:
    """Replace every skilled layer by a plain one that is equivalent for one mixture, in place.

    Sums are computed in at least single precision and rounded once to the base layer's dtype;
    quantised weights are unpacked (`dequantise` unpacks the other layers). Base weights do not
    change, so `unfold` restores the model exactly. Until then ``model`` uses this mixture for every
    task.

    Raises:
        CheckpointError: If tokens choose experts.
        ValueError: If a kind of skill has no plain weights, or a changed weight is shared with
            another layer; the model does not change.
    """
    require_plain(model)
    if not (skilled := model.skilled_layers()):
        raise ValueError("the skills are already merged; call `unfold` first")
    _check_tied(model.backbone, skilled)
    plain = {layer: _plain(path, layer, mixing[layer.group]) for path, layer in skilled.items()}
    return _replace(model.backbone, plain)


def strip(model: SkilledModel) -> FoldedBackbone:
    """Replace every skilled layer by its base layer, in place."""
    bare = {layer: innermost(layer) for layer in model.skilled_layers().values()}
    return _replace(model.backbone, bare)


def unfold(folded: FoldedBackbone) -> None:
    """Restore the skilled layers that `fold` or `strip` replaced."""
    for path, layer in folded.replaced.items():  # from the outside in; `_replace` is the reverse
        folded.backbone.set_submodule(path, layer)


def require_plain(model: SkilledModel) -> None:
    """Raise CheckpointError if tokens choose experts, which have no plain weights."""
    if layers := model.token_layers():
        raise CheckpointError(
            f"tokens choose the experts of '{next(iter(layers))}', which cannot be merged into "
            "plain weights. Use the run itself (mttl predict, mttl serve)"
        )


def require_weights(path: str, layer: SkilledLayer) -> SkilledLinear:
    """Return a skilled linear layer; ValueError if the skills are no changes of a weight."""
    if not isinstance(layer, SkilledLinear):
        raise ValueError(
            f"the skills of '{path}' cannot be merged: they act on {type(layer.base).__name__}, "
            "and have no equivalent change of a weight. Use the run itself (mttl predict, mttl "
            "serve)"
        )
    return layer


def _replace(backbone: nn.Module, plain: dict[SkilledLayer, nn.Module]) -> FoldedBackbone:
    modules = backbone.named_modules(remove_duplicate=False)  # a layer may have several paths
    replaced = {path: module for path, module in modules if isinstance(module, SkilledLayer)}
    for path, layer in reversed(replaced.items()):
        backbone.set_submodule(path, plain[layer])
    return FoldedBackbone(backbone, replaced)


def _plain(path: str, skilled: SkilledLayer, weights: Float[Tensor, "H K"]) -> nn.Module:
    layer = require_weights(path, skilled)
    base = layer.base
    if is_foreign(base):
        raise ValueError(f"'{path}' is {type(base).__name__}; load the backbone in floating point")
    packed = is_packed(layer.weight)
    kept = dense_weight(base) if packed else layer.weight
    weight, bias = kept, layer.bias
    if not weight.is_floating_point():
        raise ValueError(
            f"the weight of '{path}' is {weight.dtype}; load the backbone in floating point"
        )
    wide = torch.promote_types(weight.dtype, torch.float32)
    weight = weight.to(wide).t() if is_transposed(base) else weight.to(wide)
    with raised_as(ValueError, f"the skills of '{path}' cannot be merged", NotImplementedError):
        wide_bias = None if bias is None else bias.to(wide)
        new_weight, new_bias = layer.inventory.fold(weight, wide_bias, weights.to(weight.device))
    if is_transposed(base):
        new_weight = new_weight.t()
    if packed:
        new_bias = None if new_bias is None else new_bias.to(kept.dtype)
        return dense_layer(base, new_weight.to(kept.dtype), new_bias)
    made = copy.deepcopy(base)
    made.weight = _parameter(new_weight, layer.weight)
    if bias is not None and new_bias is not None:
        made.bias = _parameter(new_bias, bias)
    return made


def _parameter(value: Tensor, like: Tensor) -> nn.Parameter:
    value = value.to(like.dtype).contiguous()
    return nn.Parameter(value, requires_grad=like.requires_grad)


def _check_tied(backbone: nn.Module, skilled: dict[str, SkilledLayer]) -> None:
    """Raise ValueError if a layer without skills shares a weight that would change."""
    owners: dict[Tensor, set[str]] = {}
    for path, module in backbone.named_modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                owners.setdefault(parameter, set()).add(path)
    for path, layer in skilled.items():
        if not isinstance(layer, SkilledLinear):
            continue  # `require_weights` raises an error
        for parameter in layer.base.parameters(recurse=False):
            if others := sorted(owners[parameter] - {f"{path}.base"}):
                raise ValueError(
                    f"the mixture cannot be merged into '{path}', which shares its weight with "
                    f"'{others[0]}', a layer without skills. Train skills of other targets"
                )


@torch.no_grad()
def quantisation_error(backbone: nn.Module, original: nn.Module) -> tuple[float, float, str]:
    """Return the relative error of packed weights, the largest of one layer, and its path."""
    squares: dict[str, tuple[float, float]] = {}
    for path, layer in packed_layers(backbone).items():
        name = path.removesuffix(".base")
        weight = original.get_parameter(f"{name}.weight")
        weight = weight.t() if _was_transposed(layer) else weight
        lost = (dense_weight(layer).float() - weight.float()).square().sum()
        squares[name] = float(lost), float(weight.float().square().sum())
    errors = {name: (lost / max(whole, 1e-30)) ** 0.5 for name, (lost, whole) in squares.items()}
    worst = max(errors, key=errors.__getitem__)
    lost, whole = (sum(column) for column in zip(*squares.values(), strict=True))
    return (lost / whole) ** 0.5, errors[worst], worst


def dequantise(backbone: nn.Module) -> int:
    """Replace packed layers by layers in floating point, in place; return their number."""
    layers = packed_layers(backbone)
    for path, layer in layers.items():
        backbone.set_submodule(path, dense_layer(layer, dense_weight(layer), layer.bias))  # type: ignore[arg-type]
    # Also if folding has replaced all packed layers.
    quantiser: Any = getattr(backbone, "hf_quantizer", None)
    if quantiser is not None:
        quantiser.remove_quantization_config(backbone)
        # Otherwise saving would pack the weights again, with the names of packed parts.
        conversions: Any = getattr(backbone, "_weight_conversions", None) or []
        kept = [one for one in conversions if not _unpacks(one)]
        setattr(backbone, "_weight_conversions", kept)  # noqa: B010
    return len(layers)


def dense_layer(layer: nn.Module, weight: Tensor, bias: Tensor | None) -> nn.Linear | Conv1D:
    """Return a layer of the class that a packed one replaced, with given tensors."""
    if _was_transposed(layer):
        made: nn.Linear | Conv1D = Conv1D(weight.shape[0], weight.shape[1])
        weight = weight.t()
    else:
        made = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    made.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
    if bias is not None:
        made.bias = nn.Parameter(bias, requires_grad=False)
    return made.train(layer.training)


def _unpacks(conversion: Any) -> bool:
    """Return whether a conversion of names builds packed weights."""
    operations = getattr(conversion, "operations", [])
    return any(type(one).__name__.endswith("Deserialize") for one in operations)


def _was_transposed(layer: nn.Module) -> bool:
    """Return whether bitsandbytes replaced a layer with a weight of the shape (I, O)."""
    return getattr(layer, "source_cls", None) is Conv1D
