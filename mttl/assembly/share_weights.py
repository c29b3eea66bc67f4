"""Models that were loaded separately share the memory of equal tensors.

Adapted tasks are loaded whole, backbone and skills included, and most of it is the run's.
"""

import torch
from torch import nn

from mttl.aggregation.packed_weights import is_packed, parts


def share_weights(model: nn.Module, known: dict[str, list[torch.Tensor]]) -> int:
    """Let parameters and buffers that are equal to those of an earlier model be these.

    Args:
        model: It is only to be read from now on, wherever its tensors are; those that are shared
            come to the device of the earlier model.
        known: The tensors of earlier models, by name; the model's are added.

    Returns:
        How many bytes are no longer held twice.
    """
    saved = 0
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        mine = known.setdefault(name, [])
        equal = _packed_equal if is_packed(tensor) else _equal
        same = next((other for other in mine if equal(other, tensor)), None)
        if same is None:
            mine.append(tensor)
        elif is_packed(tensor):
            model.get_submodule(name.rpartition(".")[0]).weight = same  # type: ignore[assignment]
            saved += sum(part.nbytes for part in parts(tensor))
        else:
            tensor.data = same.data
            saved += tensor.nbytes
    return saved


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        (one.shape, one.dtype) == (other.shape, other.dtype)
        and one.data_ptr() != other.data_ptr()
        and torch.equal(one, other.to(one.device))
    )


def _packed_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one is other or type(one) is not type(other):
        return False
    pairs = list(zip(parts(one), parts(other), strict=True))
    return all(a.shape == b.shape and torch.equal(a, b.to(a.device)) for a, b in pairs)
