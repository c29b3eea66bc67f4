"""Record demonstrations of a bot, for imitation learning, and keep them in a file.

Attempt number k of a level has a seed of its own, the same on every machine and for any number of
workers; attempts at which the bot fails are left out. So the episodes are those that the bot can
solve, a fact to remember about levels where it often cannot.

The bot of minigrid, the one of the BabyAI paper, sees the whole mission at work and plans with a
stack of goals. It has two flaws: it takes some layouts for unsolvable, and in a few it plans for
ever (in 2 % of those of "Unlock"). Planning is therefore bounded, by counting its steps: a clock
would make results depend on the machine.

A file is a compressed one of numpy arrays. With E episodes and S steps of all of them one after the
other, it holds ``level`` (E,) names, ``seed`` (E,), ``mission`` (E,), ``length`` (E,) in steps,
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
from minigrid.utils.baby_ai_bot import BabyAIBot

from envs.files import load_arrays, written_whole
from envs.game import make_game
from envs.interface import check_levels, slot_seed
from envs.levels import LevelError, find_level
from envs.process import WorkerProcess, close_workers

# No level that the bot can play has it fail so often in a row; those it cannot end soon.
MOST_FAILURES = 20
# Attempts that each worker has ahead of it, so that none waits for another.
AHEAD = 4
_OF_EPISODE, _OF_STEP = ("level", "seed", "mission"), ("images", "directions", "actions")

# Looks at the stack per action. It takes 9 at most in thousands of actions of the levels that the
# bot solves, "BossLevel" among them; 100 take half a second in the largest.
MOST_PLANNING = 100


class BotFailed(Exception):
    """The bot did not fulfil the mission; the message says why."""


@dataclass(frozen=True)
class Demonstration:
    """One successful episode of S steps.

    Attributes:
        seed: ``reset(seed=seed)`` begins the episode.
        images: What the agent saw before each action.
        directions: Where it looked then: 0 right, 1 down, 2 left, 3 up.
        actions: What it did; the last one fulfilled the mission.
    """

    level: str
    seed: int
    mission: str
    images: UInt8[np.ndarray, "S 7 7 3"]
    directions: UInt8[np.ndarray, "S"]
    actions: UInt8[np.ndarray, "S"]


def demonstrate(level: str, seed: int) -> Demonstration:
    """Let the bot play one episode.

    Raises:
        LevelError: If there is no such level.
        BotFailed: If the bot gives up, plans for too long, or runs out of time.
    """
    env = make_game(find_level(level))
    seen, _ = env.reset(seed=seed)
    bot = _BoundedBot(env)
    images, directions, actions = [], [], []
    terminated = truncated = False
    reward: Any = 0
    while not (terminated or truncated):
        try:
            action = int(bot.replan())
        # The bot states its assumptions as assertions, and trips over others where they fail.
        except Exception as error:
            cause = " ".join([type(error).__name__, *str(error).split()])
            problem = f"it gives up at step {len(actions) + 1} ({cause})"
            if isinstance(error, _PlannedTooLong):
                problem = f"it plans for ever at step {len(actions) + 1}"
            raise BotFailed(problem) from error
        images.append(seen["image"])
        directions.append(seen["direction"])
        actions.append(action)
        seen, reward, terminated, truncated, _ = env.step(action)
    if not (terminated and reward > 0):
        raise BotFailed(f"its {len(actions)} steps do not fulfil the mission")
    return Demonstration(
        level,
        seed,
        env.mission,
        np.stack(images),
        np.array(directions, np.uint8),
        np.array(actions, np.uint8),
    )


class _PlannedTooLong(Exception):
    pass


class _BoundedBot(BabyAIBot):
    """The bot, with an end to the planning of one action."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.stack = self._counted = _Stack(self.stack)

    def replan(self, action_taken: Any = None) -> Any:
        self._counted.n_looks = 0
        return super().replan(action_taken)


class _Stack(list):
    """Counts how often the bot looks at its next goal, which it does once per step of planning."""

    n_looks = 0

    def __getitem__(self, place: Any) -> Any:
        self.n_looks += 1
        if self.n_looks > MOST_PLANNING:
            raise _PlannedTooLong
        return super().__getitem__(place)


def record_demonstrations(
    levels: Sequence[str],
    n_episodes: int,
    *,
    seed: int = 0,
    n_workers: int = 0,
    progress: Callable[[str, int], object] = lambda level, n: None,
) -> list[Demonstration]:
    """Return demonstrations of the bot, level after level.

    Args:
        levels: Their names, each once.
        n_episodes: Demonstrations of each level.
        seed: Of the record; seeds of episodes are training seeds (see `envs.interface.slot_seed`).
        n_workers: Processes that play; with 0 this one does.
        progress: Called with a level and the number of its demonstrations so far.

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
            workers.append(WorkerProcess("envs.demonstrations:attempt", "a worker with the bot"))
        for level in levels:
            seeds = (slot_seed(seed, level, number) for number in count())
            attempts = _attempts(level, seeds, workers)
            for n, demonstration in enumerate(_successes(level, attempts, n_episodes), 1):
                record.append(demonstration)
                progress(level, n)
    finally:
        close_workers(workers)
    return record


def attempt(level: str, seed: int) -> Demonstration | str:
    """Return a demonstration, or why there is none."""
    try:
        return demonstrate(level, seed)
    except BotFailed as failure:
        return f"{failure}, seed {seed}"


def _attempts(
    level: str, seeds: Iterator[int], workers: Sequence[WorkerProcess]
) -> Iterator[Demonstration | str]:
    """Yield the attempts in order: they are dealt to the workers in turn, some ahead of time."""
    if not workers:
        yield from (attempt(level, seed) for seed in seeds)
    for worker in workers:
        worker.drain()  # those of the level before that were not needed
    for _ in range(AHEAD):
        for worker in workers:
            worker.ask(level, next(seeds))
    while True:
        for worker in workers:
            yield worker.answer()
            worker.ask(level, next(seeds))


def _successes(
    level: str, attempts: Iterator[Demonstration | str], n_episodes: int
) -> Iterator[Demonstration]:
    n_failures = 0
    while n_episodes:
        found = next(attempts)
        if isinstance(found, Demonstration):
            n_episodes, n_failures = n_episodes - 1, 0
            yield found
            continue
        n_failures += 1
        if n_failures == MOST_FAILURES:
            raise LevelError(
                f"minigrid's bot cannot play level '{level}': it failed {n_failures} times in a "
                f"row, at last: {found}; leave the level out."
            )


def save_demonstrations(demonstrations: Sequence[Demonstration], path: str | Path) -> None:
    """Write demonstrations, at least one, whole or not at all."""
    rows = [vars(one) for one in demonstrations]
    arrays: dict[str, Any] = {name: np.array([row[name] for row in rows]) for name in _OF_EPISODE}
    arrays |= {name: np.concatenate([row[name] for row in rows]) for name in _OF_STEP}
    arrays["length"] = np.array([len(row["actions"]) for row in rows])
    with written_whole(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)


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
    except (AttributeError, KeyError, ValueError, IndexError) as error:
        raise ValueError(
            f"'{path}' is not a file of demonstrations, or damaged: {error}"
        ) from error
