"""Adaptation in one call: what ``import mttl`` offers, and what the commands do.

References:
    Ponti, Sordoni, Bengio and Reddy, arXiv:2202.13914, appendix A.2.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jaxtyping import Float
from rich.console import Console
from torch import Tensor

from mttl.adaptation import modes
from mttl.adaptation.adaptation_history import AdaptationHistory
from mttl.adaptation.adapted_model import AdaptedModel
from mttl.adaptation.custom_examples import Example, split_examples, write_examples
from mttl.adaptation.few_shot import FewShotJob, FewShotResult
from mttl.adaptation.job import run_job, task_module
from mttl.adaptation.plan import new_tasks, plan_jobs
from mttl.adaptation.results import Results, check_folder, check_rows
from mttl.adaptation.save_adapted import Answers, save_adapted
from mttl.adaptation.settings import job_config, with_settings
from mttl.assembly.expert_matrix import read_expert_matrix
from mttl.assembly.factor_table import factor_rows
from mttl.assembly.model import Built, load_run
from mttl.assembly.saved_settings import OF_THE_RUN, ModelSettings, read_settings
from mttl.checkpoints.inventory_files import inventory_digest
from mttl.checkpoints.saved_inventory import read_inventory
from mttl.config.load import dump_config, load_config
from mttl.config.schema import Config
from mttl.data.chosen_tasks import open_gym
from mttl.data.prompt_form import PromptForm
from mttl.inference.task_options import check_options, wanted_options
from mttl.io.errors import ConfigError
from mttl.plugins.classes import METRICS, find_class
from mttl.runtime.gpus import device_of
from mttl.tasks.folder import Gym

# By how rows start: the router that knows of new tasks, and its file.
KNOWN_ROWS = {
    "expert_row": ("expert", "Expert", "router/expert.yaml"),
    "factors": ("metadata", "metadata", "router/metadata_grid.yaml"),
}


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
    """Adapt a trained run to new tasks and score it: `mttl adapt` as a call.

    Args:
        run: The run's folder, or its ``skills/``.
        gym: Folder of the tasks; by default the configuration's.
        tasks: ``"test"`` or ``"dev"`` for that side of the partition, or names.
        samples: Which few-shot samples; all by default.
        allow_seen: Take tasks of training too.
        config: Configuration files, as for the command; by default the run's own settings.
        out: Folder that keeps finished jobs, so that a second call runs only what is left.
        backbone: Where the pretrained backbone is now, if not where it was in training.
        on_result: Called with the result of every job that ends, such as ``print``.
        **settings: Any of the section ``adapt``: ``mode="router_only"``, ``max_steps=1000`` …

    Returns:
        A result per task, few-shot sample and seed; `few_shot_table` makes a table of them.

    Raises:
        CheckpointError: If the folder holds no trained run.
        ConfigError: If a setting is unknown or not allowed, or ``out`` holds results of other
            settings or of another inventory.
        TaskError: If a task or a sample is absent, malformed, or was trained on.
        MttlError: If another process writes into ``out``.
        DivergedError: After the other jobs, if the loss or weights of some are not finite.
    """
    given = _settings_of(run, config, settings)
    if gym is not None:
        given = with_settings(given, {"data.dir": str(gym), "data.tasks": None, "data.metrics": {}})
    adaptation = Adaptation.of(
        given, run, tasks, samples=samples, allow_seen=allow_seen, backbone=backbone
    )
    if out is not None:
        adaptation.check_folder(Path(out), given)
    results = Results(None if out is None else Path(out))

    def work(job: FewShotJob, on_step: Callable[[], object]) -> FewShotResult:
        result = adaptation.run_job(job, given)
        results.add(result)
        on_result(result)
        return result

    with results.writing():
        adaptation.to_device()
        todo = [job for job in adaptation.jobs if job not in results.finished]
        results.run(todo, work, Console(quiet=True), doing="adapting").report()
    return [results.finished[job] for job in adaptation.jobs]


def adapt_to(
    run: str | Path,
    examples: Sequence[Example],
    *,
    task: str,
    dev: Sequence[Example] | None = None,
    metric: str = "EM",
    description: str | None = None,
    options: Sequence[str] = (),
    factors: Sequence[str] = (),
    seed: int = 13,
    config: str | Path | None = None,
    backbone: str | Path | None = None,
    **settings: Any,
) -> AdaptedModel:
    """Return a trained run adapted to the task of a few examples, ready to answer.

    Args:
        run: The run's folder, or its ``skills/``.
        examples: Pairs of input and output; a few dozen are enough.
        task: Name of the task. Runs trained with a prefix read it, or its code, before every input.
        dev: Pairs to choose the weights by. By default every second example is kept for it.
        metric: By which they are scored; one of CrossFit's seven, or ``module:Class``.
        description: What the task is; for runs trained with descriptions, and only for them.
        options: Answers to choose from, which are ranked by their likelihood.
        factors: What the task is made of, as ``"language=de"``; for ``init="factors"``.
        seed: Of noise and order.
        config: Configuration files, as for the command; by default the run's own settings.
        backbone: Where the pretrained backbone is now, if not where it was in training.
        **settings: Any of the section ``adapt`` but ``seeds``.

    Returns:
        The adapted model: call it with a list of inputs. ``.result`` holds the score on ``dev``.

    Raises:
        CheckpointError: If the folder holds no trained run.
        ConfigError: If a setting is unknown or not allowed.
        TaskError: If there are too few examples, or one is malformed.
    """
    if "seeds" in settings:
        raise ConfigError("adapt_to adapts once and takes no seeds; give it seed=NUMBER")
    given = _settings_of(run, config, settings)
    if given.adapt.init == "factors" and not factors:
        raise ConfigError(
            "init='factors' needs factors=['name=value', …], what the task is made of"
        )
    if METRICS.is_plugin(metric):
        find_class(METRICS, metric, trusted=True)
    training, development = split_examples(examples, dev)
    saved = read_inventory(run)
    form = _form_of(read_settings(saved, ModelSettings))
    if form["descriptions"] != (description is not None):
        how, what = ("with", "give one") if form["descriptions"] else ("without", "leave it out")
        raise ConfigError(f"description: '{run}' was trained {how} descriptions of tasks; {what}")
    every = ("data.max_rows", "data.max_eval_rows", "adapt.examples")
    ranked = {"generation.mode": "rank"} if options else {}
    given = with_settings(given, dict.fromkeys(every) | ranked)
    values = job_config(given, form)
    with tempfile.TemporaryDirectory() as folder:
        gym = write_examples(
            *(Path(folder), task, training, development),
            metric=metric,
            description=description,
            options=options,
        )
        inventory, built = inventory_digest(saved.folder), load_run(run, backbone=backbone)
        model = built.model.to(device_of())
        rows = _known_rows(values, saved.meta, model.router.n_skills, [task], lambda _: factors)
        found: list[tuple[FewShotResult, Answers, AdaptationHistory]] = []
        run_job(
            *(model, built.tokenizer, FewShotJob(task, 0, seed), gym, values),
            row=rows.get(task),
            tasks=built.tasks,
            score_test=False,
            keep=lambda *best: found.append(best),
            stay=True,
        )
        ((result, answers, history),) = found
        module = task_module(model, built.tokenizer, {task: gym.metric(task)}, values)
        known = wanted_options(gym, [task], [0], values.generation.mode)
    descriptions = {} if description is None else {task: description}
    shown = PromptForm(**form, task_descriptions=descriptions, task_options=known)
    return AdaptedModel(module, values, result, shown, answers, history, saved.folder, inventory)


@dataclass(frozen=True)
class Adaptation:
    """A trained run and the jobs to adapt it to.

    Args:
        run: Model and tokenizer.
        gym: Where the rows are.
        tasks: The new tasks.
        jobs: Their samples, with every seed.
        form: How rows became text in training.
        trained: What the model was built from.
        skills: The folder ``skills/`` that the model was read from.
        inventory: Its digest, to tell results of one inventory from those of another.
        meta: What the run says of itself.
    """

    run: Built
    gym: Gym
    tasks: list[str]
    jobs: list[FewShotJob]
    form: dict[str, Any]
    trained: ModelSettings
    skills: Path
    inventory: str
    meta: Mapping[str, Any]

    @classmethod
    def of(
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
        """Load a run, and plan its jobs on the gym of a configuration."""
        saved = read_inventory(run)
        inventory = inventory_digest(saved.folder)
        if saved.meta["settings"].get("backbone", {}).get("quantize"):
            modes.require_frozen(config.adapt.mode)
        built = load_run(run, backbone=backbone)
        gym = open_gym(config, samples)
        names = new_tasks(tasks, config.data, gym, built.tasks, allow_seen=allow_seen)
        jobs = plan_jobs(
            *(gym, names, config.adapt.seeds),
            samples=samples,
            splits=splits,
            n_examples=config.adapt.examples,
        )
        mode = "rank" if config.adapt.option_weights else config.generation.mode
        check_options(gym, [(job.task, job.sample) for job in jobs], mode)  # before any is run
        trained = read_settings(saved, ModelSettings)
        form = _form_of(trained)
        # A mistake costs no job.
        _known_rows(config, saved.meta, built.model.router.n_skills, names, gym.factors)
        return cls(built, gym, names, jobs, form, trained, saved.folder, inventory, saved.meta)

    def check_folder(self, folder: Path, config: Config) -> None:
        """Note in a folder what its results are made from, or refuse to mix them with others."""
        check_rows(folder, set(self.jobs), self.gym.digest)
        of_the_run: dict[str, Any] = {
            name: getattr(self.trained, name)
            for name in OF_THE_RUN
            if name in type(config).model_fields
        }
        of_the_run["data"] = config.data.model_copy(update=self.form)
        check_folder(folder, dump_config(config.model_copy(update=of_the_run)), self.inventory)

    def folder(self, name: str) -> Path:
        """Return a folder next to ``skills/``, which the next save of the run would replace."""
        # The folder may be given as ".", whose parent has to be looked up.
        skills = self.skills if self.skills.name else self.skills.absolute()
        return skills.parent / name

    def to_device(self, number: int = 1) -> None:
        """Move the model to a GPU, where there is one; parts of the jobs take them in turn."""
        self.run.model.to(device_of(number))

    def n_starts(self, config: Config) -> int:
        """Return from how many starts a job is adapted."""
        return len(modes.row_starts(self.run.model.router, config.adapt))

    def run_job(
        self,
        job: FewShotJob,
        config: Config,
        *,
        score_test: bool = True,
        on_step: Callable[[], object] = lambda: None,
        save: Path | None = None,
    ) -> FewShotResult:
        """Run a job with the settings of a configuration; the model is left as it was.

        With ``save``, the adapted task is kept in that folder; an earlier one there is replaced.
        """
        values = job_config(config, self.form)
        n_skills, tasks = self.run.model.router.n_skills, [job.task]
        rows = _known_rows(config, self.meta, n_skills, tasks, self.gym.factors)
        digest = self.gym.digest(job.task, job.sample)

        def keep(result: FewShotResult, answers: Answers, history: AdaptationHistory) -> None:
            assert save is not None
            shown = self._shown(job, config)
            where = {"skills": self.skills, "inventory": self.inventory, "history": history}
            save_adapted(
                save, self.run.model, result, answers, values, shown, **where, replace=True
            )

        result = run_job(
            self.run.model,
            self.run.tokenizer,
            job,
            self.gym,
            values,
            row=rows.get(job.task),
            tasks=self.run.tasks,
            score_test=score_test,
            on_step=on_step,
            keep=keep if save is not None else None,
        )
        return replace(result, rows=digest)

    def _shown(self, job: FewShotJob, config: Config) -> PromptForm:
        """Return how inputs of a job's task look."""
        task = job.task
        described = self.form["descriptions"]
        texts = {task: self.gym.description(task) or ""} if described else {}
        options = wanted_options(self.gym, [task], [job.sample], config.generation.mode)
        return PromptForm(**self.form, task_descriptions=texts, task_options=options)


