"""Adaptation from Python: the functions behind ``import mttl`` and the commands."""

import logging
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from jaxtyping import Float
from pydantic import StringConstraints
from rich.console import Console
from torch import Tensor

from mttl.adaptation.adapted_model import AdaptedModel, LeftOut
from mttl.adaptation.fine_tune import rank
from mttl.adaptation.job import JobRun, Outcome, job_config, ranking_mode
from mttl.adaptation.modes import row_starts
from mttl.adaptation.plan import (
    FewShotJob,
    FewShotResult,
    Results,
    check_folder,
    check_rows,
    new_tasks,
    plan_jobs,
)
from mttl.assembly.build_router import factor_rows, read_expert_matrix
from mttl.assembly.model import Built, load_run
from mttl.assembly.saved_settings import OF_THE_RUN, ModelSettings
from mttl.checkpoints.inventory_files import inventory_digest
from mttl.checkpoints.saved_inventory import read_inventory
from mttl.config.load import dump_config, load_config, with_settings
from mttl.config.schema import Config
from mttl.data.chosen_tasks import open_gym
from mttl.data.prompt_form import BY_TASK
from mttl.inference.predictor import MIXED
from mttl.inference.task_options import wanted_options
from mttl.io.errors import ConfigError, TaskError
from mttl.io.files import write_table, write_text
from mttl.io.record import check
from mttl.metrics.crossfit import score_answers
from mttl.metrics.metric_names import check_metric
from mttl.plugins.classes import METRICS, find_class
from mttl.runtime.processes import device_of
from mttl.tasks.folder import Gym, options_cell
from mttl.tasks.rows import JSON_LINES, line_of

_log = logging.getLogger(__name__)

Example = tuple[str, str]
_Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
# The required router by initialisation.
KNOWN_ROWS = {"expert_row": "expert", "factors": "metadata"}


def adapt(
    run: str | Path,
    *,
    gym: str | Path | None = None,
    tasks: str | Sequence[str] = "test",
    samples: Sequence[int] | None = None,
    allow_seen: bool = False,
    config: str | Path | None = None,
    out: str | Path | None = None,
    backbone: str | Path | None = None,
    on_result: Callable[[FewShotResult], object] = lambda result: None,
    **settings: Any,
) -> list[FewShotResult]:
    """Adapt a trained run to new tasks, and return the scores; the call for `mttl adapt`.

    Args:
        run: The run's folder, or its ``skills/``.
        gym: Folder of the tasks; by default that of the configuration.
        tasks: ``"test"`` or ``"dev"`` of the partition, or names.
        samples: Few-shot samples; by default all.
        allow_seen: Allow training tasks as new tasks.
        config: Configuration files, as for the command; by default the run's own settings.
        out: Folder for finished jobs, so that a second call runs only the missing ones.
        backbone: Current folder of the pretrained backbone, if it was moved.
        on_result: Function called with each result, such as ``print``.
        **settings: Settings of the section ``adapt``: ``mode="router_only"``, ``max_steps=1000``, …

    Returns:
        One result per task, few-shot sample and seed; `few_shot_table` formats them as a table.

    Raises:
        CheckpointError: If the folder is not a trained run.
        ConfigError: If a setting is unknown or invalid, or ``out`` has results of other settings or
            of another inventory.
        TaskError: If a task or sample is missing or malformed, or was trained on.
        MttlError: If another process is writing to ``out``.
        DivergedError: If the loss or weights of some jobs are not finite; raised after all jobs.
    """
    given = _settings_of(run, config, settings)
    if gym is not None:
        given = with_settings(given, {"data.dir": str(gym), "data.tasks": None, "data.metrics": {}})
    adaptation = Adaptation.load(
        given, run, tasks, samples=samples, allow_seen=allow_seen, backbone=backbone
    )
    if out is not None:
        adaptation.check_folder(Path(out))
    results = Results(None if out is None else Path(out))

    def work(job: FewShotJob, _: Callable[[], object]) -> FewShotResult:
        result = adaptation.run_job(job)
        results.add(result)
        on_result(result)
        return result

    adaptation.to_device()
    results.run(adaptation.jobs, work, Console(quiet=True), doing="adapting").report()
    return [results.finished[job] for job in adaptation.jobs]


