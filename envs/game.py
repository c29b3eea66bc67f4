"""One environment: a level of minigrid, with a faster way to look at it.

Layouts, random numbers, the effect of actions and the verdict on missions are minigrid's own code.
Replaced are what costs most and decides nothing by itself: the observation, the search for objects
out of reach while a layout is made, and looking for the mission's objects when none has moved. The
same seed and actions give the same episode.
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

    _cells: Int32[np.ndarray, "W H"] | None = None  # the grid, packed; None: to be read again
    _moved = True  # something may have changed place since the mission's objects were looked for

    # Minigrid prints a line for every layout that it rejects. The same code with a silent `print`
    # leaves standard output alone, which other threads may be using.
    _gen_grid = FunctionType(
        RoomGridLevel._gen_grid.__code__,
        {**vars(roomgrid_level), "print": lambda *_: None},
        closure=RoomGridLevel._gen_grid.__closure__,
    )

    def reset(self, **options: Any) -> Any:
        """Begin an episode, as in gymnasium."""
        self._cells = None
        result = super().reset(**options)
        # A level may still change after its first observation: some begin with a full hand.
        self._cells = None
        return result

    def gen_obs(self) -> dict[str, Any]:
        """Return image, direction and mission.

        An action changes at most the cell in front of the agent, which does not move by it.
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
        """Look for the mission's objects, unless nothing has moved since last time."""
        if instr is not None:
            super().update_objs_poss(instr)
        elif self._moved:
            super().update_objs_poss()
            self._moved = False

    def check_objs_reachable(self, raise_exc: bool = True) -> bool:
        """Return whether the agent can go next to every object without moving any.

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
    """Make the environment of a level."""
    spec = gymnasium.spec(level.id)
    level_class: Any = load_env_creator(str(spec.entry_point))
    return _game_class(level_class)(**{**spec.kwargs, **options})
