"""Run a study of cross-lingual transfer from its settings file, and keep its results next to it.

python scripts/studies/cross_lingual/transfer.py scripts/studies/cross_lingual/gemma.yaml --out DIR
python scripts/studies/cross_lingual/transfer.py STUDY.yaml --out DIR --show

A method learns languages from raw text, a task in one language, and answers it in another. All
runs go to OUT; what has ended is read, and what was interrupted continues. Next to NAME.yaml stand
NAME.csv and NAME.md, written again whenever a task has been scored. `--show` prints the commands.
"""

import argparse
import json
import shlex
import shutil
from collections.abc import Sequence
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, ValidationError

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
FREE = ("question", "tasks", "directions", "seeds", "compare")  # may change in a folder of runs


class Arguments(Section):
    """Arguments of the two trainings of a method, as on the command line."""

    task: str = ""
    """Of the training of a task."""
    language: str | None = None
    """Of the training of a language; null: the method learns no languages."""


class Method(Arguments):
    """A method: a command, and arguments that follow the common ones."""

    by: Literal["train", "sparse"] = "train"
    """Command that trains: `mttl train`, or `mttl sparse` for lottery-ticket sparse fine-tuning."""


class Study(Section):
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
    tasks: list[str]
    """Kinds of tasks, such as words."""
    directions: list[Annotated[list[str], Field(min_length=2, max_length=2)]]
    """Pairs of a source and a target language."""
    seeds: Seeds
    """Seeds of the trainings of tasks; languages are trained with the first."""
    train: Arguments
    """Common arguments of `mttl train`."""
    sparse: Arguments = Arguments(language="")
    """Common arguments of `mttl sparse`."""
    score: str = ""
    """Arguments of `mttl predict`."""
    compose: str = ""
    """Arguments of `mttl compose`."""
    methods: Annotated[dict[str, Method], Field(min_length=1)]
    """What is compared, by name, the most important first."""
    compare: list[Annotated[list[str], Field(min_length=2, max_length=2)]]
    """Pairs of methods whose differences are shown."""


class Job(NamedTuple):
    """A method that learns a task in one language and answers it in another."""

    seed: int
    task: str
    source: str
    target: str
    method: str

    def __str__(self) -> str:
        """Return the name in the progress display, and of the files."""
        return f"{self.method}-{self.task}-{self.source}-{self.target}-{self.seed}"


class Score(NamedTuple):
    """A score in % of a job, the scored language, and the language whose skill is used."""

    seed: int
    task: str
    source: str
    target: str
    method: str
    scored: str  # "source" or "target"
    skill: str  # the same, or "none"
    score: float
    cpu_minutes: float  # of the training of the task


class Stage(NamedTuple):
    """A command, and what it scores: a language with the skill of a language, or of none."""

    name: str
    command: list[str]
    scored: str = ""
    skill: str = ""


def read_study(path: Path) -> Study:
    """Return the study of a settings file.

    Raises:
        ConfigError: If the file is missing or its settings are wrong.
    """
    try:
        study = Study.model_validate(yaml12.read_yaml(path, ConfigError))
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise ConfigError(f"'{path}': {wrong}") from error
    for field, known in (("directions", study.texts), ("compare", study.methods)):
        for name in (name for pair in getattr(study, field) for name in pair):
            if name not in known:
                raise ConfigError(f"'{path}': {field}: '{name}' must be one of {', '.join(known)}")
    return study


