"""Stacking of library members as the skills of an inventory, and subtraction of general members."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from mttl.io.errors import CheckpointError, ConfigError
from mttl.merging.low_rank_factors import LowRank

Named = Mapping[str, Mapping[str, LowRank]]  # changes by member


def stack_members(
    members: Sequence[Mapping[str, LowRank]],
) -> dict[str, tuple[Float[Tensor, "K I r"], Float[Tensor, "K O r"]]]:
    """Return the factors of K members by layer, padded with zeros to the largest rank.

    Layers that a member lacks are zeros, so each skill equals its member exactly.

    Raises:
        CheckpointError: If the features of a layer differ between members.
    """
    rank = max(part.rank for member in members for part in member.values())
    shapes: dict[str, tuple[int, int]] = {}
    for member in members:
        for path, part in member.items():
            if shapes.setdefault(path, part.sizes) != part.sizes:
                raise CheckpointError(
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


def without_general(members: Named, general: Named) -> list[Mapping[str, LowRank]]:
    r"""Return members less the mean of general ones, factor by factor.

    In each layer a member's factors become :math:`A_t - \frac1G \sum_g A_g` and
    :math:`B_t - \frac1G \sum_g B_g`, as in PEFT's Arrow. This assumes corresponding columns in all
    members, as after training from one initialisation. Layers that the general members or the
    member lack do not change. Scales are part of B here; PEFT applies the member's scale after the
    subtraction, which differs if scales do.

    Raises:
        ConfigError: If ranks differ in a layer.

    References:
        Bagherifard, Rajabzadeh et al., *GenKnowSub: Improving Modularity and Reusability of LLMs
        through General Knowledge Subtraction*, ACL 2025.
    """
    less: list[Mapping[str, LowRank]] = []
    for name, member in ((name, dict(changes)) for name, changes in members.items()):
        for path, part in member.items():
            known = {other: one[path] for other, one in general.items() if path in one}
            if any(one.rank != part.rank for one in known.values()):
                ranks = ", ".join(f"'{n}' {one.rank}" for n, one in {name: part, **known}.items())
                raise ConfigError(
                    f"'{path}' needs equal ranks in a member and general ones: {ranks}"
                )
            if known:
                down = torch.stack([one.down for one in known.values()]).mean(0)
                up = torch.stack([one.up for one in known.values()]).mean(0)
                member[path] = LowRank(part.down - down, part.up - up)
        less.append(member)
    return less
