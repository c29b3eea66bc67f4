"""Compare the speed of BabyAI's environments: minigrid, gymnasium's vectors, ours, and envpool.

    python scripts/benchmarks/env_speed.py [--levels GoToObj GoTo] [--slots 16] [--json FILE]

Every round plays the same number of steps of one level with random actions, resets included. The
floor is one environment of minigrid as ``gymnasium.make`` gives it, in a bare loop. Figures are
environment steps per second of wall-clock time; ours and envpool also encode the mission.
"""

import argparse
import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from _common import Step, as_speed, parse_arguments, positive, report, run

FLOOR = "minigrid"
VARIANTS = (FLOOR, "gymnasium sync", "gymnasium async", "ours", "ours, workers", "envpool")


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    from envs.interface import check_levels
    from envs.levels import PAPER_LEVELS, LevelError

    parser = argparse.ArgumentParser(description="Environment steps per second, by kind.")
    parser.add_argument("--levels", nargs="+", default=list(PAPER_LEVELS), metavar="LEVEL")
    parser.add_argument("--slots", type=positive, default=16, help="environments (%(default)s)")
    parser.add_argument("--workers", type=positive, default=2, help="processes (%(default)s)")
    parser.add_argument("--steps", type=positive, default=250, help="of each slot (%(default)s)")
    settings = parse_arguments(parser, VARIANTS, argv, sizes=())
    try:
        check_levels(settings.levels)
    except LevelError as error:
        parser.error(str(error))
    rows: list[dict[str, Any]] = []
    for level in settings.levels:
        of_level = argparse.Namespace(**{**vars(settings), "level": level})
        found = run(build, of_level, clock=time.perf_counter)
        speeds = [as_speed(row, settings.slots * settings.steps) for row in found]
        rows += [{**row, "name": f"{level}, {row['name']}"} for row in speeds]
    title = f"BabyAI, {settings.slots} environments, {settings.workers} workers, random actions"
    report(rows, settings, title=title, unit="steps/s", columns={})
    return 0


def build(variant: str, settings: argparse.Namespace) -> tuple[Step, dict[str, float]]:
    """Make the environments of a variant and the loop that plays them."""
    actions = np.random.default_rng(0).integers(7, size=(settings.steps, settings.slots))
    with _silence():
        if variant == FLOOR:
            play = _play_single(settings.level, actions.ravel().tolist())
        elif variant.startswith("gymnasium"):
            play = _play_gymnasium(settings.level, actions, variant.split()[1])
        else:
            play = _play_ours(variant, settings, actions)

    def step() -> None:
        with _silence():
            play()

    return step, {}


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keep off the screen that minigrid prints every layout it rejects."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def _play_single(level: str, actions: list[int]) -> Step:
    env = _make_plain(level)
    env.reset(seed=0)

    def play() -> None:
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    return play


def _play_gymnasium(level: str, actions: np.ndarray, kind: str) -> Step:
    from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

    vector: Any = {"sync": SyncVectorEnv, "async": AsyncVectorEnv}[kind]
    make = functools.partial(_make_filtered, level, silent=kind == "async")
    env = vector([make] * actions.shape[1], autoreset_mode=AutoresetMode.SAME_STEP)
    env.reset(seed=0)
    return _loop(env.step, actions)


def _play_ours(variant: str, settings: argparse.Namespace, actions: np.ndarray) -> Step:
    from envs.vector import make_vector_env

    env = make_vector_env(
        [settings.level],
        settings.slots,
        seed=0,
        backend="envpool" if variant == "envpool" else "minigrid",
        n_workers=settings.workers if variant.endswith("workers") else 0,
    )
    env.reset()
    return _loop(env.step, actions[:, None])


def _loop(step: Callable[[Any], object], actions: np.ndarray) -> Step:
    def play() -> None:
        for row in actions:
            step(row)

    return play


def _make_plain(level: str) -> Any:
    import gymnasium
    import minigrid  # noqa: F401  registers the levels

    from envs.levels import LEVELS

    return gymnasium.make(LEVELS[level].id)


def _make_filtered(level: str, *, silent: bool) -> Any:
    """Leave the mission out: gymnasium's vectors cannot stack it."""
    from gymnasium.wrappers import FilterObservation

    if silent:  # in a process of its own, which nobody else redirects
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  as long as the process lives
    return FilterObservation(_make_plain(level), ["image", "direction"])


if __name__ == "__main__":
    sys.exit(main())
