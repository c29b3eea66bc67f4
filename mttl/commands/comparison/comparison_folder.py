"""Folder of a comparison: its settings and its missing runs."""

import json
import os
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from mttl.adaptation.plan import Results, check_rows, new_tasks, plan_jobs, read_samples
from mttl.adaptation.resumable_jobs import keep_settings
from mttl.commands.comparison.methods import METHODS, REFERENCE, AdaptationVariant, Method, Plan
from mttl.commands.comparison.stages import Cost, Processes
from mttl.commands.comparison.tables import TaskScore
from mttl.commands.comparison.tables import check_rows as check_scores
from mttl.config.load import dump_config, load_any_config, load_config
from mttl.config.schema import Adapt, Config
from mttl.config.section import Section
from mttl.config.train_only_keys import of_training
from mttl.data.chosen_tasks import open_gym, partition_of
from mttl.io import yaml12
from mttl.io.errors import ConfigError
from mttl.io.files import locked
from mttl.runtime.command import make_console
from mttl.runtime.progress_bar import counting
from mttl.tasks.folder import Gym
from mttl.tasks.partition import SIDES, Partition, select_tasks

# Settings that every comparison sets itself, with the option for each.
OWN_SETTINGS = {
    **{"run.dir": " (--out)", "run.name": "", "adapt.mode": " (--modes)", "adapt.init": ""},
    **dict.fromkeys(("run.seed", "adapt.seeds"), " (--seeds)"),
}
FOLD_SEED = 13  # the same folds in every comparison
Write = Callable[[], str]  # writes and returns the tables of all finished runs


