"""Envpool draws the layouts and missions that minigrid draws: two-sample tests.

Seeds are fixed, so a test passes always or never. All features of all levels together raise a
false alarm with a probability of at most 1 %, by Bonferroni's correction. In nine of ten cases
differences of an effect (Cohen's w) of 0.074 are found in single rooms, of 0.104 in mazes.
"""

import random
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
from scipy import stats

from envs.levels import LEVELS, PAPER_LEVELS
from helpers.minigrid_twin import THING, grid_of, objects_of

pytest.importorskip("envpool")

# At most so many features of the eight levels are compared.
N_COMPARED = 8 * 40
SIGNIFICANCE = 0.01 / N_COMPARED
MAZES = ("GoToObjMaze", "GoTo")
Features = dict[str, Hashable]
# Rooms of the paper's levels, with one of their walls.
ROOM = 7
N_POOL = 100


def minigrid_beginnings(level: str, n: int, seed: int) -> Iterator[Features]:
    """Yield the features of n episodes, one after the other, of minigrid."""
    env = gymnasium.make(LEVELS[level].id, disable_env_checker=True)
    chance = random.Random(seed)
    for episode in range(n):
        env.reset(seed=None if episode else seed)
        inner: Any = env.unwrapped
        place = int(inner.agent_pos[0]), int(inner.agent_pos[1])
        yield _features(inner.grid.encode(), place, inner.agent_dir, inner.mission, chance)


def envpool_beginnings(level: str, n: int, seed: int) -> Iterator[Features]:
    """Yield the features of n episodes of envpool, of 100 environments in turn."""
    import envpool

    env: Any = envpool.make_gymnasium(
        LEVELS[level].id, num_envs=N_POOL, seed=[*range(seed, seed + N_POOL)], num_threads=1
    )
    chance = random.Random(seed)
    for episode in range(n):
        if episode % N_POOL == 0:
            env.reset()
            states = env.debug_states()
        state = states[episode % N_POOL]
        yield _features(grid_of(state), state.agent_pos, state.agent_dir, state.mission, chance)


def _features(
    cells: Any, agent: tuple[int, int], direction: int, mission: str, chance: random.Random
) -> Features:
    objects = objects_of(cells)
    things = [thing for thing in objects if thing[0] != "door"]
    doors = [thing for thing in objects if thing[0] == "door"]
    x, y = agent
    room = x // ROOM, y // ROOM
    features: Features = {
        "direction of the agent": int(direction),
        "room of the agent": room,
        "cell of the agent in its room": (x % ROOM, y % ROOM),
        "free cells around the agent": sum(
            cells[x + i, y + j, 0] == 1 for i, j in ((1, 0), (-1, 0), (0, 1), (0, -1))
        ),
        "verb": mission.split()[0],
        "articles": tuple(word for word in mission.split() if word in ("the", "a")),
        "number of things": len(things),
        "number of kinds": len({thing[:2] for thing in things}),
        "number of colours": len({thing[1] for thing in things}),
        "things in the agent's room": sum(_room(thing) == room for thing in things),
        "number of doors": len(doors),
        "colours of doors": len({door[1] for door in doors}),
        "states of doors": tuple(sorted({int(cells[door[2], door[3], 2]) for door in doors})),
    }
    # One thing of each layout only: the places of two are not independent.
    thing = chance.choice(things)
    features["kind of a thing"] = thing[:2]
    features["room of a thing"] = _room(thing)
    features["cell of a thing in its room"] = (thing[2] % ROOM, thing[3] % ROOM)
    if doors:
        door = chance.choice(doors)
        features["place of a door"], features["colour of a door"] = door[2:], door[1]
    types, colours = Counter(thing[0] for thing in things), Counter(thing[1] for thing in things)
    features |= {f"number of {kind}s": types[kind] for kind in ("ball", "box", "key")}
    features |= {f"number of {colour} things": colours[colour] for colour in ("red", "grey")}
    for number, (colour, kind, *where) in enumerate(THING.findall(mission), 1):
        meant = [
            thing for thing in objects if kind in (thing[0], "object") and colour in (thing[1], "")
        ]
        goal = chance.choice(meant)
        features |= {
            f"target {number}: colour": colour,
            f"target {number}: type": kind,
            f"target {number}: kind": (colour, kind),
            f"target {number}: where": "".join(where),
            f"target {number}: how many match": len(meant),
            f"target {number}: steps to the nearest": min(
                abs(thing[2] - x) + abs(thing[3] - y) for thing in meant
            ),
            f"target {number}: rooms away": (goal[2] // ROOM - room[0], goal[3] // ROOM - room[1]),
        }
    return features


def _room(thing: tuple[str, str, int, int]) -> tuple[int, int]:
    return thing[2] // ROOM, thing[3] // ROOM


def p_value(one: Sequence[Hashable], other: Sequence[Hashable]) -> float:
    """Pearson's chi-squared test of homogeneity.

    Categories expected fewer than five times in either sample are taken together, as usual; with
    a single category left there is nothing to compare, and the value is 1.
    """
    counts = Counter(one), Counter(other)
    table = np.array([[count[key] for key in counts[0] | counts[1]] for count in counts], float)
    expected = table.sum(0) * table.sum(1, keepdims=True).min() / table.sum()
    rare = expected < 5
    table = np.column_stack([table[:, ~rare], table[:, rare].sum(1)])
    table = table[:, table.sum(0) > 0]
    if table.shape[1] < 2:
        return 1.0
    result: Any = stats.chi2_contingency(table, correction=False)
    return float(result.pvalue)


def compare(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> dict[str, float]:
    """Return the p-value of every feature."""
    names = ours[0].keys() | theirs[0].keys()
    return {
        name: p_value([one.get(name) for one in ours], [one.get(name) for one in theirs])
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
