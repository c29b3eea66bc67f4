"""The state of a vector environment, cut into those of groups of its slots and joined again.

So a state is the same however many processes played the slots, and any number can go on from it.
"""

import io
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from envs.interface import Observation


class _Reader(pickle.Unpickler):
    """Finds the class that lay beside the factory when earlier versions saved a state."""

    def find_class(self, module: str, name: str) -> Any:
        moved = (module, name) == ("envs.vector", "Observation")
        return Observation if moved else super().find_class(module, name)


def read_state(state: bytes) -> dict[str, Any]:
    """Return what a state holds; it is a pickle, which must come from a trusted place."""
    return _Reader(io.BytesIO(state)).load()


def split_state(state: bytes, levels: tuple[str, ...], widths: Sequence[int]) -> list[bytes]:
    """Return the states of neighbouring groups of slots.

    Args:
        state: Of a `LocalVectorEnv`; a pickle, which must come from a trusted place.
        levels: That it must be of.
        widths: How many slots of every level each group has; they must add up to N.

    Raises:
        ValueError: If it was taken of other levels or another number of slots.
    """
    whole = read_state(state)
    for name, ours in (("levels", levels), ("n_slots", sum(widths))):
        if whole[name] != ours:
            raise ValueError(f"the state has {name} {whole[name]}; these environments have {ours}")
    tables = _tables(whole)
    parts, first = [], whole["_first_slot"]
    stops = np.cumsum(widths)
    for start, stop in zip(stops - widths, stops, strict=True):
        part = {name: table[:, start:stop] for name, table in tables.items()}
        settings = {"n_slots": int(stop - start), "_first_slot": first + int(start)}
        parts.append(pickle.dumps({**whole, **settings, **_rows(part)}))
    return parts


def join_states(states: Sequence[bytes]) -> bytes:
    """Return the state of the vector environment that these groups of slots make up, in order."""
    parts = [read_state(state) for state in states]
    tables = [_tables(part) for part in parts]
    whole = {name: np.concatenate([table[name] for table in tables], axis=1) for name in tables[0]}
    n_slots = sum(part["n_slots"] for part in parts)
    return pickle.dumps({**parts[0], "n_slots": n_slots, **_rows(whole)})


def _tables(saved: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return what is kept of each environment with the axes T and N; it is kept in one row."""
    games = np.empty(len(saved["_games"]), object)
    games[:] = saved["_games"]
    rows = {"games": games, "episodes": saved["_episodes"], **vars(saved["_seen"])}
    shape = (len(saved["levels"]), saved["n_slots"])
    return {name: row.reshape(*shape, *row.shape[1:]) for name, row in rows.items()}


def _rows(tables: dict[str, np.ndarray]) -> dict[str, Any]:
    rows = {name: table.reshape(-1, *table.shape[2:]) for name, table in tables.items()}
    games, episodes = rows.pop("games"), rows.pop("episodes")
    return {"_games": games.tolist(), "_episodes": episodes, "_seen": Observation(**rows)}
