"""Seeds, checks and the choice of a vector environment."""

import pytest

from envs.episodes import episode_seed
from envs.errors import LevelError
from envs.interface import check_levels, slot_seed


def test_seeds_never_change() -> None:
    """Results name them; Python's own hashes differ from process to process."""
    assert slot_seed(1, "GoTo", 5) == 539400966
    assert episode_seed(1, "GoTo", 5) == 1661491735


def test_training_and_evaluation_never_share_a_seed() -> None:
    training = [slot_seed(seed, "GoTo", slot) for seed in range(20) for slot in range(50)]
    evaluation = [episode_seed(seed, "GoTo", n) for seed in range(20) for n in range(50)]
    assert 0 <= min(training) < max(training) < 2**30 <= min(evaluation) < max(evaluation) < 2**31


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ([], "no level given"),
        (["GoTo", "GoToObj", "GoTo"], "level 'GoTo' is listed twice"),
        (["GoToo"], "unknown level 'GoToo'; did you mean 'GoTo'"),
    ],
)
def test_wrong_levels_are_named(levels: list[str], message: str) -> None:
    with pytest.raises(LevelError, match=message):
        check_levels(levels)
