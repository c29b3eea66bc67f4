"""Images and searches on integers against minigrid's own, on worlds no level would make."""

from typing import Any

import gymnasium
import minigrid  # noqa: F401  registers the levels
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from minigrid.core.constants import COLOR_NAMES
from minigrid.core.grid import Grid
from minigrid.core.world_object import Ball, Box, Door, Floor, Goal, Key, Lava, Wall

from envs.observation import EMPTY, all_reachable, observe, pack, pack_grid

colours = st.sampled_from(COLOR_NAMES)
things = st.builds(Ball, colours) | st.builds(Key, colours) | st.builds(Box, colours)
cells = st.one_of(
    st.none(),
    st.builds(Wall),
    st.builds(Door, colours, st.booleans(), st.booleans()),
    things,
    st.builds(Goal) | st.builds(Lava) | st.builds(Floor, colours),
)


@st.composite
def worlds(draw: Any) -> Any:
    """A minigrid environment with a random grid, mostly empty, and the agent anywhere."""
    world: Any = gymnasium.make("BabyAI-GoToObj-v0").unwrapped
    width, height = draw(st.integers(3, 12)), draw(st.integers(3, 12))
    world.grid, world.width, world.height = Grid(width, height), width, height
    for place in draw(st.sets(st.integers(0, width * height - 1))):
        world.grid.grid[place] = draw(cells)
    world.agent_pos = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
    world.agent_dir = draw(st.integers(0, 3))
    world.carrying = draw(st.none() | things)
    return world


@settings(max_examples=200)
@given(worlds())
def test_what_is_seen_and_can_be_reached_is_as_in_minigrid(world: Any) -> None:
    grid, carried = pack_grid(world.grid), pack(world.carrying)
    image = observe(grid, *world.agent_pos, world.agent_dir, carried)
    assert image.dtype == np.uint8
    np.testing.assert_array_equal(image, world.gen_obs()["image"])

    reachable = world.check_objs_reachable(raise_exc=False)
    assert all_reachable(grid, *world.agent_pos) == reachable


def test_cells_are_packed_as_minigrid_encodes_them() -> None:
    assert pack(None) == EMPTY == 1
    assert pack(Door("red", is_locked=True)) == 4 | 0 << 8 | 2 << 16
    assert pack(Box("grey")) == 7 | 5 << 8
