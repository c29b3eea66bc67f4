"""The folder of a comparison: its settings, and running what is missing in it."""

import json
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from mttl.adaptation.plan import new_tasks, plan_jobs, read_samples
from mttl.adaptation.results import Results, check_rows
from mttl.comparison.folds import deal, partitions
from mttl.comparison.methods import ALL, REFERENCE, Method, Plan, Way
from mttl.comparison.rates import chosen_rates, search_points
from mttl.comparison.running import alone, keep_config, path_setting, refuse_settings, run_all
from mttl.comparison.stages import Cost, Processes, start_again
from mttl.comparison.tables import Score, read_seen
from mttl.config.load import dump_config, join_files, load_config
from mttl.config.schema import Adapt, Config
from mttl.config.train_only_keys import of_training
from mttl.data.chosen_tasks import open_gym, partition_of
from mttl.errors import ConfigError
from mttl.io import yaml12
from mttl.io.files import write_text
from mttl.io.reading import read_text
from mttl.tasks.folder import Gym
from mttl.tasks.partition import SIDES, Partition, select_tasks

# What the comparison sets itself, and how to choose it.
OWN_SETTINGS = {
    "run.dir": " (--out)",
    "run.name": "",
    "run.seed": " (--seeds)",
    "data.evaluate": " (--unseen-only)",
    "trainer.max_steps": " (--steps)",
    "adapt.mode": " (--modes)",
    "adapt.init": "",
    "adapt.seeds": " (--seeds)",
    "adapt.examples": " (--examples)",
    "adapt.max_steps": " (--adapt-steps)",
}
# Folds and their development tasks are the same in every comparison of a gym.
FOLD_SEED = 13
N_DEV = 4


