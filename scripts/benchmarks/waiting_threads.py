"""Time the main job beside other work: threads that spin while they wait, and threads that sleep.

OpenMP's threads wait for each other at the end of every parallel loop. By default GNU's library
lets them spin, which is fastest on idle cores; beside other work they spin while the thread that
they wait for has no processor. The commands therefore set OMP_WAIT_POLICY=passive.

Runs `pl_train.py -c crossfit.yaml` for some steps, start-up included, in processes of its own, with
and without busy processes beside it. The variants take turns; times are wall time.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _common import KEEP_MEMORY, parse_arguments, report, summarise
from rich.console import Console
from rich.progress import track

ROOT = Path(__file__).parents[2]
# GNU's library spins this often where nothing is set; giving the number overrides the policy.
SPINNING = {"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "300000"}
VARIANTS = {
    "two threads that spin": SPINNING,
    "two threads that sleep": {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
OPENMP = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


def main(argv: list[str] | None = None) -> int:
    """Measure all variants, alone and beside busy processes, and print a table for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=120, help="of training (%(default)s)")
    parser.add_argument(
        "--busy",
        type=int,
        nargs="+",
        default=[0, 2],
        help="busy processes beside the job, a table each (%(default)s)",
    )
    settings = parse_arguments(parser, list(VARIANTS), argv, sizes=())
    for n_busy in settings.busy:
        times = _measure(settings, n_busy)
        floor = times[settings.only[0]]
        rows: list[dict[str, Any]] = [
            {"name": name, **summarise(times[name], floor)} for name in settings.only
        ]
        beside = f"beside {n_busy} busy processes" if n_busy else "alone"
        report(rows, settings, title=f"{settings.steps} steps, {beside}", unit="s", columns={})
    return 0


def _measure(settings: argparse.Namespace, n_busy: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in settings.only}
    rounds = track(
        range(settings.warmup + settings.rounds),
        f"{n_busy} busy",
        console=Console(stderr=True),
        transient=True,
    )
    memory = KEEP_MEMORY if settings.malloc == "keep" else {}
    with _busy(n_busy):
        for _ in rounds:
            for name in settings.only:
                times[name].append(_train(settings.steps, VARIANTS[name] | memory))
    return {name: values[settings.warmup :] for name, values in times.items()}


def _train(n_steps: int, variables: dict[str, str]) -> float:
    """Return the seconds that a short run takes, start-up included."""
    environment = {name: value for name, value in os.environ.items() if name not in OPENMP}
    with tempfile.TemporaryDirectory() as folder:
        overrides = (
            f"run.dir={folder}",
            f"trainer.max_steps={n_steps}",
            "data.validation=none",
            "data.evaluate=[]",
            f"data.cache_dir={ROOT / 'runs' / '.cache'}",
        )
        command = [sys.executable, ROOT / "pl_train.py", "-c", "crossfit.yaml", "-k", *overrides]
        start = time.perf_counter()
        done = subprocess.run(
            command, cwd=ROOT, env=environment | variables, capture_output=True, text=True
        )
        elapsed = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"the run ended with status {done.returncode}:\n{done.stderr}")
    return elapsed


@contextmanager
def _busy(n_processes: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Keep some processors busy while the block runs."""
    loops = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n_processes)
    ]
    try:
        yield loops
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


if __name__ == "__main__":
    raise SystemExit(main())