class Transfer:
    """The jobs of a study, and their files in a folder."""

    def __init__(self, study: Study, out: Path) -> None:
        self.study, self.out = study, out
        self.jobs = [
            Job(seed, task, source, target, method)
            for seed in study.seeds
            for task in study.tasks
            for source, target in study.directions
            for method in study.methods
        ]

    @cached_property
    def gym(self) -> Gym:
        """The tasks on disk."""
        return Gym(self.study.gym)

    def prepare(self) -> None:
        """Write the settings, and the task file of the languages."""
        text = yaml12.dump(self.study.model_dump(mode="json"))
        problem = f"the runs in '{self.out}' were made with other settings"
        keep_settings(self.out / "study.yaml", text, problem, ignore=FREE)
        texts = {
            name: {"kind": "text", "source": {"train": str(Path(file).resolve())}}
            for name, file in self.study.texts.items()
        }
        write_text(self.out / "languages.yaml", yaml12.dump({"tasks": texts}))

    def trainings(self, job: Job) -> list[Stage]:
        """Return the trainings of the languages and of the task, the last."""
        method = self.study.methods[job.method]
        train = self._train if method.by == "train" else self._tune
        names = [] if method.language is None else [job.source, job.target]
        languages = [f"{job.method}-{name}" for name in names]
        stages = [
            train(made, name, method.language or "")
            for made, name in zip(languages, names, strict=True)
        ]
        return [*stages, train(str(job), job, method.task, languages[:1])]

    def scorings(self, job: Job) -> list[Stage]:
        """Return the commands that answer the task in both languages."""
        own, method = job.source, self.study.methods[job.method]
        pairs = [(job.target, job.target), (job.target, own), (own, own)]
        if method.language is None:
            pairs = [(job.target, "none"), (own, "none")]
        score = self._predict if method.by == "train" else self._compose
        return [
            Stage(f"{job}-{scored}-{skill}", score(job, scored, skill), scored, skill)
            for scored, skill in pairs
        ]

    def _train(self, name: str, of: Job | str, given: str, on: Sequence[str] = ()) -> Stage:
        """Return `mttl train` of a language or a task."""
        study, runs = self.study, self.out / "runs"
        own = [path_setting("run.dir", runs), f"run.name={name}", "backbone.kind=pretrained"]
        own += [path_setting("backbone.name", Path(study.backbone))]
        own += [f"backbone.tokenizer={study.tokenizer}"] if study.tokenizer else []
        if isinstance(of, Job):
            common, task, seed = study.train.task, f"{of.task}_{of.source}", of.seed
            own += [path_setting("data.dir", Path(study.gym))]
        else:
            common, task, seed = study.train.language or "", of, study.seeds[0]
            own += [path_setting("data.tasks", self.out / "languages.yaml")]
        own += [f"run.seed={seed}", f"data.partition={{train: [{task}]}}"]
        own += [f"skills.on=[{json.dumps(str(runs / one))}]" for one in on]
        resume = ["--resume"] * (runs / name).is_dir()
        command = ["train", *resume, *shlex.split(common), *shlex.split(given), "-k", *own]
        return Stage(name, command)

    def _tune(self, name: str, of: Job | str, given: str, on: Sequence[str] = ()) -> Stage:
        """Return `mttl sparse` of a language or a task."""
        study = self.study
        if isinstance(of, Job):
            common, seed = study.sparse.task, of.seed
            own = ["--gym", study.gym, "--task", f"{of.task}_{of.source}"]
        else:
            common, seed = study.sparse.language or "", study.seeds[0]
            own = ["--text", study.texts[of]]
        own += [*["--on"] * bool(on), *(str(self._skill(one)) for one in on)]
        own += ["--seed", str(seed), "--resume", "--out", str(self._skill(name))]
        given = f"{common} {given}"
        return Stage(name, ["sparse", *self._model, *shlex.split(given), *own])

    def _predict(self, job: Job, scored: str, skill: str) -> list[str]:
        runs, task = self.out / "runs", f"{job.task}_{job.source}"
        command = ["predict", "--from", str(runs / str(job)), "--task", task]
        if skill not in ("none", job.source):
            command += ["--on", str(runs / f"{job.method}-{skill}")]
        file = self.gym.file(f"{job.task}_{scored}", "test", SAMPLE)
        out = self._answers(f"{job}-{scored}-{skill}")
        return [*command, "--in", str(file), "--out", str(out), *shlex.split(self.study.score)]

    def _compose(self, job: Job, scored: str, skill: str) -> list[str]:
        skills = [self._skill(f"{job.method}-{skill}")] * (skill != "none")
        skills += [self._skill(str(job))]
        command = ["compose", *self._model, "--gym", self.study.gym, "--score"]
        command += [f"{job.task}_{scored}", *shlex.split(self.study.compose)]
        return [*command, "--skills", *map(str, skills)]

    @property
    def _model(self) -> list[str]:
        tokenizer = self.study.tokenizer
        return ["--model", self.study.backbone, *(["--tokenizer", tokenizer] if tokenizer else [])]

    def _skill(self, name: str) -> Path:
        return self.out / "skills" / f"{name}.safetensors"

    def _answers(self, name: str) -> Path:
        return self.out / "answers" / f"{name}.jsonl"

    def _cost_file(self, stage: Stage) -> Path:
        return self.out / "costs" / f"{stage.name}.json"

    def ended(self, job: Job) -> bool:
        """Return whether a job has been scored."""
        return all(Cost.so_far(self._cost_file(stage)).ended for stage in self.scorings(job))

    def run(self, job: Job, processes: Processes) -> None:
        """Run the missing commands of a job."""
        for stage in [*self.trainings(job), *self.scorings(job)]:
            cost = self._cost_file(stage)
            with locked(cost.with_suffix(".lock")):  # a language belongs to several jobs
                if not Cost.so_far(cost).ended:
                    processes.run(["-m", "mttl", *stage.command], self._log(stage), cost)
        for stage in self.trainings(job):  # large, and no longer needed
            shutil.rmtree(self.out / "runs" / stage.name / "checkpoints", ignore_errors=True)

    def _log(self, stage: Stage) -> Path:
        return self.out / "logs" / f"{stage.name}.log"

    def _score(self, job: Job, stage: Stage) -> float:
        """Return the score of a finished stage in %."""
        task = f"{job.task}_{stage.scored}"
        metric = self.gym.metric(task)
        if stage.command[0] == "compose":  # prints the score, with one digit
            log = read_text(self._log(stage), MttlError)
            return float(log.rpartition(f"{metric} ")[2].split()[0])
        path = self._answers(stage.name)
        answers = parse_rows_of(read_text(path, MttlError), "jsonl", str(path))
        rows = self.gym.rows(task, "test", SAMPLE)
        given = [str(row[ANSWER]) for row in answers], [row.outputs for row in rows]
        return 100 * score_answers(metric, *given, [row.source for row in rows])

    def results(self) -> list[Score]:
        """Return the scores of all finished jobs."""
        found = []
        for job in filter(self.ended, self.jobs):
            cost = Cost.so_far(self._cost_file(self.trainings(job)[-1]))
            words = {job.source: "source", job.target: "target", "none": "none"}
            for stage in self.scorings(job):
                own = words[stage.scored], words[stage.skill], self._score(job, stage)
                found.append(Score(*job, *own, cost.cpu_minutes))
        return found

    def write(self, path: Path) -> str:
        """Write the scores and the tables of all finished jobs next to the settings."""
        scores = self.results()
        if not scores:
            return ""
        rows = [one._asdict() | {"score": f"{one.score:.2f}"} for one in scores]
        write_table(path.with_suffix(".csv"), Score._fields, rows)
        text = self._tables(scores)
        write_text(path.with_suffix(".md"), text)
        return text

    def _tables(self, scores: Sequence[Score]) -> str:
        """Return the means over seeds, and the differences of pairs of methods."""
        study, n_ended = self.study, sum(map(self.ended, self.jobs))
        text = f"{n_ended} of {len(self.jobs)} jobs have finished. Scores in %, means over seeds.\n"
        known = {one[:7]: one.score for one in scores}
        differences = []
        for task in study.tasks:
            arrows = [
                (*pair, scored) for scored in ("target", "source") for pair in study.directions
            ]
            lines = []
            for method, skill in product(study.methods, ("target", "source", "none")):
                cells = []
                for source, target, scored in arrows:
                    own = (task, source, target, method, scored, skill)
                    values = [known[seed, *own] for seed in study.seeds if (seed, *own) in known]
                    cells.append(f"{fmean(values):.1f}" if values else "")
                if any(cells):
                    lines.append([f"`{method}`", skill, *cells])
            if lines:
                heads = [
                    f"{one} → {two if where == 'target' else one}" for one, two, where in arrows
                ]
                table = markdown(["method", "language skill", *heads], lines)
                text += f"\n`{task}`:\n\n{table}"
            best = {x[:5]: x.score for x in scores if x.scored == "target" and x.skill != "source"}
            for first, second in study.compare:
                pairs = [(one, (*one[:4], second)) for one in best if one[1::3] == (task, first)]
                found = [best[one] - best[other] for one, other in pairs if other in best]
                if found:
                    three = fmean(found), min(found), max(found)
                    cells = [str(len(found)), *(f"{value:+.1f}" for value in three)]
                    differences.append([f"`{first}` − `{second}`", f"`{task}`", *cells])
        heads = ["difference on the target language", "task", "pairs", "mean", "least", "most"]
        return f"{text}\n{markdown(heads, differences)}" if differences else text


