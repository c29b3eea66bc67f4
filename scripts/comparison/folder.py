"""The folder of a comparison: its settings, and running what is missing in it."""

from dataclasses import dataclass
from pathlib import Path

from comparison.methods import ALL, MODE_SETTINGS, Plan
from comparison.running import keep_config, refuse_settings
from comparison.stages import Cost, Processes, start_again
from mttl import yaml12
from mttl.adaptation.plan import new_tasks, plan_jobs, read_samples
from mttl.config.load import dump_config, load_config, resolve_folder, resolve_path
from mttl.gym.folder import Gym
from mttl.gym.partition import load_partition, select_tasks

ROOT = Path(__file__).resolve().parents[2]
# What the comparison sets itself, and how to choose it.
OWN_SETTINGS = {
    "run.dir": " (--out)",
    "run.name": "",
    "run.seed": " (--seeds)",
    "data.evaluate": "",
    "trainer.max_steps": " (--steps)",
    "adapt.mode": " (--modes)",
    "adapt.seeds": " (--seeds)",
    "adapt.max_steps": " (--adapt-steps)",
}


@dataclass(frozen=True)
class Comparison:
    """The folder of a comparison, and what all its runs share.

    Args:
        out: The folder.
        config: Configuration files.
        steps: Optimizer steps of every training.
        adapt_steps: Optimizer steps of every adaptation job.
        tasks: Which unseen tasks.
        samples: Which few-shot samples of them, joined by commas; all by default.
        overrides: Settings of all runs.
    """

    out: Path
    config: str
    steps: int
    adapt_steps: int
    tasks: str
    samples: str | None = None
    overrides: tuple[str, ...] = ()

    def run_folder(self, item: Plan) -> Path:
        """Return where one training goes."""
        return self.out / item.name / f"seed{item.seed}"

    def cost_file(self, item: Plan, stage: str) -> Path:
        """Return where the cost of a stage is written down: beside the run, not in it."""
        return self.out / item.name / f"seed{item.seed}-{stage}.json"

    def cost(self, item: Plan, stage: str) -> Cost:
        """Return what a stage has cost so far."""
        return Cost.read(self.cost_file(item, stage))

    def files(self, item: Plan) -> str:
        """Return the configuration files of one training."""
        return f"{self.config}+{ALL[item.name].fragment}"

    def training(self, item: Plan) -> list[str]:
        """Return the settings of one training."""
        return [
            *(f"run.dir={self.out / item.name}", f"run.name=seed{item.seed}"),
            *(f"run.seed={item.seed}", f"trainer.max_steps={self.steps}"),
            *(f"trainer.val_check_interval={self.steps}", "data.evaluate=[test]"),
            f"data.cache_dir={self.out / '.cache'}",
            *self.overrides,
            *ALL[item.name].training(),
        ]

    def adaptation(self, item: Plan, mode: str) -> list[str]:
        """Return the settings of one adaptation."""
        common = [
            *(f"adapt.mode={mode}", f"adapt.seeds=[{item.seed}]"),
            f"adapt.max_steps={self.adapt_steps}",
            f"adapt.eval_every={max(1, self.adapt_steps // 2)}",
            *MODE_SETTINGS.get(mode, ()),
            *self.overrides,
        ]
        lr = load_config(self.config, common).adapt.lr
        return [*common, *ALL[item.name].adaptation(lr)]

    def check(self, plans: list[Plan]) -> None:
        """See that everything can run: a mistake should not cost the runs before it.

        Raises:
            MttlError: If a configuration, a task or a sample does not exist or is not allowed.
        """
        refuse_settings(self.overrides, OWN_SETTINGS)
        for item in plans:
            load_config(self.files(item), self.training(item))
            for mode in item.modes:
                load_config(self.config, self.adaptation(item, mode))
        data = load_config(self.config, list(self.overrides)).data
        gym, partition = Gym(resolve_folder(data.dir)), resolve_path(data.partition)
        seen = select_tasks(load_partition(partition).train, gym, data.skip_missing)
        unseen = new_tasks(self.tasks, partition, gym, seen, skip_missing=data.skip_missing)
        plan_jobs(gym, unseen, [plans[0].seed], samples=read_samples(self.samples))

    def keep_settings(self) -> None:
        """Write down what all runs share, or refuse to mix runs of different budgets."""
        shared = {
            "config": self.config,
            "steps": self.steps,
            "adapt_steps": self.adapt_steps,
            "tasks": self.tasks,
            "samples": self.samples,
            "overrides": list(self.overrides),
        }
        keep_config(
            self.out / "comparison.yaml",
            yaml12.dump(shared),
            lambda changed: (
                f"the comparison in '{self.out}' was made with other settings: {changed}. Use "
                "those, or another folder with --out"
            ),
        )
        text = dump_config(load_config(self.config, list(self.overrides)))
        keep_config(
            self.out / "config.yaml",
            text,
            lambda changed: (
                f"the files of '{self.config}' have changed since the comparison in '{self.out}' "
                f"began: {changed}. Change them back, or use another folder with --out"
            ),
        )

    def has_ended(self, item: Plan) -> bool:
        """Return whether nothing is left to do."""
        stages = ("train", *(f"adapt-{mode}" for mode in item.modes))
        return all(self.cost(item, stage).ended for stage in stages)

    def run(self, item: Plan, processes: Processes) -> None:
        """Train and adapt, leaving out what has ended."""
        run = self.run_folder(item)
        log = self.out / item.name / f"seed{item.seed}.log"
        if not self.cost(item, "train").ended:
            resume = start_again(run)
            command = [str(ROOT / "pl_train.py"), "-c", self.files(item), *resume]
            command += ["-k", *self.training(item)]
            processes.run(command, log, self.cost_file(item, "train"))
        for mode in item.modes:
            if not self.cost(item, f"adapt-{mode}").ended:
                command = [str(ROOT / "pl_finetune.py"), "-c", self.config, "--from", str(run)]
                command += ["--samples", self.samples] if self.samples else []
                command += ["--tasks", self.tasks, "-k", *self.adaptation(item, mode)]
                processes.run(command, log, self.cost_file(item, f"adapt-{mode}"))
