"""Run a study of cross-lingual transfer from its settings file, and keep its results next to it.

python scripts/studies/transfer.py scripts/studies/cross_lingual/gemma.yaml --out runs/transfer
python scripts/studies/transfer.py STUDY.yaml --out DIR --show

A method learns languages from raw text and a task in one language, and answers it in another. Runs
go to OUT; interrupted ones continue. NAME.csv and NAME.md next to NAME.yaml are updated after each
scored method.
"""

import argparse
import csv
import json
import shlex
import shutil
from collections.abc import Sequence
from functools import cached_property, partial
from itertools import chain, product
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field
from run import read_settings

from mttl.adaptation.resumable_jobs import keep_settings
from mttl.commands.comparison.comparison_folder import path_setting, run_all
from mttl.commands.comparison.stages import Cost, Processes
from mttl.commands.comparison.tables import markdown
from mttl.config.section import Section, Seeds
from mttl.inference.input_table import ANSWER, parse_rows_of
from mttl.io import yaml12
from mttl.io.errors import ConfigError, MttlError
from mttl.io.files import locked, write_table, write_text
from mttl.io.reading import read_text
from mttl.metrics.crossfit import score_answers
from mttl.runtime.command import exit_with, make_console
from mttl.tasks.folder import Gym

SAMPLE = 100  # few-shot sample of the tasks
FREE = ("question", "tasks", "directions", "compare")  # may change in a folder of runs
Pair = Annotated[list[str], Field(min_length=2, max_length=2)]


class Arguments(Section):
    """Arguments of the trainings of a method, as on the command line."""

    task: str = ""
    """Of the training of a task."""
    language: str | None = None
    """Of the training of a language; a method without them learns no languages."""


class TransferMethod(Arguments):
    """A method: a command, and arguments that follow the common ones."""

    by: Literal["train", "sparse"] = "train"
    """Command that trains: `mttl train`, or `mttl sparse` for lottery-ticket sparse fine-tuning."""


class TransferStudy(Section):
    """The settings file of a study."""

    question: str
    """What the study answers, and by which numbers."""
    backbone: str
    """Folder of the language model."""
    tokenizer: str | None = None
    """Tokenizer; by default the model's."""
    gym: str
    """Folder of the tasks, which are named KIND_LANGUAGE."""
    texts: dict[str, str]
    """File of raw text of each language."""
    tasks: Annotated[dict[str, Seeds], Field(min_length=1)]
    """Kinds of tasks, such as words, each with the seeds of its trainings. Languages are trained
    with the first seed."""
    lacking: list[str] = Field(default_factory=list)
    """Names of tasks that a target language lacks."""
    directions: list[Pair]
    """Pairs of a source and a target language."""
    train: Arguments
    """Common arguments of `mttl train`."""
    sparse: Arguments = Arguments()
    """Common arguments of `mttl sparse`."""
    score: str = ""
    """Arguments of `mttl predict`."""
    compose: str = ""
    """Arguments of `mttl compose`."""
    methods: Annotated[dict[str, TransferMethod], Field(min_length=1)]
    """What is compared, by name, the most important first."""
    compare: list[Pair]
    """Pairs of methods whose differences are shown."""


class Job(NamedTuple):
    """A method that learns a task in one language and answers it in another."""

    seed: int
    task: str
    source: str
    target: str
    method: str

    def __str__(self) -> str:
        """Return the name in the progress display."""
        return f"{self.training}-{self.target}"

    @property
    def training(self) -> str:
        """Name of the task's training, which jobs of the same source share."""
        return f"{self.method}-{self.task}-{self.source}-{self.seed}"


class Stage(NamedTuple):
    """A command, and if it scores: the scored language, and the one whose skill is used."""

    name: str
    command: list[str]
    scored: str = ""
    skill: str = "none"


class Score(NamedTuple):
    """A score of a job in %; languages are ``source`` or ``target``, a skill may be ``none``."""

    seed: int
    task: str
    source: str
    target: str
    method: str
    scored: str
    skill: str
    score: float
    cpu_minutes: float  # of the training of the task