def main(arguments: list[str] | None = None) -> int:
    """Run what is missing, and write the results next to the settings."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("study", type=Path, metavar="FILE", help="settings of the study")
    add("--out", type=Path, required=True, metavar="DIR", help="folder of the runs")
    add("--workers", type=int, default=1, metavar="N", help="jobs at a time (%(default)s)")
    add("--threads", type=int, default=1, metavar="N", help="threads of each (%(default)s)")
    add("--show", action="store_true", help="print the commands and run nothing")
    options = parser.parse_args(arguments)
    transfer = Transfer(read_study(options.study), options.out)
    console = make_console()
    if options.show:
        for job in transfer.jobs:
            for stage in [*transfer.trainings(job), *transfer.scorings(job)]:
                command = shlex.join(["mttl", *stage.command])
                console.print(command, markup=False, highlight=False, soft_wrap=True)
        return 0
    busy = ConfigError(f"another process writes to '{options.out}'; wait for it or stop it")
    with locked(options.out / ".lock", busy):
        transfer.prepare()
        todo = [job for job in transfer.jobs if not transfer.ended(job)]
        write, failed = partial(transfer.write, options.study), list[str]()

        def run(job: Job, processes: Processes) -> None:
            try:
                transfer.run(job, processes)
            except MttlError as error:  # the others are run
                failed.append(f"{job}: {error}")

        run_all(todo, run, options.workers, write, options.threads)
        console.print("\n".join([write(), *failed]), markup=False, soft_wrap=True)
    return 1 if failed else 0


if __name__ == "__main__":
    exit_with(main)