def adapt_to(
    run: str | Path,
    examples: Sequence[Example],
    *,
    task: str,
    dev: Sequence[Example] | None = None,
    metric: str = "exact",
    description: str | None = None,
    options: Sequence[str] = (),
    factors: Sequence[str] = (),
    seed: int = 13,
    config: str | Path | None = None,
    backbone: str | Path | None = None,
    **settings: Any,
) -> AdaptedModel:
    """Adapt a trained run to a task from a few examples, and return the adapted model.

    Args:
        run: The run's folder, or its ``skills/``.
        examples: Pairs of input and output; a few dozen are enough.
        task: Name of the task, also used as the task prefix in runs with a prefix.
        dev: Pairs for selecting the best weights. By default every second example of each answer;
            with fewer than 8, all are trained on, and the start is chosen by leave-one-out.
        metric: Metric on ``dev``: a name, such as ``accuracy``, or ``module:Class``.
        description: Description of the task; required in runs with descriptions, and only there.
        options: Possible answers, to be ranked by likelihood.
        factors: Factors of the task, such as ``"language=de"``; for ``init="factors"``.
        seed: Seed of initialisation and order.
        config: Configuration files, as for the command; by default the run's own settings.
        backbone: Current folder of the pretrained backbone, if it was moved.
        **settings: Settings of the section ``adapt``, except ``seeds``.

    Returns:
        The adapted model; call it with a list of inputs. ``.result`` has the score on ``dev``, and
        ``.left_out`` the estimate by leave-one-out.

    Raises:
        CheckpointError: If the folder is not a trained run.
        ConfigError: If a setting is unknown or invalid.
        TaskError: If there are too few examples, or one is malformed.
    """
    if "seeds" in settings:
        raise ConfigError("adapt_to takes one seed=NUMBER instead of seeds")
    given = _settings_of(run, config, settings)
    if given.adapt.init == "factors" and not factors:
        raise ConfigError("init='factors' needs the factors of the task: factors=['name=value', …]")
    if METRICS.is_plugin(metric):
        find_class(METRICS, metric, trusted=True)
    training, development = split_examples(examples, dev)
    left_out = dev is None and len(examples) < 8  # all are for training
    inventory = inventory_digest(read_inventory(run).folder)
    built = load_run(run, backbone=backbone)
    if built.form.descriptions != (description is not None):
        how, what = ("with", "give one") if description is None else ("without", "remove it")
        raise ConfigError(f"description: '{run}' was trained {how} descriptions of tasks; {what}")
    every = ("data.max_rows", "data.max_eval_rows", "adapt.examples")
    ranked = {"generation.mode": "rank"} if options else {}
    given = with_settings(given, dict.fromkeys(every) | ranked)
    job = FewShotJob(task, 0, seed)
    facts = {"metric": metric, "description": description, "options": options, "factors": factors}
    with tempfile.TemporaryDirectory() as folder:

        def adaptation(*rows: Sequence[Example], config: Config = given) -> Adaptation:
            place = Path(tempfile.mkdtemp(dir=folder))
            gym = write_examples(place, task, *rows, **facts)
            return Adaptation(built, inventory, gym, [job], config)

        last = adaptation(training, development)
        last.to_device()
        if not left_out:
            return last.adapted(last.outcome(job, score_test=False, stay=True))
        best, estimate = leave_one_out(adaptation, examples, options)
        last = adaptation(examples, examples, config=best)
        outcome = last.outcome(job, score_test=False, stay=True)
        result = replace(outcome.result, dev=estimate.score)
        return replace(last.adapted(outcome._replace(result=result)), left_out=estimate)