@dataclass(frozen=True)
class Comparison:
    """The folder of a comparison, and what all its runs share.

    Args:
        out: The folder.
        config: Configuration files.
        steps: Optimizer steps of every training.
        adapt_steps: Optimizer steps of every adaptation job.
        tasks: Which unseen tasks; those of each fold where there are folds.
        samples: Which few-shot samples of them, joined by commas; all by default.
        overrides: Settings of all runs.
        examples: Rows of every unseen task; all by default.
        n_folds: In how many folds every task is unseen once; none takes the partition as it is.
        search_rates: Whether each way of adaptation gets the best of a few rates.
        unseen_only: Whether the tasks of a training are left without a score.
        methods: What the names of methods stand for.
        reference: The method that others are compared with.
    """

    out: Path
    config: str
    steps: int
    adapt_steps: int
    tasks: str
    samples: str | None = None
    overrides: tuple[str, ...] = ()
    examples: int | None = None
    n_folds: int | None = None
    search_rates: bool = False
    unseen_only: bool = False
    methods: Mapping[str, Method] = field(default_factory=lambda: ALL)
    reference: str = REFERENCE

    @classmethod
    def of_options(cls, options: Namespace, examples: int | None = None, **more: Any) -> Self:
        """Return the comparison of a command line.

        Args:
            options: Those of `mttl compare`.
            examples: As above.
            **more: As above.
        """
        return cls(
            out=Path(options.out),
            config=options.config,
            steps=options.steps,
            adapt_steps=options.adapt_steps,
            tasks=options.tasks,
            samples=options.samples,
            overrides=tuple(options.override),
            examples=examples,
            n_folds=options.folds,
            **more,
        )

    def group(self, item: Plan) -> Path:
        """Return the folder of a method's trainings."""
        return self.out / (f"fold{item.fold}" if item.fold else "") / item.name

    def run_folder(self, item: Plan) -> Path:
        """Return where one training goes."""
        return self.group(item) / f"seed{item.seed}"

    def cost_file(self, item: Plan, stage: str) -> Path:
        """Return where the cost of a stage is written down: beside the run, not in it."""
        return self.group(item) / f"seed{item.seed}-{stage}.json"

    def cost(self, item: Plan, stage: str) -> Cost:
        """Return what a stage has cost so far."""
        return Cost.read(self.cost_file(item, stage))

    def partition_file(self, fold: int) -> Path:
        """Return where the partition of a fold is written."""
        return self.out / "folds" / f"fold{fold}.json"

    def files(self, item: Plan) -> str:
        """Return the configuration files of one training."""
        return join_files(self.config, self.methods[item.name].fragment)

    def adapt_files(self, item: Plan) -> str:
        """Return the configuration files of its adaptations."""
        return self.files(item) if self.methods[item.name].adapts_by_fragment else self.config

    def shared(self, item: Plan) -> list[str]:
        """Return the settings that training and adaptation share."""
        fold = [path_setting("data.partition", self.partition_file(item.fold))] if item.fold else []
        return [*self.overrides, *fold]

    def shared_by_adaptation(self, item: Plan) -> list[str]:
        """Return those of them that adaptation reads."""
        names = {text: text.partition("=")[0].strip() for text in self.shared(item)}
        return [text for text, name in names.items() if not of_training(name, Adapt)]

    def training(self, item: Plan) -> list[str]:
        """Return the settings of one training."""
        return [
            *(path_setting("run.dir", self.group(item)), f"run.name=seed{item.seed}"),
            *(f"run.seed={item.seed}", f"trainer.max_steps={self.steps}"),
            f"trainer.val_check_interval={self.steps}",
            f"data.evaluate={'[]' if self.unseen_only else '[test]'}",
            path_setting("data.cache_dir", self.out / ".cache"),
            *self.shared(item),
            *self.methods[item.name].training(),
        ]

    def adaptation(self, item: Plan, way: Way) -> list[str]:
        """Return the settings of one adaptation."""
        examples = [f"adapt.examples={self.examples}"] if self.examples is not None else []
        common = [
            *(f"adapt.seeds=[{item.seed}]", f"adapt.max_steps={self.adapt_steps}"),
            f"adapt.eval_every={max(1, self.adapt_steps // 2)}",
            *(*examples, *self.shared_by_adaptation(item), *way.settings),
        ]
        lr = load_config(self.adapt_files(item), common).adapt.lr
        method = self.methods[item.name]
        if way.sets_rate:
            method = replace(method, rate=1.0)
        return [*common, *method.adaptation(lr)]

    @cached_property
    def gym(self) -> Gym:
        """The tasks on disk."""
        return open_gym(self._common.data)

    @cached_property
    def partitions(self) -> list[Partition]:
        """The partition of the configuration; with folds, one for each."""
        data = self._common.data
        whole = partition_of(data, self.gym)
        if self.n_folds is None:
            return [whole]
        tasks = [task for side in SIDES for task in getattr(whole, side)]
        held = select_tasks(tasks, self.gym, data.skip_missing)
        folds = deal({task: self.gym.category(task) for task in held}, self.n_folds, FOLD_SEED)
        return partitions(folds, N_DEV if self.search_rates else 0, FOLD_SEED)

    @property
    def _common(self) -> Config:
        return load_config(self.config, list(self.overrides))

    def check(self, plans: list[Plan]) -> None:
        """See that everything can run: a mistake should not cost the runs before it.

        Raises:
            MttlError: If a configuration, a task or a sample does not exist or is not allowed.
        """
        refuse_settings(self.overrides, OWN_SETTINGS)
        if self.n_folds is not None and self.tasks != "test":
            raise ConfigError(
                f"--tasks {self.tasks} has no meaning with --folds, where every task is unseen "
                "once; leave one of them out"
            )
        data, partition = self._common.data, self.partitions[0]
        if self.n_folds is None:
            seen = select_tasks(partition.train, self.gym, data.skip_missing)
            unseen = new_tasks(self.tasks, data, self.gym, seen)
        else:
            seen = unseen = [task for side in SIDES for task in getattr(partition, side)]
        dev: list[str] = []
        for own in self.partitions if self.search_rates else ():
            dev += select_tasks(own.dev, self.gym, data.skip_missing) if own.dev else []
        if self.search_rates and not dev:
            raise ConfigError(
                f"--search-rates needs development tasks, and '{data.partition}' has none"
            )
        most = 0
        # Seeds and folds are all alike.
        for item in {item.name: item for item in plans}.values():
            training = load_config(self.files(item), self.training(item))
            n_skills = getattr(training.skills, "n_skills", None)
            if training.router.kind == "expert" and isinstance(n_skills, int):
                tasks = [*seen, *unseen, *dev]
                self.check_matrix(item, training.router.matrix, tasks, n_skills)
            for way in item.ways:
                adapt = load_config(self.adapt_files(item), self.adaptation(item, way)).adapt
                most = max(most, adapt.examples or 0)
        samples = read_samples(self.samples)
        plan_jobs(self.gym, unseen, [0], samples=samples, n_examples=most or None)
        plan_jobs(self.gym, dev, [0], samples=data.samples[:1], splits=("dev",), n_examples=most)
        for item in plans:
            for place in sorted(self.run_folder(item).glob("adapt-*")):
                check_rows(place, set(Results(place).finished), self.gym.digest)

    def check_matrix(self, item: Plan, name: str, tasks: list[str], n_skills: int) -> None:
        """See that the matrix of a method names all tasks."""
        from mttl.assembly.expert_matrix import read_expert_matrix  # it brings PyTorch

        read_expert_matrix(name, tasks, n_skills)

    def shared_settings(self) -> dict[str, object]:
        """Return what all runs share."""
        return {
            "config": self.config,
            "steps": self.steps,
            "adapt_steps": self.adapt_steps,
            "tasks": self.tasks,
            "samples": self.samples,
            "overrides": list(self.overrides),
            "examples": self.examples,
            "folds": self.n_folds,
            "search_rates": self.search_rates or None,
            "unseen_only": self.unseen_only or None,
        }

    def keep_settings(self) -> None:
        """Write down what all runs share, or refuse to mix runs of different budgets."""
        keep_config(
            self.out / "comparison.yaml",
            yaml12.dump(self.shared_settings()),
            lambda changed: (
                f"the comparison in '{self.out}' was made with other settings: {changed}. Use "
                "those, or another folder with --out"
            ),
        )
        # As written: what `auto` means differs from method to method.
        text = dump_config(load_config(self.config, list(self.overrides), as_written=True))
        keep_config(
            self.out / "config.yaml",
            text,
            lambda changed: (
                f"the files of '{self.config}' have changed since the comparison in '{self.out}' "
                f"began: {changed}. Change them back, or use another folder with --out"
            ),
        )
        own = [name for name, method in self.methods.items() if method.adapts_by_fragment]
        for name in own:
            files = self.files(Plan(name, 0))
            keep_config(
                self.out / "methods" / f"{name}.yaml",
                dump_config(load_config(files, list(self.overrides))),
                lambda changed, name=name: (
                    f"the method '{name}' has changed since the comparison in '{self.out}' began: "
                    f"{changed}. Change its file back, or give it another name"
                ),
            )
        if self.n_folds is not None:
            for number, partition in enumerate(self.partitions, 1):
                text = json.dumps(asdict(partition), indent=1) + "\n"
                path = self.partition_file(number)
                if path.exists() and read_text(path, ConfigError) != text:
                    raise ConfigError(
                        f"the tasks of '{self.config}' have changed since the comparison in "
                        f"'{self.out}' began, and fold {number} would be of others: '{path}' has "
                        "those that were trained. Use another folder with --out"
                    )
                write_text(path, text)

    def stages(self, item: Plan) -> list[str]:
        """Return the names of all that has to be run."""
        adapting = (stage for way in item.ways for stage in self.stages_of(way))
        return ["train", *adapting]

    def stages_of(self, way: Way) -> list[str]:
        """Return the names of what a way of adaptation runs."""
        search = [f"search-{way.name}"] if self.search_rates and way.trains else []
        return [*search, f"adapt-{way.name}"]

    def has_ended(self, item: Plan) -> bool:
        """Return whether nothing is left to do."""
        return all(self.cost(item, stage).ended for stage in self.stages(item))

    def rates(self, item: Plan, way: Way) -> list[str]:
        """Return the settings of the rates that were found for a way of adaptation."""
        if f"search-{way.name}" not in self.stages_of(way):
            return []
        return chosen_rates(self.run_folder(item) / f"search-{way.name}")

    def run(self, item: Plan, processes: Processes) -> None:
        """Train, search and adapt, leaving out what has ended."""
        self.train(item, processes)
        for way in item.ways:
            for stage in self.stages_of(way):
                if not self.cost(item, stage).ended:
                    command = self._search if stage.startswith("search-") else self._adapt
                    self.command(item, stage, command(item, way), processes)

    def train(self, item: Plan, processes: Processes) -> None:
        """Make the run of a method, unless there is one."""
        if not self.cost(item, "train").ended:
            self.command(item, "train", self.train_command(item), processes)

    def train_command(self, item: Plan) -> list[str]:
        """Return the command that trains a method, from where it was interrupted."""
        command = ["-m", "mttl", "train", "-c", self.files(item)]
        return [*command, *start_again(self.run_folder(item)), "-k", *self.training(item)]

    def seen_scores(self, item: Plan) -> list[Score]:
        """Read the scores of the tasks of a training that has ended."""
        path = self.run_folder(item) / "results.csv"
        return read_seen(path, item.name, item.seed, item.fold)

    def command(self, item: Plan, stage: str, command: list[str], processes: Processes) -> None:
        """Run the command of a stage, and write down what it cost."""
        log = self.group(item) / f"seed{item.seed}.log"
        processes.run(command, log, self.cost_file(item, stage))

    def _adapt(self, item: Plan, way: Way) -> list[str]:
        run = self.run_folder(item)
        files = self.adapt_files(item)
        command = ["-m", "mttl", "adapt", "-c", files, "--from", str(run)]
        command += ["--samples", self.samples] if self.samples else []
        command += ["--tasks", self.tasks, "--out", str(run / f"adapt-{way.name}")]
        return [*command, "-k", *self.adaptation(item, way), *self.rates(item, way)]

    def _search(self, item: Plan, way: Way) -> list[str]:
        run, given = self.run_folder(item), self.adaptation(item, way)
        files = self.adapt_files(item)
        config = load_config(files, given)
        command = ["-m", "mttl", "search", "-c", files, "--from", str(run)]
        command += ["--tasks", "dev", "--samples", str(config.data.samples[0])]
        command += ["--out", str(run / f"search-{way.name}")]
        return [*command, "-k", *given, f"search.points={search_points(config.adapt)}"]


def carry_out(
    comparison: Comparison, plans: list[Plan], n_workers: int, write: Callable[[], str]
) -> str:
    """Run what is missing, and write tables whenever something has ended.

    Args:
        comparison: The folder.
        plans: What belongs to it.
        n_workers: How many trainings at a time.
        write: Writes tables of what has ended, and returns them.

    Returns:
        The tables of everything.
    """
    if not plans:  # everything exists
        with alone(comparison.out):
            return write()
    comparison.check(plans)
    with alone(comparison.out):
        comparison.keep_settings()
        run_all(
            [item for item in plans if not comparison.has_ended(item)],
            comparison.run,
            n_workers=n_workers,
            name=str,
            ended=write,
        )
    return write()
