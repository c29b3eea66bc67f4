"""Run a study whose methods are commands, and write its scores, table and figure next to it.

python scripts/studies/commands.py scripts/studies/faithful_dialogue/gym.yaml --out runs/dialogue

Each command runs once per seed. Finished commands are not repeated, and interrupted ones resume. If
a method has several weights, the one with the best scores on dev counts. NAME.csv, NAME.md and
NAME.svg are written next to NAME.yaml.
"""

import argparse
import csv
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any, NamedTuple

from pydantic import Field
from run import read_settings

from mttl.analysis.figures.canvas import save_figure
from mttl.analysis.figures.curves import trade_offs
from mttl.commands.comparison.comparison_folder import run_all
from mttl.commands.comparison.stages import Cost, Processes
from mttl.commands.comparison.tables import markdown
from mttl.config.section import Section, Seeds
from mttl.io import yaml12
from mttl.io.errors import MttlError
from mttl.io.files import locked, write_table, write_text
from mttl.runtime.command import exit_with, make_console

SPLITS = ("dev", "test")
Row = dict[str, Any]  # a score, with FIELDS
FIELDS = ("seed", "split", "method", "weight", "metric", "score")


class AnsweringMethod(Section):
    """A command of mttl that writes a table of answers."""

    command: str
    """The command, with {answers}, {split}, {weight} and the study's names."""
    weights: list[float] = Field(default_factory=lambda: [1.0])
    """Values of {weight}."""


