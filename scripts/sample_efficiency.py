"""How many episodes each method needs until its levels are learned, with the same budget and seeds.

python scripts/sample_efficiency.py --out runs/sample_efficiency
python scripts/sample_efficiency.py --methods polytropon shared --seeds 13 --out runs/try

A method is `pl_train.py -c babyai.yaml+babyai/<method>.yaml`, in a process of its own. What has
ended is read, not repeated; what was interrupted goes on. OUT/table.md, levels.csv and curves.svg
are written whenever a run has ended.
"""

import argparse
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from comparison.learning import (
    METHODS,
    REFERENCE,
    Curve,
    curves_figure,
    efficiency_table,
    level_table,
    levels_csv,
    read_curve,
)
from comparison.stages import Cost, Processes, start_again
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mttl.analysis.figures import save_figure
from mttl.analysis.libraries import check_libraries
from mttl.checkpoint import count_saved
from mttl.command import exit_with, make_console
from mttl.config.babyai_schema import BabyAIConfig
from mttl.config.load import dump_config, load_any_config
from mttl.errors import ConfigError
from mttl.files import locked, write_text
from mttl.training.run_folder import changed_settings

ROOT = Path(__file__).resolve().parent.parent
OWN_SETTINGS = {
    "run.dir": " (--out)",
    "run.name": "",
    "run.seed": " (--seeds)",
    "trainer.max_epochs": " (--rollouts)",
    "rl.stop_when_solved": "",
}


def main(arguments: list[str] | None = None) -> int:
    """Run what is missing, and print and write the tables."""
    options = parse(arguments)
    check_libraries("matplotlib")
    study = Study(
        out=Path(options.out),
        config=options.config,
        rollouts=options.rollouts,
        overrides=tuple(text for group in options.override for text in group),
    )
    runs = [(method, seed) for seed in options.seeds for method in options.methods]
    study.check(options.methods)
    try:
        with locked(study.out / ".lock"):
            study.keep_settings()
            run_all(study, runs, options.workers, options.rate, options.smoothing)
    except BlockingIOError:
        raise ConfigError(
            f"another comparison is at work in '{study.out}': wait for it, or choose another "
            "folder with --out"
        ) from None
    text = study.write_tables(runs, options.rate, options.smoothing)
    make_console().print(text, markup=False, soft_wrap=True)
    make_console().print(f"The tables are in {options.out}")
    return 0


def run_all(
    study: "Study", runs: list[tuple[str, int]], n_workers: int, rate: float, smoothing: int
) -> None:
    """Run what is missing, several runs at a time, and keep the tables up to date."""
    status = make_console(stderr=True)
    processes = Processes(n_threads=1)
    todo = [run for run in runs if not study.cost(*run).ended]
    with (
        Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=status,
            transient=True,
            disable=not status.is_terminal,
        ) as progress,
        ThreadPoolExecutor(n_workers) as pool,
        processes.stopping(),
    ):
        bar = progress.add_task("training", total=len(todo))
        futures = {pool.submit(study.run, *run, processes): run for run in todo}
        for future in as_completed(futures):
            future.result()
            progress.advance(bar)
            method, seed = futures[future]
            status.print(f"{method}, seed {seed}: ended")
            study.write_tables(runs, rate, smoothing)


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
            *(f"run.dir={self.out / method}", f"run.name=seed{seed}", f"run.seed={seed}"),
            *(f"trainer.max_epochs={self.rollouts}", "rl.stop_when_solved=false"),
            *self.overrides,
        ]

    def check(self, methods: list[str]) -> None:
        """See that everything can run: a mistake should not cost the runs before it.

        Raises:
            ConfigError: If a configuration is wrong or sets what the comparison sets.
        """
        for text in self.overrides:
            name = text.partition("=")[0].strip()
            if name in OWN_SETTINGS:
                raise ConfigError(
                    f"-k {name} is set by the comparison itself{OWN_SETTINGS[name]}: leave it out"
                )
        if not isinstance(load_any_config(self.config, self.overrides), BabyAIConfig):
            raise ConfigError(f"'{self.config}' has no section rl: it describes no policies")
        for method in methods:
            load_any_config(self.files(method), self.settings(method, 0))

    def keep_settings(self) -> None:
        """Write down what all runs share, or refuse to mix runs of different settings."""
        own = [f"trainer.max_epochs={self.rollouts}", *self.overrides]
        text = dump_config(load_any_config(self.config, own))
        path = self.out / "config.yaml"
        before = path.read_text("utf-8") if path.is_file() else text
        if changed := changed_settings(before, text, ignore=()):
            raise ConfigError(
                f"the comparison in '{self.out}' was made with other settings: "
                f"{', '.join(changed)}. Use those, or another folder with --out"
            )
        write_text(path, text)

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
                curve = read_curve(run, cost.cpu_minutes, self.n_trained(run))
                found.setdefault(method, []).append(curve)
        return found

    def n_trained(self, run: Path) -> int:
        """Return the number of parameters of a run's skills, router and common part."""
        files = ("skills", "router", "backbone")
        return sum(count_saved(run / "skills" / f"{name}.safetensors") for name in files)

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
            f"Episodes of the level itself until it was learned at {rate:.0%}, mean over seeds:\n\n"
            f"{level_table(curves, rate, smoothing)}"
        )
        write_text(self.out / "table.md", text)
        write_text(self.out / "levels.csv", levels_csv(curves))
        save_figure(curves_figure(curves, REFERENCE), self.out / "curves")
        return text


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        *("-c", "--config"), default="babyai.yaml", metavar="FILE[+FILE...]", help="(%(default)s)"
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        default=list(METHODS),
        choices=list(METHODS),
        metavar="METHOD",
        help=f"of {', '.join(METHODS)} (all)",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[13, 14, 15])
    parser.add_argument("--rollouts", type=int, default=200, help="of every run (%(default)s)")
    parser.add_argument(
        "--rate", type=float, default=0.9, help="success rate to reach (%(default)s)"
    )
    parser.add_argument(
        "--smoothing", type=int, default=10, help="rollouts that are averaged (%(default)s)"
    )
    parser.add_argument("--workers", type=int, default=2, help="runs at a time (%(default)s)")
    parser.add_argument("--out", default="runs/sample_efficiency", help="(%(default)s)")
    parser.add_argument(
        *("-k", "--set"),
        dest="override",
        action="append",
        nargs="+",
        default=[],
        metavar="section.key=value",
        help="settings of all runs",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    exit_with(main)
