"""Measure how the cost of a training grows with tasks, skills, rows and parameters.

    python scripts/benchmarks/growth.py [--only tasks skills] [--sizes 10 100] [--csv FILE]

Each point is `mttl train` on a task file that the script writes, in a process of its own. Figures
are seconds of processor time without imports, and peak memory; ratios are to the first point of a
curve. Where not varied, there are 10 tasks of 8 training and 2 development rows, 8 skills and the
backbone in data/backbone.
"""

import argparse
import json
import os
import random
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

# Width and layers of T5-like backbones by millions of parameters.
PARAMETERS = {8: (256, 4), 60: (512, 8), 250: (768, 15)}
CURVES = {
    "tasks": [10, 100, 1000, 10_000],
    "skills": [8, 32, 128, 256],
    "rows": [1000, 10_000, 100_000, 1_000_000],
    "parameters": list(PARAMETERS),
}
N_TASKS, N_ROWS, N_DEV = 10, 8, 2
FIGURES = ("conversion", "start", "step", "evaluation", "saving", "ending")
FIGURES += ("conversion_mib", "start_mib", "peak_mib")


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description="Growth of the cost of a training.")
    add = parser.add_argument
    add("--only", nargs="+", choices=CURVES, default=list(CURVES), metavar="CURVE")
    add("--sizes", nargs="+", type=positive, metavar="N", help="leave out other sizes")
    add("--steps", type=positive, default=20, help="of a training (%(default)s)")
    add("--limit", type=positive, default=180, help="seconds of a process (%(default)s)")
    add("--csv", type=Path, metavar="FILE", help="also write the figures here")
    add("--work", nargs=3, metavar=("CURVE", "SIZE", "DIR"), help=argparse.SUPPRESS)
    settings = parser.parse_args(argv)
    if settings.work:
        curve, size, folder = settings.work
        print(json.dumps(work(curve, int(size), Path(folder), settings.steps)))
        return 0
    os.environ["OMP_NUM_THREADS"] = "1"  # of the measured processes
    chosen = {curve: settings.sizes or CURVES[curve] for curve in settings.only}
    points = [(curve, size) for curve in chosen for size in CURVES[curve] if size in chosen[curve]]
    rows: list[dict[str, Any]] = []
    for point in track(random.sample(points, len(points)), console=Console(stderr=True)):
        figures = dict.fromkeys(FIGURES, "") | measure(*point, settings)
        rows.append({"curve": point[0], "size": point[1], **figures})
        rows.sort(key=lambda row: (row["curve"], row["size"]))
        if settings.csv:  # after each point, so that an interruption loses one
            write_table(settings.csv, [*rows[0]], rows)
    show(rows)
    return 0


def measure(curve: str, size: int, settings: argparse.Namespace) -> dict[str, str]:
    """Return the figures of a point; none if its process exceeds the limit."""
    sizes = {"tasks": (size, N_ROWS), "rows": (1, size)}.get(curve, (N_TASKS, N_ROWS))
    with tempfile.TemporaryDirectory() as folder:
        write_tasks(Path(folder), *sizes)
        command = [sys.executable, __file__, "--steps", str(settings.steps)]
        command += ["--work", curve, str(size), folder]
        try:
            found = subprocess.check_output(command, timeout=settings.limit)
        except subprocess.TimeoutExpired:
            print(f"{curve} {size}: over {settings.limit} s", file=sys.stderr)
            return {}
    values = json.loads(found.splitlines()[-1])
    return {name: f"{value:.4g}" for name, value in values.items()}


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
        files = {side: f"{task}_{side}.jsonl" for side in ("train", "dev")}
        tree["tasks"][f"task{task}"] = {"source": files | {"test": files["dev"]}}
    (folder / "tasks.yaml").write_text(json.dumps(tree, indent=1), encoding="utf-8")


def work(curve: str, size: int, folder: Path, steps: int) -> dict[str, float]:
    """Convert the tasks and train on them in this process; return what it took."""
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
        width, n_layers = PARAMETERS[size]
        sizes = {"vocab_size": 384, "d_model": width, "d_ff": 4 * width, "d_kv": 64}
        sizes |= {"num_heads": width // 64, "num_layers": n_layers}
        given += ["backbone.kind=random", "backbone.model_type=t5", "backbone.train=false"]
        given += ["backbone.tokenizer=byte", f"backbone.config={json.dumps(sizes)}"]
    config = load_config("custom.yaml", given)
    imported = time.process_time()
    open_gym(config)
    converted, converted_mib = time.process_time(), peak_mib()
    train(config)
    ended = time.process_time()
    found = json.loads((folder / "clock.json").read_text(encoding="utf-8"))
    found["start"] -= converted
    found |= {"conversion": converted - imported, "conversion_mib": converted_mib}
    return found | {"ending": ended - found.pop("end"), "peak_mib": peak_mib()}


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
