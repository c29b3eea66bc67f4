"""Recording of a bot's demonstrations for imitation learning, and their files.

Attempt k of a level has a fixed seed on every machine and for any number of workers; failed
attempts are left out. So the record is biased towards episodes that the bot can solve.

The bot is minigrid's, as in the BabyAI paper. It reads the whole state and plans with a stack of
goals. It considers some layouts unsolvable, and in a few its planning does not end (2 % of
"Unlock"). Planning is therefore bounded by a number of steps, independent of the machine.

A file is a compressed archive of numpy arrays. For E episodes with S steps in total it has
``level`` (E,) names, ``seed`` (E,), ``mission`` (E,), ``length`` (E,) in steps,
``images`` (S, 7, 7, 3), ``directions`` (S,) and ``actions`` (S,).

References:
    Chevalier-Boisvert et al., *BabyAI: A Platform to Study the Sample Efficiency of Grounded
    Language Learning*, ICLR 2019, arXiv:1810.08272, section 3.4.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel
from minigrid.utils.baby_ai_bot import BabyAIBot

from envs.files import load_arrays, written_whole
from envs.game import make_game
from envs.interface import check_levels, slot_seed
from envs.levels import LevelError, find_level
from envs.process import WorkerProcess, close_workers

# Number of successive failures that shows that the bot cannot play a level.
MOST_FAILURES = 20
# Number of queued attempts per worker, so that none waits for another.
AHEAD = 4
_OF_EPISODE, _OF_STEP = ("level", "seed", "mission"), ("images", "directions", "actions")

# Largest number of planning steps per action. At most 9 occur in thousands of actions of solvable
# levels; 100 take half a second in the largest level.
MOST_PLANNING = 100


@dataclass(frozen=True)
class Demonstration:
    """One successful episode of S steps.

    Attributes:
        seed: Seed of the episode, ``reset(seed=seed)``.
        images: Image before each action.
        directions: Direction of the agent before each action: 0 right, 1 down, 2 left, 3 up.
        actions: Actions, the last of which fulfilled the mission.
    """

    level: str
    seed: int
    mission: str
    images: UInt8[np.ndarray, "S 7 7 3"]
    directions: UInt8[np.ndarray, "S"]
    actions: UInt8[np.ndarray, "S"]


def demonstrate(level: str, seed: int) -> Demonstration | str:
    """Return the bot's demonstration of one episode, or the reason if it fails.

    It fails if it gives up, plans for too long, or runs out of time. Raises a LevelError if there
    is no such level.
    """
    env = make_game(find_level(level))
    if not isinstance(env.unwrapped, RoomGridLevel):
        raise LevelError(f"minigrid's bot plays only BabyAI's levels and subclasses, not '{level}'")
    seen, _ = env.reset(seed=seed)
    bot = _BoundedBot(env.unwrapped)
    images, directions, actions = [], [], []
    terminated = truncated = False
    reward: Any = 0
    while not (terminated or truncated):
        try:
            action = int(bot.replan())
        # If its assumptions fail, the bot raises assertions and other errors.
        except Exception as error:
            cause = " ".join([type(error).__name__, *str(error).split()])
            return f"it gives up at step {len(actions) + 1} ({cause}), seed {seed}"
        images.append(seen["image"])
        directions.append(seen["direction"])
        actions.append(action)
        seen, reward, terminated, truncated, _ = env.step(action)
    if not (terminated and reward > 0):
        return f"its {len(actions)} steps do not fulfil the mission, seed {seed}"
    return Demonstration(
        level,
        seed,
        env.unwrapped.mission,
        np.stack(images),
        np.array(directions, np.uint8),
        np.array(actions, np.uint8),
    )


class _BoundedBot(BabyAIBot):
    """The bot with a bound on the planning of an action."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.stack = self._counted = _Stack(self.stack)

    def replan(self, action_taken: Any = None) -> Any:
        self._counted.n_looks = 0
        return super().replan(action_taken)


class _Stack(list):
    """A stack of goals that counts reads, one per planning step."""

    n_looks = 0

    def __getitem__(self, place: Any) -> Any:
        self.n_looks += 1
        if self.n_looks > MOST_PLANNING:
            raise TimeoutError("its plan is not complete")
        return super().__getitem__(place)


def record_demonstrations(
    levels: Sequence[str],
    n_episodes: int,
    *,
    seed: int = 0,
    n_workers: int = 0,
    progress: Callable[[str, int], object] = lambda level, n: None,
) -> list[Demonstration]:
    """Return demonstrations of the bot, level by level.

    Args:
        levels: Names of the levels, without repetition.
        n_episodes: Number of demonstrations per level.
        seed: Seed of the record; episodes have training seeds (see `envs.interface.slot_seed`).
        n_workers: Number of worker processes; 0 plays in this process.
        progress: Function that is called with a level and the number of its demonstrations.

    Raises:
        LevelError: If a level is unknown or listed twice, or there is none, or the bot failed
            `MOST_FAILURES` times in a row.
        SimulationError: If a worker dies.
    """
    levels = check_levels(levels)
    workers: list[WorkerProcess] = []
    record = []
    try:
        for _ in range(n_workers):
            workers.append(
                WorkerProcess("envs.demonstrations:demonstrate", "a worker with the bot")
            )
        for level in levels:
            seeds = (slot_seed(seed, level, number) for number in count())
            attempts = _attempts(level, seeds, workers)
            n = n_failures = 0
            while n < n_episodes:
                found = next(attempts)
                if isinstance(found, Demonstration):
                    n, n_failures = n + 1, 0
                    record.append(found)
                    progress(level, n)
                elif (n_failures := n_failures + 1) == MOST_FAILURES:
                    raise LevelError(
                        f"minigrid's bot cannot play level '{level}': it failed {n_failures} times "
                        f"in a row, most recently: {found}; leave the level out."
                    )
    finally:
        close_workers(workers)
    return record


def _attempts(
    level: str, seeds: Iterator[int], workers: Sequence[WorkerProcess]
) -> Iterator[Demonstration | str]:
    """Yield the attempts in order; the workers take turns and have a queue each."""
    if not workers:
        yield from (demonstrate(level, seed) for seed in seeds)
    for worker in workers:
        worker.drain()  # unused attempts of the previous level
    for _ in range(AHEAD):
        for worker in workers:
            worker.ask(level, next(seeds))
    while True:
        for worker in workers:
            yield worker.answer()
            worker.ask(level, next(seeds))


def save_demonstrations(demonstrations: Sequence[Demonstration], path: str | Path) -> None:
    """Write at least one demonstration atomically."""
    rows = [vars(one) for one in demonstrations]
    arrays: dict[str, Any] = {name: np.array([row[name] for row in rows]) for name in _OF_EPISODE}
    arrays |= {name: np.concatenate([row[name] for row in rows]) for name in _OF_STEP}
    arrays["length"] = np.array([len(row["actions"]) for row in rows])
    with written_whole(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)


def load_demonstrations(path: str | Path) -> list[Demonstration]:
    """Return the demonstrations of a file of `save_demonstrations`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged or of another format.
    """
    try:
        arrays = load_arrays(path)
        columns = [arrays[name].tolist() for name in _OF_EPISODE]
        columns += [np.split(arrays[name], arrays["length"].cumsum()[:-1]) for name in _OF_STEP]
        return [Demonstration(*row) for row in zip(*columns, strict=True)]
    except (AttributeError, KeyError, ValueError, IndexError) as error:
        raise ValueError(
            f"'{path}' is not a file of demonstrations, or damaged: {error}"
        ) from error
