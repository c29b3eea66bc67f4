"""Members of a library, one beside the other as the K skills of an inventory."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from mttl.library.low_rank_change import LowRank


def stack_members(
    members: Sequence[Mapping[str, LowRank]],
) -> dict[str, tuple[Float[Tensor, "K I r"], Float[Tensor, "K O r"]]]:
    """Return the factors of K members by layer, padded with zeros to the largest rank of all.

    A member that lacks a layer of another's changes nothing there. Zeros add nothing to a product,
    so that each skill changes what its member changes, exactly.

    Raises:
        ValueError: If a layer's features differ between members; it is named.
    """
    rank = max(part.rank for member in members for part in member.values())
    shapes: dict[str, tuple[int, int]] = {}
    for member in members:
        for path, part in member.items():
            if shapes.setdefault(path, part.sizes) != part.sizes:
                raise ValueError(
                    f"'{path}' has {part.sizes[0]} -> {part.sizes[1]} features in one adapter and "
                    f"{shapes[path][0]} -> {shapes[path][1]} in another: their backbones differ"
                )
    stacked = {}
    for path, (n_in, n_out) in shapes.items():
        nothing = LowRank(torch.zeros(n_in, 1), torch.zeros(n_out, 1))
        parts = [member.get(path, nothing).padded(rank) for member in members]
        stacked[path] = (
            torch.stack([part.down for part in parts]),
            torch.stack([part.up for part in parts]),
        )
    return stacked
