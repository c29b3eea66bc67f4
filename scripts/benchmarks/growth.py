"""Measure how the cost of a training grows with tasks, skills, rows and parameters.

    python scripts/benchmarks/growth.py [--only tasks skills] [--rounds 1] [--csv FILE]

Each point is `mttl train` on a task file that the script writes, in a process of its own; the
conversion of the task file has another process. Figures are seconds of processor time without
imports, and peak memory; ratios are to the first point of a curve. Where not varied, there are 10
tasks of 8 training and 2 development rows, 8 skills and the backbone in data/backbone.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _common import peak_mib, positive
from rich.console import Console
from rich.progress import track
from rich.table import Table

from mttl.io.files import write_table

FOLDER = Path(__file__).parent
CURVES = {
    "tasks": [10, 100, 1000, 10_000],
    "skills": [8, 32, 128, 256],
    "rows": [1000, 10_000, 100_000, 1_000_000],
    "parameters": [8, 60, 220],  # millions
}
N_TASKS, N_ROWS, N_DEV = 10, 8, 2
SMALL_T5 = {"d_model": 256, "d_kv": 64, "num_heads": 4, "d_ff": 1024, "num_layers": 4}
FIGURES = ("conversion", "start", "step", "evaluation", "saving", "ending")
MEMORY = ("conversion_mib", "start_mib", "peak_mib")


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description="Growth of the cost of a training.")
    add = parser.add_argument
    add("--only", nargs="+", choices=CURVES, default=list(CURVES), metavar="CURVE")
    add("--most", type=positive, help="leave out larger sizes")
    add("--rounds", type=positive, default=1, help="of each point (%(default)s)")
    add("--steps", type=positive, default=20, help="of a training (%(default)s)")
    add("--limit", type=positive, default=180, help="seconds of a process (%(default)s)")
    add("--csv", type=Path, metavar="FILE", help="also write the figures here")
    add("--work", nargs=4, metavar=("CURVE", "SIZE", "WHAT", "DIR"), help=argparse.SUPPRESS)
    settings = parser.parse_args(argv)
    if settings.work:
        curve, size, what, folder = settings.work
        print(json.dumps(work(curve, int(size), what, Path(folder), settings.steps)))
        return 0
    sizes = [(curve, size) for curve in settings.only for size in CURVES[curve]]
    points = [one for one in sizes if one[1] <= (settings.most or one[1])]
    order = [point for _ in range(settings.rounds) for point in random.sample(points, len(points))]
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    for point in track(order, "measuring", console=Console(stderr=True), transient=True):
        found.setdefault(point, []).append(measure(*point, settings))
    rows = [summary(*point, found[point]) for point in points]
    show(rows)
    if settings.csv:
        write_table(settings.csv, list(rows[0]), rows)
    return 0


def measure(curve: str, size: int, settings: argparse.Namespace) -> dict[str, float]:
    """Return the figures of a point; without those of a process that exceeds the limit."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        write_tasks(
            Path(folder),
            size if curve == "tasks" else 1 if curve == "rows" else N_TASKS,
            size if curve == "rows" else N_ROWS,
        )
        for what in ("convert", "train"):
            command = [sys.executable, __file__, "--steps", str(settings.steps)]
            command += ["--work", curve, str(size), what, folder]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            try:
                done = subprocess.run(
                    command,
                    env=environment,
                    stdout=subprocess.PIPE,
                    timeout=settings.limit,
                    check=True,
                )
            except subprocess.TimeoutExpired:
                print(f"{curve} {size}, {what}: over {settings.limit} s", file=sys.stderr)
                break
            figures |= json.loads(done.stdout.splitlines()[-1])
    return figures