class CommandStudy(Section):
    """The settings file of a study. Texts may contain {seed}, {out}, and the names in `names`."""

    question: str
    """What the study answers, and by which numbers."""
    seeds: Seeds
    """Seeds; every command runs once for each."""
    names: dict[str, str] = Field(default_factory=dict)
    """Texts that replace names in commands; a text may use earlier names."""
    prepare: dict[str, str]
    """Commands in their order by name: of mttl, or a script if it ends in .py."""
    methods: Annotated[dict[str, AnsweringMethod], Field(min_length=1)]
    """Methods by name."""
    sweeps: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Settings of `mttl sweep` by name, whose methods are compared too; they may use {split}."""
    metrics: Annotated[list[str], Field(min_length=2)]
    """Metrics of the answers; the figure shows the first against the others."""
    references: str = "{{output}}"
    """Template of the right answer in the columns of a table, as for `mttl score`."""
    choose: Annotated[list[str], Field(min_length=1)]
    """Metrics whose mean on dev chooses the weight of a method."""


class Stage(NamedTuple):
    """A command with a name, and the file of scores that it writes."""

    name: str
    command: list[str]
    scores: Path | None = None


class Job(NamedTuple):
    """All commands of a seed."""

    seed: int

    def __str__(self) -> str:
        """Return the name in the progress display."""
        return f"seed {self.seed}"


class Commands:
    """The commands of a study, their files in a folder, and scores from elsewhere."""

    def __init__(self, study: CommandStudy, out: Path, scored: Sequence[Row] = ()) -> None:
        self.study, self.out, self.scored = study, out, scored

    def names(self, seed: int, **own: object) -> dict[str, str]:
        """Return the texts of all names."""
        found = {"seed": str(seed), "out": str(self.out)} | {k: str(v) for k, v in own.items()}
        for name, text in self.study.names.items():
            found[name] = text.format_map(found)
        return found

    def stages(self, seed: int) -> Iterator[Stage]:
        """Yield the commands of a seed in their order."""
        study, place = self.study, self.out / f"seed-{seed}"
        for name, text in study.prepare.items():
            yield Stage(name, shlex.split(text.format_map(self.names(seed))))
        for sweep in study.sweeps:
            for split in SPLITS:
                folder = place / f"{sweep}-{split}"
                words = ["sweep", f"{folder}.yaml", "--out", str(folder)]
                yield Stage(f"sweep-{sweep}-{split}", words, folder / "scores.csv")
        for method, one in study.methods.items():
            for split in SPLITS:
                for weight in one.weights:
                    name = f"{method}-{weight:g}-{split}"
                    answers, scores = place / f"{name}.jsonl", place / f"{name}.csv"
                    own = {"answers": answers, "split": split, "weight": f"{weight:g}"}
                    text = one.command.format_map(self.names(seed, **own))
                    yield Stage(name, shlex.split(text))
                    right = study.references.format_map(self.names(seed))
                    words = ["score", str(answers), "--references", right, "--metric"]
                    yield Stage(
                        f"{name}-score", [*words, *study.metrics, "--out", str(scores)], scores
                    )

    def run(self, job: Job, processes: Processes) -> None:
        """Run the missing commands of a seed."""
        place = self.out / f"seed-{job.seed}"
        place.mkdir(parents=True, exist_ok=True)
        for sweep, settings in self.study.sweeps.items():
            for split in SPLITS:
                tree = settings | {"metrics": self.study.metrics}
                text = yaml12.dump(filled(tree, self.names(job.seed, split=split)))
                write_text(place / f"{sweep}-{split}.yaml", text)
        for stage in self.stages(job.seed):
            cost = place / "costs" / f"{stage.name}.json"
            if not Cost.so_far(cost).ended:
                processes.run(started(stage.command), place / "logs" / f"{stage.name}.log", cost)

    def ended(self, job: Job) -> bool:
        """Return whether all commands of a seed have succeeded, here or elsewhere."""
        if any(row["seed"] == job.seed for row in self.scored):
            return True
        costs = self.out / f"seed-{job.seed}" / "costs"
        return all(Cost.so_far(costs / f"{x.name}.json").ended for x in self.stages(job.seed))

    def scores(self) -> list[Row]:
        """Return the scores of the finished seeds, a row for each metric."""
        found = list(self.scored)
        here = {*self.study.seeds} - {row["seed"] for row in found}
        for seed in sorted(seed for seed in here if self.ended(Job(seed))):
            for stage in self.stages(seed):
                if stage.scores is not None:
                    found += self._read(seed, stage.name, stage.scores)
        return found

    def _read(self, seed: int, name: str, scores: Path) -> Iterator[Row]:
        with scores.open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        for row in rows:
            if "weight" in row:  # of a sweep, with a column for each metric
                split, method, weight = name.split("-")[-1], row["method"], float(row["weight"])
                if method == "base":  # without a merge
                    continue
                cells = {metric: row[metric] for metric in self.study.metrics}
            else:
                method, weight, split = name.removesuffix("-score").rsplit("-", 2)
                weight, cells = float(weight), {row["metric"]: row["score"]}
            for metric, score in cells.items():
                own = seed, split, method, weight, metric, float(score)
                yield dict(zip(FIELDS, own, strict=True))

    def write(self, path: Path) -> str:
        """Write scores, table and figure of the finished seeds next to the settings."""
        rows = self.scores()
        if not rows:
            return ""
        write_table(path.with_suffix(".csv"), FIELDS, rows)
        points = means(rows, "test")
        lines = [self._line(rows, method) for method in dict.fromkeys(m for m, _ in points)]
        text = markdown(["method", "weight", *map(short, self.study.metrics)], lines)
        n_seeds = len({row["seed"] for row in rows})
        text = f"Scores on test in %, means and deviations over {n_seeds} seeds.\n\n{text}"
        write_text(path.with_suffix(".md"), text)
        drawn = [
            {"method": method, "weight": weight} | {short(name): x for name, x in own.items()}
            for (method, weight), own in points.items()
        ]
        figure = trade_offs(drawn, [*map(short, self.study.metrics)], title="numbers are weights")
        save_figure(figure, path.with_suffix(""))
        return text

    def _line(self, rows: Sequence[Row], method: str) -> list[str]:
        of_dev = {key[1]: own for key, own in means(rows, "dev").items() if key[0] == method}
        best = max(of_dev, key=lambda weight: fmean(of_dev[weight][x] for x in self.study.choose))
        cells = [f"`{method}`", f"{best:g}" if len(of_dev) > 1 else ""]
        for metric in self.study.metrics:
            own = {"split": "test", "method": method, "weight": best, "metric": metric}
            found = [100 * row["score"] for row in rows if own.items() <= row.items()]
            spread = f" ± {stdev(found):.1f}" if len(found) > 1 else ""
            cells.append(f"{fmean(found):.1f}{spread}")
        return cells


def read_scores(path: Path) -> list[Row]:
    """Return the rows of the table of scores next to the settings."""
    with path.with_suffix(".csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    numbers = {"seed": int, "weight": float, "score": float}
    return [{key: numbers.get(key, str)(text) for key, text in row.items()} for row in rows]


def started(command: list[str]) -> list[str]:
    """Return the arguments of Python for a command; a training that was interrupted resumes."""
    if command[0].endswith(".py"):
        return command
    settings = dict(word.split("=", 1) for word in command if "=" in word)
    run = Path(settings.get("run.dir", "")) / settings.get("run.name", "")
    resumed = ["--resume"] * (command[0] == "train" and "run.name" in settings and run.is_dir())
    return ["-m", "mttl", *command, *resumed]


def filled(tree: Any, names: dict[str, str]) -> Any:
    """Return settings whose texts have values for names."""
    if isinstance(tree, dict):
        return {key: filled(value, names) for key, value in tree.items()}
    if isinstance(tree, list):
        return [filled(value, names) for value in tree]
    return tree.format_map(names) if isinstance(tree, str) else tree


def means(rows: Sequence[Row], split: str) -> dict[tuple[str, float], dict[str, float]]:
    """Return the mean over seeds of each metric by method and weight."""
    found: dict[tuple[str, float], dict[str, list[float]]] = {}
    for row in rows:
        if row["split"] == split:
            own = found.setdefault((row["method"], row["weight"]), {})
            own.setdefault(row["metric"], []).append(row["score"])
    return {key: {m: fmean(values) for m, values in own.items()} for key, own in found.items()}


def short(metric: str) -> str:
    """Return the name of a metric without settings and module."""
    return metric.split()[0].rpartition(":")[2]


def main(arguments: list[str] | None = None) -> int:
    """Run what is missing, and write the results next to the settings."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("study", type=Path, metavar="FILE", help="settings of the study")
    add("--out", type=Path, required=True, metavar="DIR", help="folder of all files")
    add("--skip-scored", action="store_true", help="do not repeat seeds with scores in NAME.csv")
    add("--seeds", type=int, nargs="+", metavar="N", help="only these seeds")
    add("--show", action="store_true", help="print the commands and run nothing")
    options = parser.parse_args(arguments)
    scored = read_scores(options.study) if options.skip_scored else []
    commands = Commands(read_settings(options.study, CommandStudy), options.out, scored)
    seeds, console = options.seeds or commands.study.seeds, make_console()
    if options.show:
        for stage in (stage for seed in seeds for stage in commands.stages(seed)):
            console.print(shlex.join(stage.command), markup=False, soft_wrap=True)
        return 0
    todo = [job for job in map(Job, seeds) if not commands.ended(job)]
    busy = MttlError(f"another process writes to '{options.out}'; wait for it or stop it")
    options.out.mkdir(parents=True, exist_ok=True)
    with locked(options.out / ".lock", busy):
        run_all(todo, commands.run, 1, lambda: commands.write(options.study))
        console.print(commands.write(options.study), markup=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    exit_with(main)