@dataclass(frozen=True)
class MethodComparison:
    """Folder and common settings of a comparison: the options of `mttl compare`."""

    unit: ClassVar[str] = "steps"  # of `steps` and `adapt_steps`
    adapt: ClassVar[type[Section]] = Adapt  # section of adaptation
    own_settings: ClassVar[Mapping[str, str]] = {
        **OWN_SETTINGS,
        "data.evaluate": " (--unseen-only)",
        "trainer.max_steps": " (--steps)",
        "adapt.examples": " (--examples)",
        "adapt.max_steps": " (--adapt-steps)",
    }

    out: Path
    config: str
    steps: int
    adapt_steps: int
    tasks: str
    samples: str | None = None
    overrides: tuple[str, ...] = ()
    examples: int | None = None
    n_folds: int | None = None
    unseen_only: bool = False
    methods: Mapping[str, Method] = field(default_factory=lambda: METHODS)
    reference: str = REFERENCE

    def run_folder(self, item: Plan) -> Path:
        """Return the folder of one training run."""
        fold = f"fold{item.fold}" if item.fold else ""
        return self.out / fold / item.name / f"seed{item.seed}"

    def cost_file(self, item: Plan, stage: str) -> Path:
        """Return the file with the cost of a stage, next to the run."""
        return self.run_folder(item).with_name(f"seed{item.seed}-{stage}.json")

    def cost(self, item: Plan, stage: str) -> Cost:
        """Return the cost of a stage so far."""
        return Cost.so_far(self.cost_file(item, stage))

    def files(self, item: Plan) -> str:
        """Return the configuration files of one training."""
        return "+".join(filter(None, (self.config, self.methods[item.name].fragment)))

    def adapt_files(self, item: Plan) -> str:
        """Return the configuration files of its adaptations."""
        return self.files(item) if self.methods[item.name].adapts_by_fragment else self.config

    def shared(self, item: Plan) -> list[str]:
        """Return the settings that training and adaptation share."""
        fold = self.out / "folds" / f"fold{item.fold}.json"
        return [*self.overrides, *([path_setting("data.partition", fold)] if item.fold else [])]

    def place(self, item: Plan) -> list[str]:
        """Return the settings of the folder and seed of one training."""
        folder = self.run_folder(item)
        where = path_setting("run.dir", folder.parent), f"run.name={folder.name}"
        return [*where, f"run.seed={item.seed}"]

    def training(self, item: Plan) -> list[str]:
        """Return the settings of one training."""
        return [
            *(*self.place(item), f"trainer.max_steps={self.steps}"),
            f"trainer.val_check_interval={self.steps}",
            f"data.evaluate={'[]' if self.unseen_only else '[test]'}",
            path_setting("data.cache_dir", self.out / ".cache"),
            *(*self.shared(item), *self.methods[item.name].settings),
        ]

    def adaptation(self, item: Plan, variant: AdaptationVariant) -> list[str]:
        """Return the settings of one adaptation."""
        return [
            *(f"adapt.seeds=[{item.seed}]", f"adapt.max_steps={self.adapt_steps}"),
            f"adapt.eval_every={max(1, self.adapt_steps // 2)}",
            *([f"adapt.examples={self.examples}"] if self.examples is not None else []),
            *self.of_adaptation(self.shared(item), item, variant),
        ]

    def of_adaptation(
        self, given: Sequence[str], item: Plan, variant: AdaptationVariant
    ) -> list[str]:
        """Return the given settings that adaptation reads, and those of variant and method."""
        read = [x for x in given if not of_training(x.partition("=")[0].strip(), self.adapt)]
        return [*read, *variant.settings, *self.methods[item.name].adapt_settings]

    @cached_property
    def gym(self) -> Gym:
        """The tasks on disk."""
        return open_gym(self.common)

    @cached_property
    def partitions(self) -> list[Partition]:
        """The partition of the configuration, or one per fold."""
        data = self.common.data
        whole = partition_of(data, self.gym)
        if self.n_folds is None:
            return [whole]
        tasks = [task for side in SIDES for task in getattr(whole, side)]
        held = select_tasks(tasks, self.gym, data.skip_missing)
        categories = {task: self.gym.category(task) for task in held}
        folds = split_folds(categories, self.n_folds, FOLD_SEED)
        others = [[task for own in folds if own is not unseen for task in own] for unseen in folds]
        return [
            Partition(train=tuple(train), test=tuple(unseen))
            for train, unseen in zip(others, folds, strict=True)
        ]

    @property
    def common(self) -> Config:
        """The configuration of all runs."""
        return load_config(self.config, list(self.overrides))

    def check_overrides(self) -> None:
        """Raise a `ConfigError` for overrides that the comparison sets itself."""
        given = {text.partition("=")[0].strip() for text in self.overrides}
        for name in given & self.own_settings.keys():
            option = self.own_settings[name]
            raise ConfigError(f"-k {name} is set by the comparison{option}; remove it")

    def check_scored_rows(self, scores: Sequence[TaskScore]) -> None:
        """Raise an `MttlError` if the tasks of finished runs have other rows now."""
        tasks = set(self.gym.tasks())
        check_scores([score for score in scores if score.task in tasks], self.gym.digest)

    def check(self, plans: list[Plan]) -> None:
        """Check all settings before the first training begins."""
        self.check_overrides()
        if self.n_folds is not None and self.tasks != "test":
            raise ConfigError(
                f"--tasks {self.tasks} does not work with --folds, where all are unseen once"
            )
        data, partition = self.common.data, self.partitions[0]
        if self.n_folds is None:
            seen = select_tasks(partition.train, self.gym, data.skip_missing)
            unseen = new_tasks(self.tasks, data, self.gym, seen)
        else:
            seen = unseen = [task for side in SIDES for task in getattr(partition, side)]
        most = 0
        # Methods do not depend on seeds and folds.
        for item in {item.name: item for item in plans}.values():
            training = load_config(self.files(item), self.training(item))
            n_skills = getattr(training.skills, "n_skills", None)
            if training.router.kind == "expert" and isinstance(n_skills, int):
                from mttl.assembly.build_router import read_expert_matrix  # imports PyTorch

                read_expert_matrix(training.router.matrix, [*seen, *unseen], n_skills)
            for variant in item.variants:
                adapt = load_config(self.adapt_files(item), self.adaptation(item, variant)).adapt
                most = max(most, adapt.examples or 0)
        samples = read_samples(self.samples)
        plan_jobs(self.gym, unseen, [0], samples=samples, n_examples=most or None)
        for item in plans:
            for place in sorted(self.run_folder(item).glob("adapt-*")):
                check_rows(place, set(Results(place).finished), self.gym.digest)

    def shared_settings(self) -> dict[str, Any]:
        """Return the settings common to all runs."""
        names = sorted({one.name for one in fields(self)} - {"out", "methods", "reference"})
        return {name: getattr(self, name) for name in names} | {"overrides": [*self.overrides]}

    def keep_settings(self) -> None:
        """Write the common settings, or reject a folder with different settings."""
        overrides, began = list(self.overrides), f"since the comparison in '{self.out}' began"
        # As written, because `auto` is resolved per method.
        common = load_any_config(self.config, overrides, as_written=True).model_dump(mode="json")
        kept = yaml12.dump({**self.shared_settings(), "settings": common})
        problem = f"the comparison in '{self.out}' was made with other settings"
        keep_settings(self.out / "comparison.yaml", kept, problem)
        for name, method in self.methods.items():
            if method.adapts_by_fragment:
                text = dump_config(load_any_config(self.files(Plan(name, 0)), overrides))
                path = self.out / "methods" / f"{name}.yaml"
                advice = "Restore its file, or choose another name for it"
                keep_settings(path, text, f"the method '{name}' has changed {began}", advice)
        for number, partition in enumerate(self.partitions if self.n_folds else (), 1):
            problem = f"the tasks have changed {began}, so fold {number} would differ"
            keep_settings(self.out / "folds" / f"fold{number}.json", partition.text(), problem)

    def stages(self, variant: AdaptationVariant) -> list[str]:
        """Return the names of the stages of an adaptation variant."""
        return [f"adapt-{variant.name}"]

    def has_ended(self, item: Plan) -> bool:
        """Return whether all stages have finished."""
        adapting = (stage for variant in item.variants for stage in self.stages(variant))
        return all(self.cost(item, stage).ended for stage in ("train", *adapting))

    def run(self, item: Plan, processes: Processes) -> None:
        """Train and adapt, skipping finished stages."""
        for variant in (None, *item.variants):
            for stage in ("train",) if variant is None else self.stages(variant):
                if not self.cost(item, stage).ended:
                    log = self.run_folder(item).with_name(f"seed{item.seed}.log")
                    command = self.command(item, variant, stage)
                    processes.run(command, log, self.cost_file(item, stage))

    def command(self, item: Plan, variant: AdaptationVariant | None, stage: str) -> list[str]:
        """Return the command of an adaptation stage, or of training if there is no variant."""
        run = self.run_folder(item)
        if variant is None:
            command = ["-m", "mttl", "train", "-c", self.files(item)]
            return [*command, *["--resume"] * run.is_dir(), "-k", *self.training(item)]
        command = ["-m", "mttl", "adapt", "-c", self.adapt_files(item), "--from", str(run)]
        command += ["--samples", self.samples] if self.samples else []
        command += ["--tasks", self.tasks, "--out", str(run / stage)]
        return [*command, "-k", *self.adaptation(item, variant)]

    def note(self, plans: list[Plan]) -> str:
        """Return additional sentences for the caption of the tables."""
        return ""


