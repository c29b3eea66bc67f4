"""Members of other ranks and layers side by side, and less what general ones have in common."""

import pytest
import torch

from mttl.library.stacking import stack_members, without_general
from mttl.merging.low_rank_factors import LowRank


def member(rank: int, *paths: str, n_in: int = 4) -> dict[str, LowRank]:
    return {path: LowRank(torch.randn(n_in, rank), torch.randn(5, rank)) for path in paths}


def test_each_skill_changes_what_its_member_changes():
    members = [member(1, "a.q"), member(3, "a.q", "a.v"), member(2, "a.v")]
    stacked = stack_members(members)
    assert stacked.keys() == {"a.q", "a.v"}
    for path, (down, up) in stacked.items():
        assert (down.shape, up.shape) == ((3, 4, 3), (3, 5, 3))
        for skill, own in enumerate(members):
            part = own.get(path)
            if part is None:
                assert not down[skill].any()
                assert not up[skill].any()
            else:
                assert torch.equal(down[skill, :, : part.rank], part.down)
                assert torch.equal(up[skill, :, : part.rank], part.up)
                assert not up[skill, :, part.rank :].any()


def test_the_mean_of_general_members_is_subtracted():
    members = [member(2, "a", "b"), member(2, "a")]
    general = [member(2, "a"), member(2, "a", "c")]
    named = [dict(zip("xy", own, strict=True)) for own in (members, general)]
    one, other = without_general(*named)
    for found, own in ((one["a"], members[0]["a"]), (other["a"], members[1]["a"])):
        for name in ("down", "up"):
            mean = sum(getattr(part["a"], name) for part in general) / 2
            torch.testing.assert_close(getattr(found, name), getattr(own, name) - mean)
    assert one["b"] is members[0]["b"]  # general members lack the layer
    assert other.keys() == {"a"}


def test_members_of_other_sizes_are_refused():
    with pytest.raises(ValueError, match=r"'a\.q' has 6 -> 5 features in one adapter and 4 -> 5"):
        stack_members([member(2, "a.q"), member(2, "a.q", n_in=6)])
    with pytest.raises(ValueError, match="ranks in a member and general ones: 'one' 2, 'two' 3"):
        without_general({"one": member(2, "a")}, {"two": member(3, "a")})
