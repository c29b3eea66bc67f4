"""Envpool draws the layouts and missions that minigrid draws: two-sample tests, with their power.

Seeds are fixed, so a test passes always or never. All features of all levels together raise a
false alarm with a probability of at most 1 %, by Bonferroni's correction.
"""

from typing import Any

import pytest

from envs.levels import PAPER_LEVELS
from helpers.layouts import envpool_beginnings, minigrid_beginnings
from helpers.two_samples import detectable, p_value

pytest.importorskip("envpool")

# At most so many features of the eight levels are compared.
N_COMPARED = 8 * 40
SIGNIFICANCE = 0.01 / N_COMPARED
MAZES = ("GoToObjMaze", "GoTo")


def compare(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> dict[str, float]:
    """Return the p-value of every feature."""
    names = ours[0].keys() | theirs[0].keys()
    return {
        name: p_value([one.get(name) for one in ours], [one.get(name) for one in theirs])[0]
        for name in names
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("level", PAPER_LEVELS)
def test_episodes_begin_alike(level: str) -> None:
    n = 4000 if level in MAZES else 8000
    seed = PAPER_LEVELS.index(level) * 1000
    p_values = compare(
        list(minigrid_beginnings(level, n, seed)), list(envpool_beginnings(level, n, seed))
    )
    assert len(p_values) <= N_COMPARED / 8
    assert min(p_values.values()) > SIGNIFICANCE, min(p_values, key=lambda name: p_values[name])


def test_such_samples_show_what_differs_much() -> None:
    """What the tests above would find in nine of ten cases, as Cohen's w.

    Of a feature with two values that are equally likely, w is the difference of their probability:
    4.4 points in single rooms, 6.1 in mazes; with up to 72 values, w is at most 0.074 and 0.104.
    """
    for n, w_two, w_many in ((8000, 0.044, 0.074), (4000, 0.061, 0.104)):
        assert detectable(n, 1, SIGNIFICANCE, 0.9) < w_two
        assert detectable(n, 71, SIGNIFICANCE, 0.9) < w_many


def test_the_test_finds_a_known_difference() -> None:
    """Grey distractors instead of coloured ones; the same layouts under other seeds differ not."""
    grey = list(envpool_beginnings("GoToRedBallGrey", 500, 0))
    coloured = list(envpool_beginnings("GoToRedBall", 500, 0))
    again = list(minigrid_beginnings("GoToRedBall", 500, 1))
    found = {name for name, p in compare(grey, coloured).items() if p < SIGNIFICANCE}
    assert found == {
        *("kind of a thing", "number of colours", "number of kinds"),
        *("number of red things", "number of grey things"),
        *("target 1: how many match", "articles"),
    }
    assert min(compare(again, coloured).values()) > SIGNIFICANCE
