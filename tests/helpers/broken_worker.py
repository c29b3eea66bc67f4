"""Workers of environments one of which is broken: slot 1 of the second of three levels."""

from multiprocessing.connection import Connection
from typing import Any

from envs import worker
from envs.local import LocalVectorEnv


def serve_without_grid(connection: Connection) -> None:
    """Play, but for a game that loses its grid after it has begun."""
    _serve(connection, {"grid": None})


def serve_without_limit(connection: Connection) -> None:
    """Play, but for a game whose episodes may take no step."""
    _serve(connection, {"fixed_max_steps": True, "max_steps": 0})


def _serve(connection: Connection, settings: dict[str, Any]) -> None:
    class Broken(LocalVectorEnv):
        def reset(self) -> Any:
            place = self.n_slots + 1 - self._first_slot
            broken = self._games[place] if 0 <= 1 - self._first_slot < self.n_slots else None
            if broken is not None and "grid" not in settings:
                vars(broken).update(settings)
            seen = super().reset()
            if broken is not None:
                vars(broken).update(settings)
            return seen

    worker.LocalVectorEnv = Broken  # type: ignore[misc]  in a process of its own
    worker.serve(connection)