def _settings_of(run: str | Path, config: str | Path | None, settings: Mapping[str, Any]) -> Config:
    if config is not None:
        given = load_config(str(config))
    else:
        own = read_inventory(run).folder.parent / "config.yaml"
        if not own.is_file():
            raise ConfigError(
                f"'{own}' does not exist, so the run does not tell its settings; give "
                "config='crossfit.yaml', or the files that it was trained with"
            )
        given = load_config([str(own)], plugins=None)  # the run's file may name no code
    return with_settings(given, {f"adapt.{name}": value for name, value in settings.items()})


def _known_rows(
    config: Config,
    meta: Mapping[str, Any],
    n_skills: int,
    tasks: Sequence[str],
    factors: Callable[[str], Sequence[str]],
) -> dict[str, Float[Tensor, "1 _"]]:
    """Return initial routing weights of new tasks, from the Expert's matrix or their factors."""
    init, router = config.adapt.init, meta["settings"]["router"]
    if init not in KNOWN_ROWS:
        return {}
    kind, name, file = KNOWN_ROWS[init]
    if router["kind"] != kind:
        raise ConfigError(
            f"adapt.init '{init}' needs a run of the {name} router, and this one's is "
            f"'{router['kind']}'; use 'mean' or 'fresh', or train with {file}"
        )
    if init == "expert_row":
        rows = read_expert_matrix(router["matrix"], tasks, n_skills)
    else:
        rows = factor_rows({task: factors(task) for task in tasks}, tasks, router["factors"])
    return dict(zip(tasks, rows.split(1), strict=True))


def _form_of(trained: ModelSettings) -> dict[str, Any]:
    """Rows look as they did in training."""
    return trained.data.model_dump(exclude={"task_descriptions", "task_options"})
