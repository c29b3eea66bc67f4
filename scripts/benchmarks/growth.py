"""Measure how the cost of a training grows with tasks, skills, rows and parameters.

    python scripts/benchmarks/growth.py [--only tasks skills] [--sizes 10 100] [--csv FILE]

Each point is `mttl train` on a task file that the script writes, in a process of its own; the
conversion of many tasks or rows has another process. Figures are seconds of processor time without
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

# Sizes of T5-like backbones by millions of parameters; the last two are T5-small and T5-base.
T5_SIZES = "vocab_size", "d_model", "d_kv", "num_heads", "d_ff", "num_layers"
PARAMETERS = {
    8: (384, 256, 64, 4, 1024, 4),
    60: (32128, 512, 64, 8, 2048, 6),
    220: (32128, 768, 64, 12, 3072, 12),
}
CURVES = {
    "tasks": [10, 100, 1000, 10_000],
    "skills": [8, 32, 128, 256],
    "rows": [1000, 10_000, 100_000, 1_000_000],
    "parameters": list(PARAMETERS),
}
CONVERTED = "tasks", "rows"  # curves whose conversion is measured
N_TASKS, N_ROWS, N_DEV = 10, 8, 2
FIGURES = ("conversion", "start", "step", "evaluation", "saving", "ending")
FIGURES += ("conversion_mib", "start_mib", "peak_mib")


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description="Growth of the cost of a training.")
    add = parser.add_argument
    add("--only", nargs="+", choices=CURVES, default=list(CURVES), metavar="CURVE")
    add("--sizes", nargs="+", type=positive, metavar="N", help="leave out other sizes")
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
    points = [(curve, size) for curve in settings.only for size in CURVES[curve]]
    points = [point for point in points if point[1] in (settings.sizes or CURVES[point[0]])]
    order = [point for _ in range(settings.rounds) for point in random.sample(points, len(points))]
    found: dict[tuple[str, int], list[dict[str, float]]] = {point: [] for point in points}
    for point in track(order, "measuring", console=Console(stderr=True), transient=True):
        found[point].append(measure(*point, settings))
    rows = [
        {"curve": curve, "size": size, **{name: middle(rounds, name) for name in FIGURES}}
        for (curve, size), rounds in found.items()
    ]
    show(rows)
    if settings.csv:
        write_table(settings.csv, ["curve", "size", *FIGURES], rows)
    return 0


def measure(curve: str, size: int, settings: argparse.Namespace) -> dict[str, float]:
    """Return the figures of a point; without those of a process that exceeds the limit."""
    figures: dict[str, float] = {}
    n_tasks = {"tasks": size, "rows": 1}.get(curve, N_TASKS)
    with tempfile.TemporaryDirectory() as folder:
        write_tasks(Path(folder), n_tasks, size if curve == "rows" else N_ROWS)
        for what in ("convert", "train") if curve in CONVERTED else ("train",):
            command = [sys.executable, __file__, "--steps", str(settings.steps)]
            command += ["--work", curve, str(size), what, folder]
            limits: dict[str, Any] = {"timeout": settings.limit, "check": True}
            limits["env"] = {**os.environ, "OMP_NUM_THREADS": "1"}
            try:
                done = subprocess.run(command, stdout=subprocess.PIPE, **limits)
            except subprocess.TimeoutExpired:
                print(f"{curve} {size}, {what}: over {settings.limit} s", file=sys.stderr)
                break
            figures |= json.loads(done.stdout.splitlines()[-1])
    return figures


def write_tasks(folder: Path, n_tasks: int, n_rows: int) -> None:
    """Write a task file, and the rows of each task."""
    tree: dict[str, Any] = {"kind": "text-to-text", "k": "all", "metric": "EM", "tasks": {}}
    tree |= {"input": "{word}", "output": "{answer}"}
    for task in range(n_tasks):
        for name, number in (("train", n_rows), ("dev", N_DEV)):
            with (folder / f"{task}_{name}.jsonl").open("w", encoding="utf-8") as file:
                for row in range(number):
                    word = f"{(row * n_tasks + task) * 7919 % 10_000_000:07}"
                    file.write(json.dumps({"word": word, "answer": word[3::-1]}) + "\n")
        files = {"train": "train", "dev": "dev", "test": "dev"}
        source = {side: f"{task}_{name}.jsonl" for side, name in files.items()}
        tree["tasks"][f"task{task}"] = {"source": source}
    (folder / "tasks.yaml").write_text(json.dumps(tree, indent=1), encoding="utf-8")


def work(curve: str, size: int, what: str, folder: Path, steps: int) -> dict[str, float]:
    """Convert the tasks or train on them in this process; return what it took."""
    from mttl.commands.train_tasks import train
    from mttl.config.load import load_config
    from mttl.data.chosen_tasks import open_gym

    given = [f"data.tasks={folder / 'tasks.yaml'}", f"run.dir={folder}", "run.name=run"]
    given += ["data.evaluate=[dev]", "data.eval_batch_size=256", f"trainer.max_steps={steps}"]
    given += ["trainer.accelerator=cpu", "trainer.val_check_interval=1.0"]
    clock = {"kind": f"{Path(__file__).with_name('_clock.py')}:Clock", "folder": str(folder)}
    given += [f"trainer.callbacks={json.dumps([clock])}"]
    given += [f"skills.n_skills={size}"] if curve == "skills" else []
    if curve == "parameters":
        sizes = dict(zip(T5_SIZES, PARAMETERS[size], strict=True))
        given += ["backbone.kind=random", "backbone.model_type=t5", "backbone.train=false"]
        given += ["backbone.tokenizer=byte", f"backbone.config={json.dumps(sizes)}"]
    config = load_config("custom.yaml", given)
    imported = time.process_time()
    open_gym(config)
    converted = time.process_time()
    if what == "convert":
        return {"conversion": converted - imported, "conversion_mib": peak_mib()}
    train(config)
    ended = time.process_time()
    found = json.loads((folder / "clock.json").read_text(encoding="utf-8"))
    found["start"] -= imported if curve in CONVERTED else converted
    return found | {"ending": ended - found.pop("end"), "peak_mib": peak_mib()}


def middle(rounds: list[dict[str, float]], name: str) -> str:
    """Return the median of a figure; empty where the process exceeded the limit."""
    values = [one[name] for one in rounds if name in one]
    return f"{statistics.median(values):.4g}" if values else ""


def show(rows: list[dict[str, Any]]) -> None:
    """Print a table with each figure and its ratio to the first point of the curve."""
    table = Table("curve", "size", *FIGURES, title="processor seconds, MiB (ratio)")
    first: dict[str, Any] = {}
    for row in rows:
        pairs = [(row[x], first.setdefault(row["curve"], row)[x]) for x in FIGURES]
        cells = [f"{x} ({float(x) / float(base):.2f})" if x and base else "-" for x, base in pairs]
        table.add_row(row["curve"], f"{row['size']:,}", *cells)
    Console(width=None if sys.stdout.isatty() else 180).print(table)


if __name__ == "__main__":
    sys.exit(main())
