"""Train every router and every kind of skill on the main job's tasks, and print one table.

python scripts/train_all_kinds.py --steps 800 --out runs/all_kinds
python scripts/train_all_kinds.py -c crossfit.yaml+backbone/tiny_t5.yaml --out runs/trained_along
python scripts/train_all_kinds.py --fragments skills --steps 100 -k data.batch_size=16 --out runs/s

Each run is `pl_train.py -c CONFIG+<fragment>` with the same budget and seed, in a process of
its own. Runs that have ended are read, not repeated; an interrupted one is resumed.
"""

import argparse
import csv
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track

from mttl.command import READ, WORK, WRITTEN, add_overrides, exit_with, make_parser
from mttl.config.load import load_config
from mttl.errors import MttlError
from mttl.files import write_text
from mttl.shipped_files import shipped_folder

ROOT = Path(__file__).resolve().parent.parent
# Those that need no other gym and no library; tokens are in the comparison of methods.
ROUTERS = (
    "router/polytropon",
    "router/polytropon_ibp",
    "router/multi_head",
    "router/shared",
    "router/private",
    "router/expert",
    "router/average",
    "router/task_moe",
    "router/hyperformer",
    "router/c_poly",
    "router/categorical",
    "router/score_function",
    "router/adamix",
    "router/smear",
    "router/coefficients",
)


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    parameters: int
    dev: float
    test: float
    minutes: float


def main(arguments: list[str] | None = None) -> int:
    """Train what is missing, and print and write the table."""
    options = parse(arguments)
    out = Path(options.out)
    rows = []
    fragments = [one for name in options.fragments for one in expanded(name)]
    for fragment in track(fragments, description="training", transient=True):
        files = f"{options.config}+{fragment}.yaml"
        more = options.override
        rows.append(train(files, fragment, options.steps, options.seed, out, more))
        write_text(out / "table.md", markdown(rows, options.steps, options.seed))
    Console().print(markdown(rows, options.steps, options.seed), markup=False, highlight=False)
    return 0


def expanded(name: str) -> list[str]:
    """Return the fragments that a name stands for: itself, or all of a room."""
    if "/" in name:
        return [name]
    found = sorted((shipped_folder() / "configs" / name).glob("*.yaml"))
    if not found:
        raise MttlError(f"--fragments {name} must be ROOM/NAME, or a room of configs, as skills")
    return [f"{name}/{path.stem}" for path in found]


def train(files: str, name: str, steps: int, seed: int, out: Path, more: Sequence[str] = ()) -> Row:
    """Run a configuration, unless it has ended before, and read its scores."""
    from mttl.checkpoint import count_saved

    folder = out / name.replace("/", "-")
    minutes = folder / "minutes.json"
    if not minutes.is_file():
        settings = [
            *more,
            f"run.dir={out}",
            f"run.name={folder.name}",
            f"run.seed={seed}",
            f"trainer.max_steps={steps}",
            f"trainer.val_check_interval={steps}",
        ]
        load_config(files, settings)  # a mistake should not cost the runs before it
        command = [sys.executable, str(ROOT / "pl_train.py"), "-c", files, "-k", *settings]
        if (folder / "checkpoints" / "last.ckpt").is_file():
            command.append("--resume")
        started = time.monotonic()
        out.mkdir(parents=True, exist_ok=True)
        log_file = out / f"{folder.name}.log"
        with log_file.open("a") as log:
            ended = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False)
        if ended.returncode:
            raise MttlError(f"training {name} failed; see {log_file}")
        write_text(minutes, json.dumps((time.monotonic() - started) / 60))
    with (folder / "results.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["task"] == "mean"]
    means = {row["split"]: float(row["score"]) for row in rows}
    return Row(
        name,
        count_saved(folder / "skills" / "skills.safetensors"),
        100 * means["dev"],
        100 * means["test"],
        json.loads(minutes.read_text()),
    )


def markdown(rows: list[Row], steps: int, seed: int) -> str:
    """Return the table as Markdown."""
    lines = [
        f"{steps} steps, seed {seed}; mean score over the training tasks in per cent.",
        "",
        "| fragment | skill parameters | dev | test | minutes |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        scores = f"{row.dev:.1f} | {row.test:.1f} | {row.minutes:.1f}"
        lines.append(f"| `{row.name}` | {row.parameters:,} | {scores} |")
    return "\n".join(lines) + "\n"


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    add = parser.group(READ).add_argument
    add("-c", "--config", default="crossfit.yaml", help="files below the fragments (%(default)s)")
    add("--fragments", nargs="+", default=[*ROUTERS, "skills"], metavar="ROOM[/NAME]", help="(all)")
    add_overrides(parser, "override a setting of all runs; may be repeated")
    add = parser.group(WORK).add_argument
    add("--steps", type=int, default=800, help="optimizer steps of each run (%(default)s)")
    add("--seed", type=int, default=13, help="(%(default)s)")
    out = parser.group(WRITTEN).add_argument
    out("--out", default="runs/all_kinds", help="folder of the runs and the table (%(default)s)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    exit_with(main)
