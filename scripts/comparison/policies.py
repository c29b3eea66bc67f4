"""The folder of a comparison of policies: its settings, its runs, and their tables."""

from dataclasses import dataclass
from pathlib import Path

from comparison.learning import (
    METHODS,
    REFERENCE,
    Curve,
    efficiency_table,
    level_table,
    levels_csv,
    read_curve,
)
from comparison.methods import FIXED_ROUTERS
from comparison.running import keep_config, path_setting, refuse_settings
from comparison.stages import Cost, Processes, start_again
from mttl.config.babyai_schema import BabyAIConfig
from mttl.config.load import dump_config, load_any_config
from mttl.errors import ConfigError, MttlError
from mttl.files import write_text
from mttl.reading import read_json

ROOT = Path(__file__).resolve().parents[2]
OWN_SETTINGS = {
    "run.dir": " (--out)",
    "run.name": "",
    "run.seed": " (--seeds)",
    "trainer.max_epochs": " (--rollouts)",
    "rl.stop_when_solved": "",
}


@dataclass(frozen=True)
class Study:
    """The folder of a comparison, and what all its runs share.

    Args:
        out: The folder.
        config: Configuration files.
        rollouts: Of every run.
        overrides: Settings of all runs.
    """

    out: Path
    config: str
    rollouts: int
    overrides: tuple[str, ...] = ()

    def folder(self, method: str, seed: int) -> Path:
        """Return where one run goes."""
        return self.out / method / f"seed{seed}"

    def cost(self, method: str, seed: int) -> Cost:
        """Return what a run has cost so far."""
        return Cost.read(self.cost_file(method, seed))

    def cost_file(self, method: str, seed: int) -> Path:
        """Return where that is written down: beside the run, not in it."""
        return self.out / method / f"seed{seed}.json"

    def files(self, method: str) -> str:
        """Return the configuration files of a method."""
        return "+".join([self.config, *METHODS[method]])

    def settings(self, method: str, seed: int) -> list[str]:
        """Return the settings of a run."""
        return [
            *(
                path_setting("run.dir", self.out / method),
                f"run.name=seed{seed}",
                f"run.seed={seed}",
            ),
            *(f"trainer.max_epochs={self.rollouts}", "rl.stop_when_solved=false"),
            *self.overrides,
        ]

    def check(self, methods: list[str]) -> None:
        """See that everything can run: a mistake should not cost the runs before it."""
        refuse_settings(self.overrides, OWN_SETTINGS)
        if not isinstance(load_any_config(self.config, self.overrides), BabyAIConfig):
            raise ConfigError(f"'{self.config}' has no section rl: it describes no policies")
        for method in methods:
            load_any_config(self.files(method), self.settings(method, 0))

    def keep_settings(self) -> None:
        """Write down what all runs share, or refuse to mix runs of different settings."""
        own = [f"trainer.max_epochs={self.rollouts}", *self.overrides]
        text = dump_config(load_any_config(self.config, own))
        keep_config(
            self.out / "config.yaml",
            text,
            lambda changed: (
                f"the comparison in '{self.out}' was made with other settings: {changed}. Use "
                "those, or another folder with --out"
            ),
        )

    def run(self, method: str, seed: int, processes: Processes) -> None:
        """Train once."""
        resume = start_again(self.folder(method, seed))
        command = [str(ROOT / "pl_train.py"), "-c", self.files(method), *resume]
        command += ["-k", *self.settings(method, seed)]
        log = self.out / method / f"seed{seed}.log"
        processes.run(command, log, self.cost_file(method, seed))

    def curves(self, runs: list[tuple[str, int]]) -> dict[str, list[Curve]]:
        """Read the learning curves of what has ended, by method."""
        found: dict[str, list[Curve]] = {}
        for method, seed in runs:
            if (cost := self.cost(method, seed)).ended:
                run = self.folder(method, seed)
                curve = read_curve(run, cost.cpu_minutes, n_trained(run))
                found.setdefault(method, []).append(curve)
        return found

    def write_tables(self, runs: list[tuple[str, int]], rate: float, smoothing: int) -> str:
        """Write the tables of what has ended, and return them as Markdown."""
        curves = self.curves(runs)
        if not curves:
            return ""
        overrides = f" `-k {' '.join(self.overrides)}`" if self.overrides else ""
        seeds = sorted({seed for _, seed in runs})
        text = (
            f"`{self.config}`{overrides}: {self.rollouts} rollouts, seeds "
            f"{', '.join(map(str, seeds))}. Episodes of all levels until the mean success rate "
            f"over levels, each over its last 100 episodes, reached {rate:.0%} (centred mean over "
            f"{smoothing} rollouts); in brackets the 95 % interval from the seeds (Student's t). "
            "`> n`: a seed never did.\n\n"
            f"{efficiency_table(curves, REFERENCE, rate, smoothing)}\n"
            f"Episodes of all levels until the level itself was learned at {rate:.0%}, mean over "
            "seeds:\n\n"
            f"{level_table(curves, rate, smoothing)}"
        )
        write_text(self.out / "table.md", text)
        write_text(self.out / "levels.csv", levels_csv(curves))
        from comparison.curves_figure import curves_figure  # they need matplotlib
        from mttl.analysis.figures import save_figure

        save_figure(curves_figure(curves, REFERENCE), self.out / "curves")
        return text


def n_trained(run: Path) -> int:
    """Return how many parameters a run trained: skills, learned router, and the common part."""
    from mttl.checkpoint import count_saved  # it brings PyTorch

    skills = run / "skills"
    settings = read_json(skills / "meta.json", MttlError, dict)["settings"]
    files = ["skills"]
    files += ["router"] if settings["router"]["kind"] not in FIXED_ROUTERS else []
    files += ["backbone"] if settings["train_base"] else []
    return sum(count_saved(skills / f"{name}.safetensors") for name in files)
