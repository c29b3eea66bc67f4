"""What can be said of the beginning of an episode in single words: features to compare."""

import random
from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Any

import gymnasium

from envs.levels import LEVELS
from helpers.minigrid_twin import THING, grid_of, objects_of

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
