"""One environment: a level of minigrid with faster observations, or another environment as it is.

Layouts, random numbers, effects of actions and success of missions are minigrid's code. Replaced
are the slowest parts: the observation, the check that objects are reachable, and the search for the
mission's objects if none has moved. Equal seeds and actions give the episodes of minigrid.

Other environments need minigrid's observations and actions, and are not changed.
"""

import importlib.util
import pkgutil
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

import gymnasium
import minigrid  # noqa: F401  registers the levels
import numpy as np
from gymnasium.envs.registration import load_env_creator
from jaxtyping import Int32
from minigrid.envs.babyai.core import roomgrid_level
from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel

from envs.interface import N_ACTIONS, VIEW
from envs.levels import LEVELS, Level, LevelError
from envs.observation import EMPTY, all_reachable, observe, pack, pack_grid


class Quiet(RoomGridLevel):
    """A mixin that silences a BabyAI level; it precedes the level among the bases."""

    # Minigrid prints a line for every rejected layout. This is the same code with a silent `print`;
    # redirecting standard output would affect other threads.
    _gen_grid = FunctionType(
        RoomGridLevel._gen_grid.__code__,
        {**vars(roomgrid_level), "print": lambda *_: None},
        closure=RoomGridLevel._gen_grid.__closure__,
    )


class Game(Quiet):
    """A mixin that makes a level of minigrid fast; it precedes the level among the bases."""

    _cells: Int32[np.ndarray, "W H"] | None = None  # packed grid, or None if it must be read again
    _moved = True  # whether an object may have moved since the last search for mission objects

    def reset(self, **options: Any) -> Any:
        """Start an episode, as in gymnasium."""
        self._cells = None
        result = super().reset(**options)
        # Some levels change after the first observation: the agent starts with an object.
        self._cells = None
        return result

    def gen_obs(self) -> dict[str, Any]:
        """Return image, direction and mission.

        An action that changes a cell changes the one in front of the agent.
        """
        x, y = self.agent_pos
        direction = int(self.agent_dir)
        if self._cells is None:
            self._cells, self._moved = pack_grid(self.grid), True
        front_x, front_y = x + (1, 0, -1, 0)[direction], y + (0, 1, 0, -1)[direction]
        front = pack(self.grid.grid[front_y * self.grid.width + front_x])
        if self._cells[front_x, front_y] != front:
            self._cells[front_x, front_y] = front
            self._moved = True
        carried = EMPTY if self.carrying is None else pack(self.carrying)
        image = observe(self._cells, x, y, direction, carried)
        return {"image": image, "direction": self.agent_dir, "mission": self.mission}

    def update_objs_poss(self, instr: Any = None) -> None:
        """Update the positions of the mission's objects if an object has moved."""
        if instr is not None:
            super().update_objs_poss(instr)
        elif self._moved:
            super().update_objs_poss()
            self._moved = False

    def check_objs_reachable(self, raise_exc: bool = True) -> bool:
        """Return whether the agent can reach every object without moving any.

        Raises:
            RejectSampling: If not, and ``raise_exc`` is set.
        """
        x, y = self.agent_pos
        reachable = all_reachable(pack_grid(self.grid), x, y)
        if raise_exc and not reachable:
            raise roomgrid_level.RejectSampling("an object cannot be reached")
        return reachable


@cache
def _game_class(level_class: type[RoomGridLevel]) -> type[Game]:
    return type(level_class.__name__, (Game, level_class), {})


def make_game(level: Level, **options: Any) -> Any:
    """Return the environment of a level: a `Game` for BabyAI's levels.

    Raises:
        LevelError: If another environment cannot be made, or differs from minigrid's.
    """
    if level.name not in LEVELS:
        return _make_other(level.name, options)
    spec = gymnasium.spec(level.id)
    level_class: Any = load_env_creator(str(spec.entry_point))
    return _game_class(level_class)(**{**spec.kwargs, **options})


def _make_other(name: str, options: dict[str, Any]) -> Any:
    try:
        if ":" in name:
            env = _other_class(name)(**options)
        else:
            env = gymnasium.make(name, disable_env_checker=True, **options)
    except Exception as error:  # of the user's code
        message = f"level '{name}' cannot be made: {type(error).__name__}: {error}"
        raise LevelError(message) from error
    for problem in _differences(env):
        raise LevelError(f"level '{name}' cannot be played by policies: {problem}")
    return env


@cache
def _other_class(name: str) -> type[Any]:
    """Return a class of a module or of a file, ``./file.py:Class``."""
    module, _, attribute = name.rpartition(":")
    if not module.endswith(".py"):
        found = pkgutil.resolve_name(name)
    else:
        path = str(Path(module).resolve())
        if path not in sys.modules:  # like a plug-in of mttl, which may have imported it
            spec: Any = importlib.util.spec_from_file_location(path, path)
            sys.modules[path] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[path])
        found = getattr(sys.modules[path], attribute)
    prints = getattr(found, "_gen_grid", None) is RoomGridLevel._gen_grid
    return type(found.__name__, (Quiet, found), {}) if prints else found


def _differences(env: Any) -> Iterator[str]:
    """Yield how the spaces or the episodes of an environment differ from minigrid's."""
    seen, actions = getattr(env.observation_space, "spaces", {}), env.action_space
    if missing := [name for name in ("image", "direction", "mission") if name not in seen]:
        yield f"its observation has no {' and no '.join(missing)}; return a dictionary with them"
    elif seen["image"].shape != (VIEW, VIEW, 3):
        yield (
            f"its image has the shape {seen['image'].shape}; it must be ({VIEW}, {VIEW}, 3), "
            f"minigrid's encoding with agent_view_size={VIEW}"
        )
    if getattr(actions, "n", None) != N_ACTIONS:
        yield f"its action space is {actions}; it must be Discrete({N_ACTIONS}), minigrid's actions"
    limited = env.spec is not None and env.spec.max_episode_steps
    if not (limited or hasattr(env.unwrapped, "max_steps")):
        yield "its episodes have no limit; give it max_steps, or register it with max_episode_steps"
