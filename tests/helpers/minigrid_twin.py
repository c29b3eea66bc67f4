"""A minigrid environment put into the state of one of envpool's: the same game, side by side."""

import re
from collections.abc import Callable
from typing import Any

import gymnasium
import minigrid  # noqa: F401  (registers the levels)
import numpy as np
from minigrid.core.grid import Grid
from minigrid.core.world_object import WorldObj
from minigrid.envs.babyai.core import verifier

from envs.levels import LEVELS

# A thing of a mission: colour, type, and where it is seen from the start.
THING = re.compile(
    r"(?:the|a) (?:(red|green|blue|purple|yellow|grey) )?(object|ball|box|key|door)"
    r"(?: on your (left|right)| in (front) of you| (behind) you)?"
)
VERBS: dict[str, Callable[..., Any]] = {
    "go to": verifier.GoToInstr,
    "pick up": verifier.PickupInstr,
    "open": verifier.OpenInstr,
    "put": verifier.PutNextInstr,
}


class Twin:
    """Minigrid's environment of a level, in a state that envpool was in."""

    def __init__(self, level: str, state: Any) -> None:
        self.env = gymnasium.make(LEVELS[level].id, disable_env_checker=True)
        self.env.reset(seed=0)
        self.inner: Any = self.env.unwrapped
        self.begin(state)

    def begin(self, state: Any) -> None:
        """Go on with another episode."""
        cells = grid_of(state)
        inner = self.inner
        inner.grid = Grid(state.width, state.height)
        for x, y in np.ndindex(state.width, state.height):
            cell = WorldObj.decode(*(int(part) for part in cells[x, y]))
            inner.grid.set(x, y, cell)
            if cell is not None:
                cell.init_pos = cell.cur_pos = (x, y)
        inner.agent_pos, inner.agent_dir = state.agent_pos, state.agent_dir
        inner.carrying, inner.step_count = None, 0
        inner.instrs = read_mission(state.mission)
        # Minigrid words the mission itself: whether it says "a" or "the" depends on the layout.
        inner.mission = inner.instrs.surface(inner)
        inner.instrs.reset_verifier(inner)
        n_rooms = inner.num_rows * inner.num_cols
        inner.max_steps = inner.num_navs_needed(inner.instrs) * inner.room_size**2 * n_rooms

    def look(self) -> dict[str, Any]:
        """Return what minigrid's agent sees."""
        return self.inner.gen_obs()

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool]:
        """Do one action; an episode is never both terminated and truncated."""
        seen, reward, terminated, truncated, _ = self.env.step(action)
        return seen, float(reward), terminated, truncated and not terminated


def read_mission(mission: str) -> Any:
    """Return the instruction of a mission of one clause."""
    verb = next(verb for verb in VERBS if mission.startswith(verb))
    things = [
        verifier.ObjDesc(None if kind == "object" else kind, colour or None, "".join(where) or None)
        for colour, kind, *where in THING.findall(mission)
    ]
    return VERBS[verb](*things)


def grid_of(state: Any) -> np.ndarray:
    """Return the cells (type, colour, door state), columns first: (width, height, 3)."""
    return np.array(state.grid, np.uint8).reshape(state.width, state.height, 3)
