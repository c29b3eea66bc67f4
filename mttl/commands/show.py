"""Show one run: its status, scores, adaptations, and the sizes of its files.

mttl show runs/crossfit

It reads tables only, so it is fast and works for unfinished runs.
"""

import argparse
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from mttl.checkpoints.run_folder import RunFolder, dotted_settings
from mttl.commands.name_checks import run_tasks
from mttl.commands.options import CommandParser, command
from mttl.io.errors import CheckpointError, ConfigError
from mttl.io.files import locked
from mttl.io.reading import parse_json, read_table, read_text, to_number
from mttl.runtime.command import make_console
from mttl.runtime.text_table import TextTable

MEANS = ("mean", "success")  # metrics of the rows of means
SCORED = ("task", "split", "sample", "metric", "score")


def _declare(parser: CommandParser) -> None:
    parser.read.add_argument("run", metavar="RUN", help="folder of a run, finished or not")


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Print the run."""
    run, console = Path(options.run), make_console()
    settings = read_settings(run)
    tasks = run_tasks(run) if (run / "skills").is_dir() else []
    counted = f", {len(tasks)} tasks" if tasks else ""
    console.print(f"{run}: {status_of(run, settings)}{counted}", markup=False)
    backbone = settings.get("backbone.name") or settings.get("backbone.model_type")
    on = f" on {backbone}" if backbone else ""
    console.print(f"{method_of(settings)}{on}, seed {settings.get('run.seed')}", markup=False)
    if (run / "results.csv").is_file():
        console.print(_score_table(run))
    for path in sorted(run.glob("adapt-*/results.jsonl")):
        console.print(f"{path.parent.name}: {_adaptation(path)}", markup=False)
    table = TextTable("Size on disk").words("file or folder").numbers("MB")
    for path in sorted(path for path in run.iterdir() if not path.name.startswith(".")):
        table.add(path.name, size_of(path))
    table.add_section()
    table.add("sum", size_of(run))
    console.print(table)


def read_settings(run: Path) -> dict[str, Any]:
    """Return the settings of a run by dotted name."""
    path = RunFolder(run).config
    if not path.is_file():
        raise ConfigError(f"'{run}' is not a run, because it has no config.yaml")
    return dotted_settings(read_text(path, CheckpointError))


def method_of(settings: Mapping[str, Any]) -> str:
    """Return the router and the skills of a run in words."""
    skills = settings.get("skills.kind")
    return f"{settings.get('router.kind')}, {settings.get('skills.n_skills', '')} {skills} skills"


def status_of(run: Path, settings: Mapping[str, Any]) -> str:
    """Return `finished`, or whether a process trains there, and the last logged step."""
    folder = RunFolder(run)
    if (folder.skills / "meta.json").is_file():
        return "finished"
    rows = read_table(folder.metrics, CheckpointError, ["step"]) if folder.metrics.is_file() else []
    step, total = (rows[-1]["step"] if rows else 0), settings.get("trainer.max_steps", -1)
    state = "training" if _in_use(folder.path / ".lock") else "unfinished"
    return f"{state}, step {step}" + (f" of {total}" if total > 0 else "")


def mean_scores(run: Path) -> str:
    """Return the mean scores of a run in %, by split, or by choice of actions of policies."""
    rows = [row for row in _scores(run, "results.csv") if row["task"] == "mean"]
    return ", ".join(f"{_label(row)} {_percent(row)}" for row in rows if row["metric"] in MEANS)


def size_of(path: Path) -> str:
    """Return the size of a file or of a folder's files in MB."""
    files = path.rglob("*") if path.is_dir() else [path]
    n_bytes = sum(file.lstat().st_size for file in files if not file.is_dir())
    return f"{n_bytes / 1e6:.1f}"


def _score_table(run: Path) -> TextTable:
    """Return scores in %, means over samples, with the baselines."""
    cells: dict[tuple[str, str], dict[str, list[float]]] = {}
    for name in ("results.csv", "baselines.csv"):
        for row in _scores(run, name):
            own = cells.setdefault((row["task"], row["metric"]), {})
            own.setdefault(_label(row), []).append(float(_percent(row)))
    labels = list(dict.fromkeys(label for own in cells.values() for label in own))
    table = TextTable("Scores (%)").words("task", "metric").numbers(*labels)
    for (task, metric), own in cells.items():
        shown = (f"{fmean(own[label]):.1f}" if label in own else "" for label in labels)
        table.add(task, "" if metric == "mean" else metric, then=shown)
    return table


def _scores(run: Path, name: str) -> Iterable[dict[str, str]]:
    path = run / name
    return read_table(path, CheckpointError, SCORED) if path.is_file() else []


def _label(row: Mapping[str, str]) -> str:
    """Return the split, with the baseline if it is one; of policies, the choice of actions."""
    split = row["sample"] if row["split"] == "evaluation" else row["split"]
    return f"{split} {row.get('baseline', '')}".strip()


def _percent(row: Mapping[str, str]) -> str:
    score = to_number(row["score"], f"the score of '{row['task']}'", CheckpointError)
    return f"{score if row['metric'] == 'steps' else 100 * score:.1f}"


def _adaptation(path: Path) -> str:
    """Return the number of finished jobs and the mean over tasks of their test scores."""
    by_task: dict[str, list[float]] = {}
    lines = [line for line in read_text(path, CheckpointError).split("\n") if line]
    for line in lines:
        row = parse_json(line, str(path), CheckpointError, dict)
        score = row.get("test", row.get("greedy"))
        by_task.setdefault(str(row.get("task", row.get("level"))), []).append(score or 0.0)
    mean = 100 * fmean(map(fmean, by_task.values())) if by_task else math.nan
    return f"{len(lines)} finished jobs on {len(by_task)} tasks, mean test score {mean:.1f} %"


def _in_use(lock: Path) -> bool:
    """Return whether another process holds a lock."""
    if not lock.is_file():
        return False
    try:
        with locked(lock, ConfigError("in use")):
            return False
    except ConfigError:
        return True
    except OSError:  # of another user
        return False
