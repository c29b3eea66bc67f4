"""What all members have in common, taken from each: general-knowledge subtraction."""

from collections.abc import Mapping, Sequence

import torch

from mttl.library.low_rank_change import LowRank

Changes = Mapping[str, LowRank]


def without_general(members: Sequence[Changes], general: Sequence[Changes]) -> list[Changes]:
    r"""Return members less the mean of general ones, factor by factor.

    In each layer :math:`A_t - \frac1G \sum_g A_g` and :math:`B_t - \frac1G \sum_g B_g` take the
    place of a member's factors, as in PEFT's Arrow, and not :math:`B_t A_t^\top` less the mean
    product. Columns of factors have to mean the same in all members for that, as they roughly do
    after training from one start. A layer that the general members, or the member, lack stays as
    it is. Scales are in B here; PEFT multiplies by the member's own after subtracting, which
    differs where scales do.

    Raises:
        ValueError: If ranks differ in a layer; it is named.

    References:
        Bagherifard, Rajabzadeh et al., *GenKnowSub: Improving Modularity and Reusability of LLMs
        through General Knowledge Subtraction*, ACL 2025.
    """
    return [
        {
            path: _less(path, part, [one[path] for one in general if path in one])
            for path, part in member.items()
        }
        for member in members
    ]


def _less(path: str, part: LowRank, general: Sequence[LowRank]) -> LowRank:
    if not general:
        return part
    ranks = {one.rank for one in (part, *general)}
    if len(ranks) > 1:
        raise ValueError(
            f"'{path}' has the ranks {', '.join(map(str, sorted(ranks)))} in a member and in the "
            "general ones; factors are subtracted from factors of the same rank"
        )
    down = torch.stack([one.down for one in general]).mean(0)
    up = torch.stack([one.up for one in general]).mean(0)
    return LowRank(part.down - down, part.up - up)