class Transfer:
    """The jobs of a study, their files in a folder, and scores from elsewhere."""

    def __init__(self, study: TransferStudy, out: Path, scored: Sequence[Score] = ()) -> None:
        self.study, self.out, self.scored = study, out, scored
        jobs = [
            Job(seed, task, source, target, method)
            for seed in dict.fromkeys(chain(*study.tasks.values()))
            for task in (task for task, seeds in study.tasks.items() if seed in seeds)
            for method in study.methods
            for source, target in study.directions
        ]
        self.jobs = [x for x in jobs if f"{x.task}_{x.target}" not in study.lacking]
        tokenizer = ["--tokenizer", study.tokenizer] if study.tokenizer else []
        self._model = ["--model", study.backbone, *tokenizer]

    @cached_property
    def gym(self) -> Gym:
        """The tasks on disk."""
        return Gym(self.study.gym)

    def prepare(self) -> None:
        """Write the settings, and the task file of the languages."""
        text = yaml12.dump(self.study.model_dump(mode="json"))
        problem = f"the runs in '{self.out}' were made with other settings"
        keep_settings(self.out / "study.yaml", text, problem, ignore=FREE)
        tasks = {}
        for name, file in self.study.texts.items():
            tasks[name] = {"kind": "text", "source": {"train": str(Path(file).resolve())}}
        write_text(self.out / "languages.yaml", yaml12.dump({"tasks": tasks}))

    def trainings(self, job: Job) -> list[Stage]:
        """Return the trainings of the languages and of the task, the last."""
        method, seed = self.study.methods[job.method], self.jobs[0].seed
        train = self._train if method.by == "train" else self._tune
        languages = [] if method.language is None else [job.source, job.target]
        names = [f"{job.method}-{language}" for language in languages]
        given = method.language or ""
        made = [train(*one, seed, given) for one in zip(names, languages, strict=True)]
        task = f"{job.task}_{job.source}"
        return [*made, train(job.training, task, job.seed, method.task, names[:1])]

    def scorings(self, job: Job) -> list[Stage]:
        """Return the commands that answer the task in both languages."""
        own, other, method = job.source, job.target, self.study.methods[job.method]
        pairs = [(other, other), (other, own), (own, own)]
        if method.language is None:
            pairs = [(other, "none"), (own, "none")]
        score = self._predict if method.by == "train" else self._compose
        names = ["-".join([job.training, *pair]) for pair in pairs]
        return [
            Stage(name, score(job, *pair), *pair) for name, pair in zip(names, pairs, strict=True)
        ]

    def _train(self, name: str, of: str, seed: int, given: str, on: Sequence[str] = ()) -> Stage:
        """Return `mttl train` of a language or a task."""
        study, runs = self.study, self.out / "runs"
        common = study.train.task
        data = path_setting("data.dir", Path(study.gym))
        if of in study.texts:
            common = study.train.language or ""
            data = path_setting("data.tasks", self.out / "languages.yaml")
        own = [path_setting("run.dir", runs), f"run.name={name}", f"run.seed={seed}", data]
        own += ["backbone.kind=pretrained", path_setting("backbone.name", Path(study.backbone))]
        own += [f"backbone.tokenizer={study.tokenizer}"] if study.tokenizer else []
        own += [f"data.partition={{train: [{of}]}}"]
        own += [f"skills.on=[{json.dumps(str(runs / one))}]" for one in on]
        arguments = shlex.split(f"{common} {given}") + ["--resume"] * (runs / name).is_dir()
        return Stage(name, ["train", *arguments, "-k", *own])

    def _tune(self, name: str, of: str, seed: int, given: str, on: Sequence[str] = ()) -> Stage:
        """Return `mttl sparse` of a language or a task."""
        study = self.study
        common, own = study.sparse.task, ["--gym", study.gym, "--task", of]
        if of in study.texts:
            common, own = study.sparse.language or "", ["--text", study.texts[of]]
        own += [text for one in on for text in ("--on", self._skill(one))]
        own += ["--seed", str(seed), "--resume", "--out", self._skill(name)]
        return Stage(name, ["sparse", *self._model, *shlex.split(f"{common} {given}"), *own])

    def _predict(self, job: Job, scored: str, skill: str) -> list[str]:
        runs = self.out / "runs"
        file = self.gym.file(f"{job.task}_{scored}", "test", SAMPLE)
        out = self._answers(f"{job.training}-{scored}-{skill}")
        command = [
            "predict",
            "--from",
            str(runs / job.training),
            "--in",
            str(file),
            "--out",
            str(out),
        ]
        on = ["--on", str(runs / f"{job.method}-{skill}")] if skill == job.target else []
        return [*command, *on, *shlex.split(self.study.score)]

    def _compose(self, job: Job, scored: str, skill: str) -> list[str]:
        names = [f"{job.method}-{skill}"] * (skill != "none") + [job.training]
        given = ["--gym", self.study.gym, "--score", f"{job.task}_{scored}"]
        given += ["--skills", *map(self._skill, names)]
        return ["compose", *self._model, *shlex.split(self.study.compose), *given]

    def _skill(self, name: str) -> str:
        return str(self.out / "skills" / f"{name}.safetensors")

    def _answers(self, name: str) -> Path:
        return self.out / "answers" / f"{name}.jsonl"

    def _log(self, stage: Stage) -> Path:
        return self.out / "logs" / f"{stage.name}.log"

    def _cost(self, stage: Stage) -> Path:
        return self.out / "costs" / f"{stage.name}.json"

    def ended(self, job: Job) -> bool:
        """Return whether a job has been scored, here or elsewhere."""
        if any(score[:5] == job for score in self.scored):
            return True
        return all(Cost.so_far(self._cost(stage)).ended for stage in self.scorings(job))

    def run(self, job: Job, processes: Processes) -> None:
        """Run the missing commands of a job."""
        for stage in [*self.trainings(job), *self.scorings(job)]:
            cost = self._cost(stage)
            if not Cost.so_far(cost).ended:  # a language belongs to several jobs
                processes.run(["-m", "mttl", *stage.command], self._log(stage), cost)
            if Cost.so_far(cost).ended:  # not if it was stopped; checkpoints are large
                shutil.rmtree(self.out / "runs" / stage.name / "checkpoints", ignore_errors=True)

    def scores(self) -> list[Score]:
        """Return the scores of all finished jobs."""
        found, elsewhere = list(self.scored), {score[:5] for score in self.scored}
        for job in (job for job in self.jobs if job not in elsewhere and self.ended(job)):
            cost = Cost.so_far(self._cost(self.trainings(job)[-1]))
            words = {job.source: "source", job.target: "target", "none": "none"}
            for stage in self.scorings(job):
                own = words[stage.scored], words[stage.skill], self._score(job, stage)
                found.append(Score(*job, *own, cost.cpu_minutes))
        return found

    def _score(self, job: Job, stage: Stage) -> float:
        task = f"{job.task}_{stage.scored}"
        metric, path = self.gym.metric(task), self._answers(stage.name)
        if stage.command[0] == "compose":  # prints the score, with one digit
            log = read_text(self._log(stage), MttlError)
            return float(log.rpartition(f"{metric} ")[2].split()[0])
        found = parse_rows_of(read_text(path, MttlError), "jsonl", str(path))
        rows = self.gym.rows(task, "test", SAMPLE)
        given = [str(row[ANSWER]) for row in found], [row.outputs for row in rows]
        return 100 * score_answers(metric, *given, [row.source for row in rows])

    def write(self, path: Path) -> str:
        """Write the scores and the tables of all finished jobs next to the settings."""
        scores = self.scores()
        if not scores:
            return ""
        rows = (x._asdict() | {"score": f"{x.score:.2f}"} for x in scores)
        write_table(path.with_suffix(".csv"), Score._fields, rows)
        text = "\n".join([self._means(scores), self._differences(scores)])
        n_ended = sum(map(self.ended, self.jobs))
        text = f"{n_ended} of {len(self.jobs)} jobs have finished. Scores in %.\n\n{text}"
        write_text(path.with_suffix(".md"), text)
        return text

    def _means(self, scores: Sequence[Score]) -> str:
        """Return the means over seeds, by task, method and language skill."""
        pairs = self.study.directions
        arrows = [(f"{a} → {b}", a, b, "target") for a, b in pairs]
        arrows += [(f"{a} → {a}", a, b, "source") for a, b in dict(pairs[::-1]).items()]
        lines = []
        for task, method, skill in dict.fromkeys((x.task, x.method, x.skill) for x in scores):
            cells = [f"`{task}`", f"`{method}`", skill]
            for _, source, target, scored in arrows:
                own = task, source, target, method, scored, skill
                values = [x.score for x in scores if x[1:7] == own]
                cells.append(f"{fmean(values):.1f}" if values else "")
            lines.append(cells)
        heads = ["task", "method", "language skill", *(arrow for arrow, *_ in arrows)]
        return markdown(
            heads, sorted(lines, key=lambda cells: [*self.study.tasks].index(cells[0][1:-1]))
        )

    def _differences(self, scores: Sequence[Score]) -> str:
        """Return the differences of methods on the target language, as means over seeds."""
        found = [x for x in scores if x.scored == "target" and x.skill != "source"]
        best: dict[tuple[Any, ...], float] = {x[:5]: x.score for x in found}
        lines = []
        for task, (one, other) in product(self.study.tasks, self.study.compare):
            cells = []
            for pair in self.study.directions:
                keys = [(x.seed, task, *pair) for x in self.jobs if x[1:] == (task, *pair, one)]
                pairs = [(best.get((*key, one)), best.get((*key, other))) for key in keys]
                found = [a - b for a, b in pairs if a is not None and b is not None]
                cells.append(f"{fmean(found):+.1f}" if found else "")
            if any(cells):
                lines.append([f"`{one}` − `{other}`", f"`{task}`", *cells])
        arrows = (" → ".join(pair) for pair in self.study.directions)
        return markdown(["target language", "task", *arrows], lines)