def write_tasks(folder: Path, n_tasks: int, n_rows: int) -> None:
    """Write a task file, and the rows of each task."""
    for name, number in (("train", n_rows), ("dev", N_DEV)):
        for task in range(n_tasks):
            with (folder / f"{task}_{name}.jsonl").open("w", encoding="utf-8") as file:
                for row in range(number):
                    word = f"{(row * n_tasks + task) * 7919 % 10_000_000:07}"
                    file.write(json.dumps({"word": word, "answer": word[:4][::-1]}) + "\n")
    shared: dict[str, Any] = {"kind": "text-to-text", "k": "all", "metric": "EM"}
    shared |= {"input": "{word}", "output": "{answer}"}
    tasks = {
        f"task{task}": {
            "source": {
                "train": f"{task}_train.jsonl",
                "dev": f"{task}_dev.jsonl",
                "test": f"{task}_dev.jsonl",
            }
        }
        for task in range(n_tasks)
    }
    text = json.dumps({**shared, "tasks": tasks}, indent=1)  # JSON is YAML
    (folder / "tasks.yaml").write_text(text, encoding="utf-8")


def work(curve: str, size: int, what: str, folder: Path, steps: int) -> dict[str, float]:
    """Convert the tasks or train on them in this process; return what it took."""
    from mttl.commands.train_tasks import train
    from mttl.config.load import load_config
    from mttl.data.chosen_tasks import open_gym

    given = [f"data.tasks={folder / 'tasks.yaml'}", f"run.dir={folder}", "run.name=run"]
    given += ["data.evaluate=[dev]", "trainer.accelerator=cpu", "trainer.val_check_interval=1.0"]
    given += [f"trainer.max_steps={steps}", "data.eval_batch_size=256"]
    clock = {"kind": f"{FOLDER / '_clock.py'}:Clock", "path": str(folder / "clock.json")}
    given += [f"trainer.callbacks={json.dumps([clock])}"]
    if curve == "skills":
        given += [f"skills.n_skills={size}"]
    if curve == "parameters":
        sizes = {60: "t5_small", 220: "t5_base"}
        path = FOLDER.parents[1] / "configs" / "sizes" / sizes.get(size, "") / "config.json"
        network = json.loads(path.read_text()) if size in sizes else SMALL_T5
        kept = {key: network[key] for key in SMALL_T5} | {"vocab_size": network.get("vocab_size", 384)}
        given += ["backbone.kind=random", "backbone.name=null", "backbone.model_type=t5"]
        given += ["backbone.tokenizer=byte", f"backbone.config={json.dumps(kept)}"]
    config = load_config("custom.yaml", given)
    imported = time.process_time()
    if what == "convert":
        open_gym(config)
        return {"conversion": time.process_time() - imported, "conversion_mib": peak_mib()}
    train(config)
    ended = time.process_time()
    found = json.loads((folder / "clock.json").read_text(encoding="utf-8"))
    found["start"] -= imported
    return found | {"ending": ended - found.pop("end"), "peak_mib": peak_mib()}


def summary(curve: str, size: int, rounds: list[dict[str, float]]) -> dict[str, Any]:
    """Return a row: medians over the rounds; empty where a process exceeded the limit."""
    row: dict[str, Any] = {"curve": curve, "size": size}
    for name in (*FIGURES, *MEMORY):
        values = [one[name] for one in rounds if name in one]
        row[name] = f"{statistics.median(values):.4g}" if values else ""
    return row


def show(rows: list[dict[str, Any]]) -> None:
    """Print a table with each figure and its ratio to the first point of the curve."""
    first: dict[str, dict[str, Any]] = {}
    table = Table("curve", "size", *FIGURES, *MEMORY, title="processor seconds, MiB (ratio)")
    for row in rows:
        base = first.setdefault(row["curve"], row)
        cells = [
            f"{row[name]} ({float(row[name]) / float(base[name]):.2f})" if row[name] else "-"
            for name in (*FIGURES, *MEMORY)
        ]
        table.add_row(row["curve"], f"{row['size']:,}", *cells)
    Console(width=None if sys.stdout.isatty() else 180).print(table)


if __name__ == "__main__":
    sys.exit(main())