def split_folds(categories: Mapping[str, str], n_folds: int, seed: int) -> list[list[str]]:
    """Split tasks into folds, shuffled within each category by a seed.

    Fold sizes differ by at most one task, overall and within each category.
    """
    if not 2 <= n_folds <= len(categories):
        raise ConfigError(
            f"--folds {n_folds} must lie between 2 and {len(categories)}, the number of tasks"
        )
    groups: dict[str, list[str]] = {}
    for task in sorted(categories):
        groups.setdefault(categories[task], []).append(task)
    rng = random.Random(seed)
    cards = [task for _, group in sorted(groups.items()) for task in rng.sample(group, len(group))]
    return [cards[number::n_folds] for number in range(n_folds)]


def carry_out(comparison: MethodComparison, plans: list[Plan], n_workers: int, write: Write) -> str:
    """Run what is missing, write tables after each run, and return the final ones."""
    if plans:  # otherwise all runs exist
        comparison.check(plans)
    busy = ConfigError(f"another mttl compare writes to '{comparison.out}'; wait for it or stop it")
    with locked(comparison.out / ".lock", busy):
        if plans:
            comparison.keep_settings()
            todo = [item for item in plans if not comparison.has_ended(item)]
            run_all(todo, comparison.run, n_workers, write)
        return write()


def run_all(
    todo: Sequence[Any],
    run: Callable[[Any, Processes], object],
    n_workers: int,
    ended: Write,
    n_threads: int | None = None,
) -> None:
    """Run items in parallel, with a progress bar; by default they share the cores equally."""
    status = make_console(stderr=True)
    processes = Processes(n_threads or max(1, (os.cpu_count() or 1) // n_workers))
    with (
        counting(status, "comparing", len(todo)) as count,
        ThreadPoolExecutor(n_workers) as pool,
        processes.stopping(),
    ):
        futures = {pool.submit(run, item, processes): item for item in todo}
        try:
            for future in as_completed(futures):
                future.result()
                count.advance()
                status.print(f"{futures[future]}: finished{count.left}")
                ended()
        finally:
            # Items that have not started leave no files.
            pool.shutdown(wait=False, cancel_futures=True)


def path_setting(name: str, path: Path) -> str:
    """Return an override with a path as its YAML value."""
    return f"{name}={json.dumps(str(path), ensure_ascii=False)}"
