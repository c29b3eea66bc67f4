"""General knowledge is taken from members factor by factor."""

import pytest
import torch

from mttl.library.stacking import without_general
from mttl.merging.low_rank_factors import LowRank


def change(seed: int, rank: int = 2) -> LowRank:
    generator = torch.Generator().manual_seed(seed)
    factors = (torch.randn(size, rank, generator=generator) for size in (4, 3))
    return LowRank(*factors)


def test_the_mean_of_general_members_is_subtracted() -> None:
    members = [{"a": change(0), "b": change(1)}, {"a": change(2)}]
    general = [{"a": change(3)}, {"a": change(4), "c": change(5)}]
    one, other = without_general(members, general)
    for found, own in ((one["a"], members[0]["a"]), (other["a"], members[1]["a"])):
        for name in ("down", "up"):
            mean = sum(getattr(part["a"], name) for part in general) / 2
            torch.testing.assert_close(getattr(found, name), getattr(own, name) - mean)
    assert one["b"] is members[0]["b"]  # general members lack the layer
    assert other.keys() == {"a"}


def test_ranks_must_be_the_same() -> None:
    message = r"'a' has the ranks 2, 3 in a member and in the general ones"
    with pytest.raises(ValueError, match=message):
        without_general([{"a": change(0)}], [{"a": change(1, 3)}])
