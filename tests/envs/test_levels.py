"""The table of levels says what minigrid registers and does."""

import gymnasium
import minigrid  # noqa: F401  registers the levels
import pytest

from envs.errors import LevelError
from envs.levels import LEVELS, PAPER_LEVELS, find_level


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
    ("name", "message"),
    [
        ("GoToRedball", "unknown level 'GoToRedball'; did you mean 'GoToRedBall'"),
        ("BabyAI-GoTo-v0", "unknown level 'BabyAI-GoTo-v0'; did you mean 'GoTo'"),
        ("?", r"unknown level '\?'; see envs.levels.LEVELS"),
    ],
)
def test_an_unknown_level_names_the_nearest(name: str, message: str) -> None:
    with pytest.raises(LevelError, match=message):
        find_level(name)