def leave_one_out(
    adaptation: Callable[..., "Adaptation"], examples: Sequence[Example], options: Sequence[str]
) -> tuple[Config, LeftOut]:
    """Return the configuration with the best initial routing, and its estimate.

    Each example is answered by a model that is adapted to the others, for each initial routing, in
    a quarter of the steps. The best has the highest score, then the highest mean probability of the
    right answers; a score up to 0.5 is a warning. ``adaptation`` returns one for training,
    development and test examples, and a configuration.
    """
    whole = adaptation(examples, examples)
    job, given = whole.jobs[0], whole.given
    both = {"init": "best_of_two"} if given.adapt.init == "auto" else {}
    found: dict[str, LeftOut] = {}
    n_steps = -(-given.adapt.max_steps // 4)
    for init in row_starts(whole.run.model.router, given.adapt.model_copy(update=both)):
        config = with_settings(given, {"adapt.init": init, "adapt.max_steps": n_steps})
        held_out = []
        for place, example in enumerate(examples):
            rest = [*examples[:place], *examples[place + 1 :]]
            one = adaptation(rest, rest, [example], config=config)
            held_out.append(_held_out(one, example, options))
        answers, sure = zip(*held_out, strict=True)
        right = [[answer.strip()] for _, answer in examples]
        sources = [{"input": text, "columns": {}} for text, _ in examples]
        score = score_answers(whole.gym.metric(job.task), answers, right, sources)
        found[init] = LeftOut(
            init, score, sum(sure) / len(sure) if options else None, len(examples)
        )
    best = max(found, key=lambda init: (rank(found[init].score), found[init].confidence or 0))
    level = logging.INFO if found[best].score > 0.5 else logging.WARNING
    _log.log(level, "%s", found[best])
    return with_settings(given, {"adapt.init": best}), found[best]


def _held_out(
    adaptation: "Adaptation", example: Example, options: Sequence[str]
) -> tuple[str, float]:
    """Return the answer to an example, and the probability of the right option."""
    (job,), found = adaptation.jobs, []

    def answer(outcome: Outcome) -> None:
        model, sure = adaptation.adapted(outcome), 0.0
        if options:
            given = [example[0]], options
            (choice,) = model.choose(job.task, *given, per_token=model.per_token)
            sure = choice.probabilities.get(example[1].strip(), 0.0)
        found.append((outcome.answers["test"][0].prediction, sure))

    adaptation.outcome(job, keep=answer)
    return found[0]


@dataclass(frozen=True)
class Adaptation:
    """A trained run and its adaptation jobs: tasks, few-shot samples and seeds."""

    run: Built
    inventory: str  # digest of the run's inventory, recorded with the results
    gym: Gym
    jobs: list[FewShotJob]
    given: Config

    @classmethod
    def load(
        cls,
        config: Config,
        run: str | Path,
        tasks: str | Sequence[str],
        *,
        samples: Sequence[int] | None = None,
        allow_seen: bool = False,
        splits: Sequence[str] = ("dev", "test"),
        backbone: str | Path | None = None,
    ) -> "Adaptation":
        """Load a run and plan its jobs; all settings are checked before the first job."""
        inventory = inventory_digest(read_inventory(run).folder)
        built = load_run(run, backbone=backbone)
        gym = open_gym(config, samples)
        jobs = plan_jobs(
            gym,
            new_tasks(tasks, config.data, gym, built.tasks, allow_seen=allow_seen),
            config.adapt.seeds,
            samples=samples,
            splits=splits,
            n_examples=config.adapt.examples,
        )
        places = dict.fromkeys((job.task, job.sample) for job in jobs)
        wanted_options(gym, ((task, [own]) for task, own in places), ranking_mode(config))
        adaptation = cls(built, inventory, gym, jobs, config)
        _ = adaptation.config, adaptation.rows  # check them
        return adaptation

    @cached_property
    def config(self) -> Config:
        """The settings of all jobs."""
        return job_config(self.given, self._form)

    @cached_property
    def rows(self) -> dict[str, Float[Tensor, "1 _"]]:
        """Initial routing weights of new tasks, from the expert matrix or their factors."""
        init, router = self.given.adapt.init, self.run.meta["settings"]["router"]
        if init not in KNOWN_ROWS:
            return {}
        if router["kind"] != (kind := KNOWN_ROWS[init]):
            raise ConfigError(
                f"adapt.init '{init}' needs a run with router.kind '{kind}', but this run has "
                f"'{router['kind']}'; use 'mean' or 'fresh', or train with that router"
            )
        tasks = list(dict.fromkeys(job.task for job in self.jobs))
        if init == "expert_row":
            rows = read_expert_matrix(router["matrix"], tasks, self.run.model.router.n_skills)
        else:
            table = {task: self.gym.factors(task) for task in tasks}
            rows = factor_rows(table, tasks, router["factors"])
        return dict(zip(tasks, rows.split(1), strict=True))

    @cached_property
    def _form(self) -> dict[str, Any]:
        """Prompt form of the training."""
        return self.run.form.model_dump(exclude={*BY_TASK})

    def check_folder(self, folder: Path) -> None:
        """Record the origin of results in a folder, or reject a folder with other results."""
        check_rows(folder, set(self.jobs), self.gym.digest)
        trained = ModelSettings.model_validate(self.run.meta["settings"])
        names = [name for name in OF_THE_RUN if name in Config.model_fields]
        of_the_run = {name: getattr(trained, name) for name in names}
        of_the_run["data"] = self.given.data.model_copy(update=self._form)
        settings = dump_config(self.given.model_copy(update=of_the_run))
        check_folder(folder, settings, self.inventory)

    def folder(self, name: str) -> Path:
        """Return a folder next to ``skills/``."""
        assert self.run.folder is not None
        # The folder may be given as ".".
        return self.run.folder.absolute().parent / name

    def to_device(self, number: int = 1) -> None:
        """Move the model to a GPU, if there is one; shards use different GPUs."""
        self.run.model.to(device_of(number))

    def run_job(self, job: FewShotJob, save: Path | None = None, **options: Any) -> FewShotResult:
        """Run a job and restore the model; other options are those of `JobRun.run`.

        With ``save``, the adapted task is saved to that folder, replacing an existing one.
        """
        if save is not None:
            options["keep"] = lambda outcome: self.adapted(outcome).save(save, replace=True)
        return self.outcome(job, **options).result

    def outcome(self, job: FewShotJob, **options: Any) -> Outcome:
        """Return the outcome of a job; the options are those of `JobRun.run`."""
        run = JobRun(self.run.model, self.run.tokenizer, job, self.gym, self.config)
        return run.run(row=self.rows.get(job.task), tasks=self.run.tasks, **options)

    def adapted(self, outcome: Outcome) -> AdaptedModel:
        """Return the model adapted by a job, while it is adapted."""
        task, module, run = outcome.result.task, outcome.module, self.run
        texts = {task: self.gym.description(task) or ""} if run.form.descriptions else {}
        scorer = module.option_scorer
        options = {task: list(scorer.texts[0])} if scorer and scorer.texts[0] else {}
        template = self.gym.template(task)
        by_task = {"task_descriptions": texts, "task_options": options}
        by_task["task_templates"] = {task: template} if template else {}
        assert run.folder is not None
        return AdaptedModel(
            model=run.model,
            tokenizer=run.tokenizer,
            tasks=(task,),
            form=outcome.form.model_copy(update=by_task),
            search=module.generation,
            per_token=self.config.generation.per_token,
            mixed=MIXED.get(self.config.trainer.precision),
            outcome=outcome,
            config=self.config,
            skills=run.folder,
            inventory=self.inventory,
        )


def split_examples(
    examples: Sequence[Example], dev: Sequence[Example] | None = None
) -> tuple[list[Example], list[Example]]:
    """Return the training examples and the development examples.

    Without ``dev``, every second example of each answer is a development example: CrossFit's 32
    become 16 and 16. Examples whose answers all differ alternate.
    """
    for name, pairs in (("examples", examples), ("dev", dev or ())):
        check(list[tuple[_Text, _Text]], pairs, f"{name} must be pairs (input, output)", TaskError)
    answers = [answer.strip() for _, answer in examples]
    grouped = examples
    if len({*answers}) < len(answers):
        order = sorted(range(len(answers)), key=lambda place: answers.index(answers[place]))
        grouped = [examples[place] for place in order]
    own = (grouped[::2], grouped[1::2]) if dev is None else (examples, dev)
    if not all(own):
        raise TaskError(
            f"examples has {len(examples)} pairs; at least one pair is needed for training and "
            "one for development (every second one, or dev)"
        )
    return list(own[0]), list(own[1])


def write_examples(
    folder: Path,
    task: str,
    training: Sequence[Example],
    development: Sequence[Example],
    test: Sequence[Example] = (),
    *,
    metric: str = "exact",
    description: str | None = None,
    options: Sequence[str] = (),
    factors: Sequence[str] = (),
) -> Gym:
    """Write a gym with one task and sample 0."""
    if not re.fullmatch(r"[\w-][\w.-]*", task):
        raise TaskError(f"task ('{task}') must be a name of letters, digits, '_', '-' and '.'")
    check_metric(metric, TaskError)
    for split, rows in (("train", training), ("dev", development), ("test", test)):
        if not rows:
            continue
        path = folder / task / f"{task}_{len(training)}_0_{split}{JSON_LINES}"
        lines = [line_of(JSON_LINES, source, [answer]) for source, answer in rows]
        write_text(path, "".join(lines))
    row = {"task": task, "metric": metric, "description": description}
    row |= {"options": options_cell(options), "factors": " ".join(factors)}
    write_table(folder / "TASKS.csv", list(row), [row])
    return Gym(folder)


def _settings_of(run: str | Path, config: str | Path | None, settings: Mapping[str, Any]) -> Config:
    if config is not None:
        given = load_config(str(config))
    else:
        own = read_inventory(run).folder.parent / "config.yaml"
        if not own.is_file():
            raise ConfigError(
                f"'{own}' does not exist, so the run's settings are unknown; give "
                "config='crossfit.yaml', or the files that it was trained with"
            )
        given = load_config([str(own)], plugins=None)  # the run's file must not import code
    return with_settings(given, {f"adapt.{name}": value for name, value in settings.items()})
