"""Fold the mixture of one task into plain weights, and undo it; unpack quantised backbones."""

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
from mttl.skills.skilled_layer import SkilledLayer, SkilledLinear
from mttl.skills.skilled_model import SkilledModel


@dataclass(frozen=True)
class FoldedBackbone:
    """A backbone in which plain layers stand in the place of skilled ones."""

    backbone: nn.Module  # of one task: it takes no task ids, and saves as what it was
    replaced: dict[str, SkilledLayer]  # the skilled layers that `unfold` puts back, by path


def task_mixing(router: TaskRouter, task_id: int) -> Float[Tensor, "G H K"]:
    """Return the mixing weights of one task, without noise; they may not depend on the prompt."""
    if "prompts" in router.seen:
        raise CheckpointError(
            f"a {type(router).__name__} mixes skills by the prompt of every example: no weights of "
            "a task stand for it. Answer with the run itself, or merge the average"
        )
    if not 0 <= task_id < router.n_tasks:
        raise ValueError(f"task_id ({task_id}) must lie in 0 … {router.n_tasks - 1}")
    return router.matrix()[:, task_id].detach()


def average_mixing(router: TaskRouter) -> Float[Tensor, "G H K"]:
    """Return uniform mixing weights, whatever the router learned: the average skill (MHR-μ).

    References:
        Caccia et al., arXiv:2211.03831, section 4.
    """
    return torch.full_like(router.matrix()[:, 0].detach(), 1 / router.n_skills)


def skill_mixing(router: TaskRouter, skill: int) -> Float[Tensor, "G H K"]:
    """Return the mixing weights that use one skill alone; `CheckpointError` if there is none."""
    n_skills = router.n_skills
    if not 0 <= skill < n_skills:
        raise CheckpointError(f"there is no skill {skill}: they are numbered 0 … {n_skills - 1}")
    mixing = torch.zeros_like(average_mixing(router))
    mixing[..., skill] = 1
    return mixing


@torch.no_grad()
def fold(model: SkilledModel, mixing: Float[Tensor, "G H K"]) -> FoldedBackbone:
    """Replace every skilled layer by a plain one that computes the same for one mixture, in place.

    The sums are made in single precision at least and rounded once to the base layer's dtype;
    weights in few bits are unpacked for them (`dequantise` does so with the other layers). The
    base weights are not touched: the skilled layers are kept aside, and `unfold` restores the
    model bit for bit. Until then ``model`` itself answers every task as this one.

    Raises:
        CheckpointError: If tokens choose experts.
        ValueError: If ``mixing`` does not fit the router, a kind of skill has no plain weights, or
            a weight to be changed is shared with another layer. Nothing is changed then.
    """
    require_plain(model)
    router = model.router
    expected = (router.n_groups, router.n_heads, router.n_skills)
    if mixing.shape != expected:
        raise ValueError(f"mixing has shape {tuple(mixing.shape)}, the router makes it {expected}")
    if not (skilled := model.skilled_layers()):
        raise ValueError("it is folded already; unfold it first")
    _check_tied(model.backbone, skilled)
    plain = {layer: _plain(path, layer, mixing[layer.group]) for path, layer in skilled.items()}
    return _replace(model.backbone, plain)


def strip(model: SkilledModel) -> FoldedBackbone:
    """Take the skills off: put every base layer in the place of its skilled one."""
    bare: dict[SkilledLayer, nn.Module] = {}
    for layer in model.skilled_layers().values():
        base: nn.Module = layer
        while isinstance(base, SkilledLayer):  # a block may stand around attention with skills
            base = base.base
        bare[layer] = base
    return _replace(model.backbone, bare)


def unfold(folded: FoldedBackbone) -> None:
    """Put the skilled layers back; the model is then as it was before `fold`."""
    for path, layer in folded.replaced.items():  # from the outside in, and back above
        _put(folded.backbone, path, layer)


def require_plain(model: SkilledModel) -> None:
    """Refuse a model whose tokens choose experts: plain weights cannot stand for it."""
    if layers := model.token_layers():
        raise CheckpointError(
            f"tokens choose the experts of '{next(iter(layers))}', and no plain weights stand for "
            "them. Answer with the run itself (mttl predict, mttl serve)"
        )


def require_weights(path: str, layer: SkilledLayer) -> SkilledLinear:
    """Return a skilled layer that is a linear one; refuse skills that no change of a weight is."""
    if not isinstance(layer, SkilledLinear):
        raise ValueError(
            f"the skills of '{path}' cannot be folded: they act on a {type(layer.base).__name__}, "
            "and no change of a weight does what they do. Answer with the run itself "
            "(mttl predict, mttl serve)"
        )
    return layer


