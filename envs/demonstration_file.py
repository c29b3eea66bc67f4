"""Demonstrations in one compressed file of numpy arrays.

With E episodes, S steps of all of them one after the other, and T levels, it holds ``levels`` (T,)
names, ``level`` (E,) places among them, ``seeds`` (E,), ``missions`` (E,), ``lengths`` (E,) in
steps, ``images`` (S, 7, 7, 3), ``directions`` (S,) and ``actions`` (S,).
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from envs.array_file import load_arrays
from envs.bot import Demonstration
from envs.files import written_whole


def save_demonstrations(demonstrations: Sequence[Demonstration], path: str | Path) -> None:
    """Write demonstrations, whole or not at all.

    Args:
        demonstrations: At least one.
        path: Ends in ".npz"; missing folders are made.

    Raises:
        ValueError: If the path ends otherwise.
    """
    if Path(path).suffix != ".npz":
        raise ValueError(f"'{path}' must end in .npz, the format of demonstrations")
    levels = list(dict.fromkeys(episode.level for episode in demonstrations))
    with written_whole(path) as temporary:
        np.savez_compressed(
            temporary,
            levels=np.array(levels),
            level=np.array([levels.index(episode.level) for episode in demonstrations], np.uint8),
            seeds=np.array([episode.seed for episode in demonstrations], np.int64),
            missions=np.array([episode.mission for episode in demonstrations]),
            lengths=np.array([len(episode.actions) for episode in demonstrations], np.int32),
            images=np.concatenate([episode.images for episode in demonstrations]),
            directions=np.concatenate([episode.directions for episode in demonstrations]),
            actions=np.concatenate([episode.actions for episode in demonstrations]),
        )


def load_demonstrations(path: str | Path) -> list[Demonstration]:
    """Read what `save_demonstrations` has written.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not of this format.
    """
    try:
        return _episodes(**load_arrays(path))
    except FileNotFoundError:
        raise
    except (OSError, TypeError, ValueError, IndexError) as error:
        raise ValueError(
            f"'{path}' is not a file of demonstrations, or damaged: {error}"
        ) from error


def _episodes(
    levels: np.ndarray,
    level: np.ndarray,
    seeds: np.ndarray,
    missions: np.ndarray,
    lengths: np.ndarray,
    images: np.ndarray,
    directions: np.ndarray,
    actions: np.ndarray,
) -> list[Demonstration]:
    stops = np.cumsum(lengths)
    return [
        Demonstration(
            str(levels[level[episode]]),
            int(seeds[episode]),
            str(missions[episode]),
            images[start:stop],
            directions[start:stop],
            actions[start:stop],
        )
        for episode, (start, stop) in enumerate(zip(stops - lengths, stops, strict=True))
    ]
