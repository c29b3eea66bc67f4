"""Compare the rows per second of two processes on the CPU with those of one.

    python scripts/benchmarks/two_processes.py [--steps 200] [--rounds 2] [--json FILE]

Both train the default configuration by the command, one thread each, with the same global batch.
A run of many steps is timed by the clock and a run of few is taken off, so that what remains is
steps; it says something on a machine that nobody else uses, and with steps enough that their time
is many times what two starts differ by (some seconds).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _common import positive
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]
FEW = 4


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description="Rows per second of one process and of two.")
    add = parser.add_argument
    add("--steps", type=positive, default=200, help="timed steps (%(default)s)")
    add("--rows", type=positive, default=64, help="of a step of all processes (%(default)s)")
    add("--rounds", type=positive, default=2, help="repetitions, in turn (%(default)s)")
    add("--config", default="crossfit.yaml", help="(%(default)s)")
    add("--json", type=Path, metavar="FILE", help="also write the figures here")
    options = parser.parse_args(argv)
    found: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as folder:
        _train(options, Path(folder), 1, 1)  # fills the cache of tokenised rows
        for _ in range(options.rounds):
            for n_processes, times in found.items():
                few = _train(options, Path(folder), n_processes, FEW)
                many = _train(options, Path(folder), n_processes, FEW + options.steps)
                times.append(many - few)
    n_rows = options.steps * options.rows
    rows = [
        {
            "processes": n_processes,
            "rows_per_second": n_rows / statistics.median(times),
        }
        for n_processes, times in found.items()
    ]
    table = Table("processes", title=f"{options.config}, {options.rows} rows per step")
    for heading in ("rows/s", "ratio"):
        table.add_column(heading, justify="right")
    floor = rows[0]["rows_per_second"]
    for row in rows:
        speed = row["rows_per_second"]
        table.add_row(str(row["processes"]), f"{speed:.2f}", f"{speed / floor:.2f}")
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0


def _train(options: argparse.Namespace, folder: Path, n_processes: int, n_steps: int) -> float:
    """Run the command; return the seconds that it took."""
    name = f"run-{n_processes}-{n_steps}-{time.monotonic_ns()}"
    settings = {
        **{"run.dir": folder, "run.name": name, "data.global_batch_size": options.rows},
        **{"data.batch_size": options.rows, "data.validation": "none", "data.evaluate": "[]"},
        **{"trainer.max_steps": n_steps, "trainer.val_check_interval": "null"},
        **{"trainer.accelerator": "cpu", "trainer.devices": n_processes},
        **({"trainer.strategy": "ddp"} if n_processes > 1 else {}),
    }
    command = [sys.executable, "pl_train.py", "-c", options.config, "-k"]
    command += [f"{key}={value}" for key, value in settings.items()]
    start = time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"pl_train.py ended with {done.returncode}: {done.stderr[-2000:]}")
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
