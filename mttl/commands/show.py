"""Show one run: its status, scores, adaptations, and the sizes of its files.

mttl show runs/crossfit

Only tables are read, so it works for unfinished runs.
"""

import argparse
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

from mttl.analysis.saved_scores import saved_scores
from mttl.checkpoints.run_folder import RunFolder, settings_of
from mttl.commands.options import CommandParser, command
from mttl.io.errors import CheckpointError, ConfigError
from mttl.io.files import locked
from mttl.io.reading import parse_json, read_table, read_text
from mttl.runtime.command import make_console
from mttl.runtime.text_table import TextTable

Settings = dict[str, Any]


def _declare(parser: CommandParser) -> None:
    parser.read.add_argument("run", metavar="RUN", help="folder of a run, finished or not")


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Print the run."""
    run, console = Path(options.run), make_console()
    settings = settings_of(run)
    backbone = settings.get("backbone.name") or settings.get("backbone.model_type") or "policies"
    lines = [f"{run}: {status_of(run, settings)}", f"{method_of(settings)} on {backbone}"]
    adapted = [*run.glob("results.jsonl"), *sorted(run.glob("adapt-*/results.jsonl"))]
    lines += map(_adaptation, adapted)
    console.print("\n".join(lines), markup=False)
    cells: dict[tuple[str, str], dict[str, list[float]]] = {}
    files = RunFolder(run)
    for row in [*saved_scores(files.results), *saved_scores(files.baselines)]:
        own = cells.setdefault((row.task, row.metric), {})
        own.setdefault(f"{row.split} {row.baseline}".strip(), []).append(row.percent)
    labels = list(dict.fromkeys(label for own in cells.values() for label in own))
    table = TextTable("Scores (%)", digits=1).words("task", "metric").numbers(*labels)
    for names, own in cells.items():
        table.add(*names, then=(fmean(own[label]) if label in own else "" for label in labels))
    sizes = TextTable("Size on disk", digits=1).words("file or folder").numbers("MB")
    for path in sorted(path for path in run.iterdir() if not path.name.startswith(".")):
        sizes.add(path.name, megabytes(path))
    sizes.add("sum", megabytes(run))
    console.print(*[table] * bool(cells), sizes)


def method_of(settings: Settings) -> str:
    """Return the router and the skills of a run in words."""
    skills = settings.get("skills.kind")
    return f"{settings.get('router.kind')}, {settings.get('skills.n_skills', '')} {skills} skills"


def status_of(run: Path, settings: Settings) -> str:
    """Return whether a run has finished or a process trains there, and the last logged step."""
    folder = RunFolder(run)
    if (folder.skills / "meta.json").is_file():
        return "finished"
    if (run / "results.jsonl").is_file():
        return "adaptations of a run"
    rows = read_table(folder.metrics, CheckpointError, ["step"]) if folder.metrics.is_file() else []
    step, total = (rows[-1]["step"] if rows else 0), settings.get("trainer.max_steps", -1)
    state = "training" if _in_use(run / ".lock") else "unfinished"
    return f"{state}, step {step}" + (f" of {total}" if total > 0 else "")


def megabytes(path: Path) -> float:
    """Return the size of a file, or of all files in a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.lstat().st_size for file in files if not file.is_dir()) / 1e6


def _adaptation(path: Path) -> str:
    """Return the number of finished jobs and the mean over tasks of their test scores."""
    by_task: dict[str, list[float]] = {}
    lines = [line for line in read_text(path, CheckpointError).split("\n") if line]
    for line in lines:
        row = parse_json(line, str(path), CheckpointError, dict)
        score = row.get("test", row.get("greedy")) or 0.0  # null if undefined
        by_task.setdefault(str(row.get("task", row.get("level"))), []).append(score)
    mean = 100 * fmean(map(fmean, by_task.values())) if by_task else 0.0
    jobs = f"{len(lines)} finished jobs on {len(by_task)} tasks"
    return f"{path.parent.name}: {jobs}, mean test score {mean:.1f} %"


def _in_use(lock: Path) -> bool:
    if lock.is_file():
        with suppress(OSError):  # of another user
            try:
                with locked(lock, ConfigError("in use")):
                    pass
            except ConfigError:
                return True
    return False
