"""The agent's image, computed from a grid of integers.

Minigrid computes the same image from objects, which takes four fifths of a step.
"""

from typing import Any

import numpy as np
from jaxtyping import Int32, UInt8
from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX
from numba import njit

from envs.interface import VIEW

EMPTY = OBJECT_TO_IDX["empty"]
_WALL, _DOOR, _OPEN = OBJECT_TO_IDX["wall"], OBJECT_TO_IDX["door"], STATE_TO_IDX["open"]
_OUTSIDE = _WALL | COLOR_TO_IDX["grey"] << 8


def pack(cell: Any) -> int:
    """Return type, colour and state of an object, or of an empty cell (None), as one integer."""
    if cell is None:
        return EMPTY
    kind, colour, state = cell.encode()
    return kind | colour << 8 | state << 16


def pack_grid(grid: Any) -> Int32[np.ndarray, "W H"]:
    """Return the packed cells of a minigrid ``Grid``, columns first."""
    packed = np.array([pack(cell) for cell in grid.grid], np.int32)
    return np.ascontiguousarray(packed.reshape(grid.height, grid.width).T)


@njit(cache=True)
def observe(
    cells: Int32[np.ndarray, "W H"], x: int, y: int, direction: int, carried: int
) -> UInt8[np.ndarray, "7 7 3"]:
    """Return the agent's image: type, colour and state of every cell in view, 0 for hidden cells.

    The view is rotated so that the agent looks up from the middle of the last row. By minigrid's
    rule, light spreads from the agent row by row, first to the right, then to the left, and from
    every lit cell except walls and closed doors also straight and diagonally ahead.

    Args:
        cells: Packed cells of the world, which is surrounded by walls.
        x: Column of the agent.
        y: Row of the agent.
        direction: Direction of the agent: 0 right, 1 down, 2 left, 3 up.
        carried: Packed object that the agent carries, drawn at its cell; `EMPTY` for none.
    """
    ahead_x = (1, 0, -1, 0)[direction]
    ahead_y = (0, 1, 0, -1)[direction]
    view = np.empty((VIEW, VIEW), np.int32)
    for i in range(VIEW):
        for j in range(VIEW):
            ahead, aside = VIEW - 1 - j, i - VIEW // 2
            column = x + ahead * ahead_x - aside * ahead_y
            row = y + ahead * ahead_y + aside * ahead_x
            inside = 0 <= column < cells.shape[0] and 0 <= row < cells.shape[1]
            view[i, j] = cells[column, row] if inside else _OUTSIDE

    lit = np.zeros((VIEW, VIEW), np.bool_)
    lit[VIEW // 2, VIEW - 1] = True
    for j in range(VIEW - 1, -1, -1):
        for i in range(VIEW - 1):
            if lit[i, j] and _transparent(view[i, j]):
                _light(lit, i, i + 1, j)
        for i in range(VIEW - 1, 0, -1):
            if lit[i, j] and _transparent(view[i, j]):
                _light(lit, i, i - 1, j)

    view[VIEW // 2, VIEW - 1] = carried
    image = np.zeros((VIEW, VIEW, 3), np.uint8)
    for i in range(VIEW):
        for j in range(VIEW):
            if lit[i, j]:
                image[i, j, 0] = view[i, j] & 255
                image[i, j, 1] = view[i, j] >> 8 & 255
                image[i, j, 2] = view[i, j] >> 16
    return image


@njit(cache=True)
def _transparent(cell: int) -> bool:
    kind = cell & 255
    return kind != _WALL and (kind != _DOOR or cell >> 16 == _OPEN)


@njit(cache=True)
def _light(lit: np.ndarray, i: int, beside: int, j: int) -> None:
    """Light the cell next to (i, j) in its row, and the cells ahead of both."""
    lit[beside, j] = True
    if j > 0:
        lit[beside, j - 1] = True
        lit[i, j - 1] = True


@njit(cache=True)
def all_reachable(cells: Int32[np.ndarray, "W H"], x: int, y: int) -> bool:
    """Return whether a cell next to every object except walls can be reached from (x, y).

    Doors, also locked ones, can be passed, other objects cannot.
    """
    width, height = cells.shape
    reached = np.zeros((width, height), np.bool_)
    stack = np.empty((width * height, 2), np.int32)
    reached[x, y] = True
    stack[0], n = (x, y), 1
    while n:
        n -= 1
        column, row = stack[n]
        kind = cells[column, row] & 255
        if kind != EMPTY and kind != _DOOR:
            continue
        for step in range(4):
            i = column + (1, 0, -1, 0)[step]
            j = row + (0, 1, 0, -1)[step]
            if 0 <= i < width and 0 <= j < height and not reached[i, j]:
                reached[i, j] = True
                stack[n] = (i, j)
                n += 1
    for i in range(width):
        for j in range(height):
            kind = cells[i, j] & 255
            if kind != EMPTY and kind != _WALL and not reached[i, j]:
                return False
    return True
