"""Demonstrations in one compressed file of numpy arrays.

With E episodes and S steps of all of them one after the other, it holds ``level`` (E,) names,
``seed`` (E,), ``mission`` (E,), ``length`` (E,) in steps, ``images`` (S, 7, 7, 3), ``directions``
(S,) and ``actions`` (S,).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from envs.bot import Demonstration
from envs.files import load_arrays, written_whole

_OF_EPISODE, _OF_STEP = ("level", "seed", "mission"), ("images", "directions", "actions")


def save_demonstrations(demonstrations: Sequence[Demonstration], path: str | Path) -> None:
    """Write demonstrations, at least one, whole or not at all.

    Raises:
        ValueError: If the path does not end in ".npz".
    """
    if Path(path).suffix != ".npz":
        raise ValueError(f"'{path}' must end in .npz, the format of demonstrations")
    rows = [vars(one) for one in demonstrations]
    arrays: dict[str, Any] = {name: np.array([row[name] for row in rows]) for name in _OF_EPISODE}
    arrays |= {name: np.concatenate([row[name] for row in rows]) for name in _OF_STEP}
    arrays["length"] = np.array([len(row["actions"]) for row in rows])
    with written_whole(path) as temporary:
        np.savez_compressed(temporary, **arrays)


def load_demonstrations(path: str | Path) -> list[Demonstration]:
    """Read what `save_demonstrations` has written.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not of this format.
    """
    try:
        arrays = load_arrays(path)
        columns = [arrays[name].tolist() for name in _OF_EPISODE]
        columns += [np.split(arrays[name], arrays["length"].cumsum()[:-1]) for name in _OF_STEP]
        return [Demonstration(*row) for row in zip(*columns, strict=True)]
    except FileNotFoundError:
        raise
    except (AttributeError, KeyError, ValueError, IndexError) as error:
        raise ValueError(
            f"'{path}' is not a file of demonstrations, or damaged: {error}"
        ) from error
