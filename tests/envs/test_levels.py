"""The table of levels says what minigrid registers and does; seeds."""

import gymnasium
import minigrid  # noqa: F401  registers the levels
import pytest

from envs.interface import check_levels, slot_seed
from envs.levels import LEVELS, PAPER_LEVELS, LevelError


def test_every_registered_level_is_in_the_table() -> None:
    registered = {name for name in gymnasium.registry if name.startswith("BabyAI-")}
    assert {level.id for level in LEVELS.values()} == registered
    assert len(LEVELS) == 96
    assert all(level.name == name for name, level in LEVELS.items())


def test_the_expert_skills_of_the_paper() -> None:
    """Table 2 of Ponti et al. (2022), whose skills 1 to 8 stand for these competencies."""
    skills = ["ROOM", "DISTR-BOX", "DISTR", "GOTO", "PUT", "PICKUP", "LOC", "MAZE"]
    published = {
        "GoToObj": "1",
        "GoToRedBallGrey": "12",
        "GoToRedBall": "123",
        "GoToLocal": "1234",
        "PutNextLocal": "1235",
        "PickupLoc": "12367",
        "GoToObjMaze": "18",
        "GoTo": "12348",
    }
    assert tuple(published) == PAPER_LEVELS
    for name, numbers in published.items():
        expected = {skills[int(number) - 1] for number in numbers}
        assert set(LEVELS[name].competencies) == expected


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["GoToRedball"], "unknown level 'GoToRedball'; did you mean 'GoToRedBall'"),
        (["BabyAI-GoTo-v2"], "unknown level 'BabyAI-GoTo-v2'; did you mean 'GoTo'"),
        (["?"], r"unknown level '\?'; use a name of envs.levels.LEVELS, an id of gymnasium"),
        ([], "no level given"),
        (["GoTo", "GoToObj", "BabyAI-GoTo-v0"], "level 'GoTo' is listed twice"),
    ],
)
def test_wrong_levels_are_named(names: list[str], message: str) -> None:
    with pytest.raises(LevelError, match=message):
        check_levels(names)


def test_seeds_never_change_and_training_and_evaluation_never_share_one() -> None:
    assert slot_seed(1, "GoTo", 5) == 539400966
    assert slot_seed(1, "GoTo", 5, evaluation=True) == 1661491735
    training, evaluation = (
        [slot_seed(seed, "GoTo", n, evaluation) for seed in range(20) for n in range(50)]
        for evaluation in (False, True)
    )
    assert 0 <= min(training) < max(training) < 2**30 <= min(evaluation) < max(evaluation) < 2**31
