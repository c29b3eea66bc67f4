"""Tensors of a model by part, and a fingerprint of its untrained weights."""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from mttl.aggregation.packed_weights import is_packed, stored
from mttl.checkpoints.whole_tensors import whole
from mttl.moe.layer import MoELayer
from mttl.skills.composed.composed_model import ComposedModel
from mttl.skills.skilled_layer import SkilledLayer, without_layers
from mttl.skills.skilled_model import SkilledModel

Model = SkilledModel | ComposedModel
TOKENS = "tokens."  # prefix of token routers' tensors


def skill_tensors(model: Model) -> dict[str, Tensor]:
    """Return the skills of all layers, named ``<path of the layer>.<parameter>``.

    Tensors shared by layers appear under the first one.
    """
    if isinstance(model, ComposedModel):
        return {name: tensor.detach() for name, tensor in model.inventory.state_dict().items()}
    parts: dict[str, nn.Module] = {
        path: layer.inventory for path, layer in model.skilled_layers().items()
    }
    for path, layer in model.token_layers().items():
        parts[f"{path}.experts"] = layer.experts
        if layer.shared is not None:
            parts[f"{path}.shared"] = layer.shared
    return tensors_of(parts)


def tensors_of(parts: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """Return the tensors of parts by name; those that parts share appear under the first one."""
    tensors: dict[int, tuple[str, Tensor]] = {}
    for path, part in parts.items():
        for name, tensor in part.state_dict(keep_vars=True).items():
            tensors.setdefault(id(tensor), (f"{path}.{name}", tensor))
    return {name: tensor.detach() for name, tensor in tensors.values()}


def head_tensors(model: Model) -> dict[str, Tensor]:
    """Return the tensors of all heads, named ``<task id>.<parameter>``; empty without heads."""
    heads = getattr(model, "heads", None)
    return {} if heads is None else {k: v.detach() for k, v in heads.of_task.state_dict().items()}


def router_tensors(model: Model) -> dict[str, Tensor]:
    """Return parameters and buffers of the task router, and of the token routers by layer."""
    tensors = {name: tensor.detach() for name, tensor in model.router.state_dict().items()}
    if isinstance(model, SkilledModel):
        for path, layer in model.token_layers().items():
            for name, tensor in layer.router.state_dict().items():
                tensors[f"{TOKENS}{path}.{name}"] = tensor.detach()
    return tensors


def own_parameters(model: Model) -> dict[str, Tensor]:
    """Return the parameters other than skills and router, by name."""
    if isinstance(model, ComposedModel):
        # With the balancing biases of experts, which are buffers.
        return {name: value.detach() for name, value in model.base.state_dict().items()}
    return backbone_parameters(model.backbone)


def backbone_parameters(backbone: nn.Module) -> dict[str, Tensor]:
    """Return the backbone's parameters under their original names.

    Tied parameters appear once.
    """
    # Under a layer that replaces a module, everything except that module is new.
    added = [
        f"{path}." if path else ""
        for path, module in backbone.named_modules()
        if isinstance(module, SkilledLayer | MoELayer)
    ]
    return {
        # A packed weight needs its scales, so it is not detached; it is frozen anyway.
        without_layers(name, added): parameter if is_packed(parameter) else parameter.detach()
        for name, parameter in backbone.named_parameters()
        if not any(name.startswith(path) and not name.startswith(f"{path}base.") for path in added)
    }


def fingerprint(
    parameters: Mapping[str, Tensor], *, values: bool, values_of: Mapping[str, Tensor] | None = None
) -> str:
    """Return a hash of names, shapes and sampled values.

    Values are read in bfloat16, so that half precision does not change the hash; for packed weights
    the scales are used. If weights are saved, their values are not hashed. Values may come from
    ``values_of`` instead.
    """
    digest = hashlib.sha256()
    for name in sorted(parameters):
        shape, tensor = stored((values_of or parameters)[name])
        tensor = whole(tensor) if values else tensor
        digest.update(f"{name} {shape}\n".encode())
        if values and tensor.numel():
            step = max(1, tensor.numel() // 256)
            sample = tensor.flatten()[::step].to("cpu", torch.bfloat16).contiguous()
            digest.update(sample.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