def _replace(backbone: nn.Module, plain: dict[SkilledLayer, nn.Module]) -> FoldedBackbone:
    # A layer may stand at several paths.
    replaced = {
        path: module
        for path, module in backbone.named_modules(remove_duplicate=False)
        if isinstance(module, SkilledLayer)
    }
    for path, layer in reversed(replaced.items()):
        _put(backbone, path, plain[layer])
    return FoldedBackbone(backbone, replaced)


def _put(backbone: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(backbone.get_submodule(parent), name, module)


def _plain(path: str, skilled: SkilledLayer, weights: Float[Tensor, "H K"]) -> nn.Module:
    layer = require_weights(path, skilled)
    base = layer.base
    if is_foreign(base):
        raise ValueError(
            f"'{path}' is a {type(base).__name__}, whose weight cannot be read; load the backbone "
            "in floating point"
        )
    packed = is_packed(layer.weight)
    kept = dense_weight(base) if packed else layer.weight
    weight, bias = kept, layer.bias
    if not weight.is_floating_point():
        raise ValueError(
            f"'{path}' keeps its weight as {weight.dtype}; load the backbone in floating point"
        )
    wide = torch.promote_types(weight.dtype, torch.float32)
    weight = weight.to(wide).t() if is_transposed(base) else weight.to(wide)
    with raised_as(ValueError, f"the skills of '{path}' cannot be folded", NotImplementedError):
        new_weight, new_bias = layer.inventory.fold(
            weight, None if bias is None else bias.to(wide), weights.to(weight.device)
        )
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
    """Refuse weights that another layer uses too: folding would untie them, or change both."""
    owners: dict[Tensor, set[str]] = {}
    for path, module in backbone.named_modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                owners.setdefault(parameter, set()).add(path)
    for path, layer in skilled.items():
        if not isinstance(layer, SkilledLinear):
            continue  # refused for another reason
        for parameter in layer.base.parameters(recurse=False):
            if others := sorted(owners[parameter] - {f"{path}.base"}):
                raise ValueError(
                    f"'{path}' shares its weight with '{others[0]}', which has no skills: the "
                    "mixture cannot be folded into it. Train skills of other layers (targets)"
                )


@dataclass(frozen=True)
class QuantisationError:
    """How far packed weights are from those they were made of, relative to their norm."""

    overall: float
    worst: str
    largest: float


@torch.no_grad()
def quantisation_error(backbone: nn.Module, original: nn.Module) -> QuantisationError:
    """Compare the packed weights of a backbone with the same model's in floating point."""
    squares: dict[str, tuple[float, float]] = {}
    for path, layer in packed_layers(backbone).items():
        name = path.removesuffix(".base")
        weight = original.get_parameter(f"{name}.weight")
        weight = weight.t() if _was_transposed(layer) else weight
        found = dense_weight(layer)
        lost = (found.float() - weight.float()).square().sum()
        squares[name] = float(lost), float(weight.float().square().sum())
    errors = {name: (lost / max(whole, 1e-30)) ** 0.5 for name, (lost, whole) in squares.items()}
    worst = max(errors, key=errors.__getitem__)
    lost, whole = (sum(column) for column in zip(*squares.values(), strict=True))
    return QuantisationError((lost / whole) ** 0.5, worst, errors[worst])


def dequantise(backbone: nn.Module) -> int:
    """Replace packed layers by layers in floating point, in place; return their number."""
    layers = packed_layers(backbone)
    for path, layer in layers.items():
        backbone.set_submodule(path, dense_layer(layer, dense_weight(layer), layer.bias))  # type: ignore[arg-type]
    # Also where folding has put plain layers in the places of all of them.
    quantiser: Any = getattr(backbone, "hf_quantizer", None)
    if quantiser is not None:
        quantiser.remove_quantization_config(backbone)
        # What was loaded packed would be packed again, with its names for the parts, when saved.
        conversions: Any = getattr(backbone, "_weight_conversions", None) or []
        kept = [one for one in conversions if not _unpacks(one)]
        setattr(backbone, "_weight_conversions", kept)  # noqa: B010
    return len(layers)


def dense_layer(layer: nn.Module, weight: Tensor, bias: Tensor | None) -> nn.Linear | Conv1D:
    """Return a layer of the class that stood in the place of a packed one, with other tensors."""
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
    """Return whether a conversion of names in files builds packed weights."""
    operations = getattr(conversion, "operations", [])
    return any(type(one).__name__.endswith("Deserialize") for one in operations)


def _was_transposed(layer: nn.Module) -> bool:
    """Return whether bitsandbytes took the layer from a class that keeps weights as (I, O)."""
    return getattr(layer, "source_cls", None) is Conv1D