def main(arguments: list[str] | None = None) -> int:
    """Run what is missing, and write the results next to the settings."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("study", type=Path, metavar="FILE", help="settings of the study")
    add("--out", type=Path, required=True, metavar="DIR", help="folder of the runs")
    add("--skip-scored", action="store_true", help="do not repeat jobs with scores in NAME.csv")
    add("--threads", type=int, default=1, metavar="N", help="threads of a command (%(default)s)")
    add("--show", action="store_true", help="print the commands and run nothing")
    options = parser.parse_args(arguments)
    scored = read_scores(options.study) if options.skip_scored else []
    transfer = Transfer(read_transfer(options.study), options.out, scored)
    console, failed = make_console(), list[str]()
    if options.show:
        for job in transfer.jobs:
            for stage in [*transfer.trainings(job), *transfer.scorings(job)]:
                console.print(shlex.join(["mttl", *stage.command]), markup=False, soft_wrap=True)
        return 0

    def run(job: Job, processes: Processes) -> None:
        try:
            transfer.run(job, processes)
        except MttlError as error:  # the others are run
            failed.append(f"{job}: {error}")

    busy = ConfigError(f"another process writes to '{options.out}'; wait for it or stop it")
    with locked(options.out / ".lock", busy):
        transfer.prepare()
        todo = [job for job in transfer.jobs if not transfer.ended(job)]
        write = partial(transfer.write, options.study)
        run_all(todo, run, 1, write, options.threads)
        console.print("\n".join([write(), *failed]), markup=False, soft_wrap=True)
    return 1 if failed else 0


def read_scores(path: Path) -> list[Score]:
    """Return the rows of the table of scores next to the settings."""
    with path.with_suffix(".csv").open(encoding="utf-8") as file:
        rows: list[Any] = list(csv.DictReader(file))
    numbers = {"seed": int, "score": float, "cpu_minutes": float}
    return [Score(**row | {key: kind(row[key]) for key, kind in numbers.items()}) for row in rows]


def read_transfer(path: Path) -> TransferStudy:
    """Return the study of a settings file; a `ConfigError` if its settings are wrong."""
    study = read_settings(path, TransferStudy)
    for field, known in (("directions", study.texts), ("compare", study.methods)):
        for name in (name for pair in getattr(study, field) for name in pair):
            if name not in known:
                raise ConfigError(f"'{path}': {field}: '{name}' must be one of {', '.join(known)}")
    return study


if __name__ == "__main__":
    exit_with(main)
