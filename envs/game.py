"""One environment: a level of minigrid with faster observations.

Layouts, random numbers, effects of actions and success of missions are minigrid's code. Replaced
are the slowest parts: the observation, the check that objects are reachable, and the search for the
mission's objects if none has moved. Equal seeds and actions give the episodes of minigrid.
"""

from functools import cache
from types import FunctionType
from typing import Any

import gymnasium
import minigrid  # noqa: F401  registers the levels
import numpy as np
from gymnasium.envs.registration import load_env_creator
from jaxtyping import Int32
from minigrid.envs.babyai.core import roomgrid_level
from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel

from envs.levels import Level
from envs.observation import EMPTY, all_reachable, observe, pack, pack_grid


class Game(RoomGridLevel):
    """A mixin that makes a level of minigrid fast; it precedes the level among the bases."""

    _cells: Int32[np.ndarray, "W H"] | None = None  # packed grid, or None if it must be read again
    _moved = True  # whether an object may have moved since the last search for mission objects

    # Minigrid prints a line for every rejected layout. This is the same code with a silent `print`;
    # redirecting standard output would affect other threads.
    _gen_grid = FunctionType(
        RoomGridLevel._gen_grid.__code__,
        {**vars(roomgrid_level), "print": lambda *_: None},
        closure=RoomGridLevel._gen_grid.__closure__,
    )

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


def make_game(level: Level, **options: Any) -> Game:
    """Return the environment of a level."""
    spec = gymnasium.spec(level.id)
    level_class: Any = load_env_creator(str(spec.entry_point))
    return _game_class(level_class)(**{**spec.kwargs, **options})
