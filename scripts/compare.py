"""Train every method with the same budget and seeds, adapt it to all unseen tasks, and tabulate.

python scripts/pretrain_denoiser.py
python scripts/compare.py --out runs/compare
python scripts/compare.py --methods polytropon shared --seeds 13 --steps 200 --out runs/try

A method is `pl_train.py -c crossfit.yaml+<fragment>` and then `pl_finetune.py`, each in a process
of its own. What has ended is read, not repeated; what was interrupted goes on. The tables are
written to OUT/table.md, table.csv and scores.csv whenever a method has ended.
"""

import argparse
import json
import math
import os
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import yaml
from comparison.methods import (
    ABLATIONS,
    ALL,
    FIXED_ROUTERS,
    METHODS,
    MODE_SETTINGS,
    MODES,
    REFERENCE,
    Plan,
    plan,
)
from comparison.running import (
    alone,
    comparison_parser,
    keep_config,
    refuse_settings,
    run_all,
)
from comparison.stages import Cost, Processes, start_again
from comparison.tables import (
    Line,
    Score,
    by_seed,
    label,
    lines_csv,
    main_table,
    paired_difference,
    read_seen,
    read_unseen,
    scores_csv,
    task_table,
)

from mttl.analysis.libraries import check_libraries
from mttl.analysis.token_record import has_token_record, read_token_record
from mttl.checkpoint import count_saved
from mttl.command import exit_with, make_console, positive
from mttl.config.load import dump_config, load_config, resolve_folder, resolve_path
from mttl.data.gym import Gym
from mttl.data.partition import load_partition, select_tasks
from mttl.errors import ConfigError
from mttl.files import write_text
from mttl.model_tensors import TOKENS
from mttl.training.few_shot_jobs import new_tasks, plan_jobs, read_samples

TOKEN_CAPTION = (
    " Where tokens choose experts: the entropy of the experts' loads over its maximum and the "
    "share of choices that found no room, on test rows, means over layers."
)
ROOT = Path(__file__).resolve().parent.parent
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


def main(arguments: list[str] | None = None) -> int:
    """Run what is missing, and print and write the tables."""
    options = parse(arguments)
    check_libraries("matplotlib", "scipy")
    comparison = Comparison(
        out=Path(options.out),
        config=options.config,
        steps=options.steps,
        adapt_steps=options.adapt_steps,
        tasks=options.tasks,
        samples=options.samples,
        overrides=tuple(text for group in options.override for text in group),
    )
    plans = plan(options.methods, options.modes, options.seeds)
    comparison.check(plans)
    processes = Processes(n_threads=max(1, (os.cpu_count() or 1) // options.workers))
    with alone(comparison.out):
        comparison.keep_settings()
        run_all(
            [item for item in plans if not comparison.has_ended(item)],
            lambda item: comparison.run(item, processes),
            processes=processes,
            n_workers=options.workers,
            name=lambda item: f"{item.name}, seed {item.seed}",
            ended=lambda: comparison.write_tables(plans),
        )
    make_console().print(comparison.write_tables(plans), markup=False, soft_wrap=True)
    make_console().print(f"The tables are in {options.out}")
    return 0


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
        path = self.out / "comparison.yaml"
        shared = {
            "config": self.config,
            "steps": self.steps,
            "adapt_steps": self.adapt_steps,
            "tasks": self.tasks,
            "samples": self.samples,
            "overrides": list(self.overrides),
        }
        before = yaml.safe_load(path.read_text("utf-8")) if path.is_file() else shared
        changed = [name for name in shared if before.get(name) != shared[name]]
        if changed:
            raise ConfigError(
                f"the comparison in '{self.out}' was made with other settings: "
                + ", ".join(f"{name} ({before.get(name)})" for name in changed)
                + ". Use those, or another folder with --out"
            )
        write_text(path, yaml.safe_dump(shared, sort_keys=False))
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

    def scores(self, plans: list[Plan]) -> list[Score]:
        """Read the scores of all that has ended."""
        found: list[Score] = []
        for item in plans:
            run = self.run_folder(item)
            if self.cost(item, "train").ended:
                found += read_seen(run / "results.csv", item.name, item.seed)
            for mode in item.modes:
                if self.cost(item, f"adapt-{mode}").ended:
                    path = run / f"adapt-{mode}" / "results.jsonl"
                    found += read_unseen(path, item.name, mode, item.seed)
        return found

    def write_tables(self, plans: list[Plan]) -> str:
        """Write the tables of what has ended, and return them as Markdown."""
        scores = self.scores(plans)
        if not scores:
            return ""
        ended = {(score.method, score.mode) for score in scores if score.mode}
        columns = [column for column in _columns(plans) if column in ended]
        lines = [self.line(*column, plans, scores) for column in columns]
        text = f"{self.caption(plans)}\n\n{main_table(lines, REFERENCE)}"
        for heading, kept in (
            ("Unseen tasks, every method:", [column for column in columns if column[1] == "all"]),
            ("Unseen tasks, every mode:", [column for column in columns if column[0] == REFERENCE]),
        ):
            if len(kept) > 1:
                unseen = [score for score in scores if (score.method, score.mode) in kept]
                text += f"\n{heading}\n\n{task_table(unseen, kept)}"
        from comparison.figure import Dots, comparison_figure  # they need matplotlib

        from mttl.analysis.figures import save_figure

        dots = [
            Dots(
                label(*column),
                seen=list(_means(scores, column[0], "").values()) if column[1] == "all" else [],
                unseen=list(_means(scores, *column).values()),
            )
            for column in columns
        ]
        save_figure(comparison_figure(dots, REFERENCE), self.out / "comparison")
        write_text(self.out / "table.md", text)
        write_text(self.out / "table.csv", lines_csv(lines))
        write_text(self.out / "scores.csv", scores_csv(scores))
        return text

    def line(self, method: str, mode: str, plans: list[Plan], scores: list[Score]) -> Line:
        """Return one row of the main table."""
        items = [item for item in plans if item.name == method]
        training = [cost for item in items if (cost := self.cost(item, "train")).ended]
        adapting = [cost for item in items if (cost := self.cost(item, f"adapt-{mode}")).ended]
        first = next(item for item in items if self.cost(item, f"adapt-{mode}").ended)
        # A mode changes nothing about the tasks of training.
        seen = _means(scores, method, "") if mode == "all" else {}
        unseen = _means(scores, method, mode)
        return Line(
            label(method, mode),
            trained=self.n_trained(first, mode),
            n_seeds=len(unseen),
            seen=_mean(seen.values()),
            unseen=_mean(unseen.values()),
            seen_difference=paired_difference(seen, _means(scores, REFERENCE, "")),
            unseen_difference=paired_difference(unseen, _means(scores, REFERENCE, "all")),
            training_minutes=_mean(cost.cpu_minutes for cost in training if seen),
            adaptation_minutes=_mean(cost.cpu_minutes for cost in adapting),
            peak_mib=max(cost.peak_mib for cost in training + adapting),
            **self.loads(items if mode == "all" else []),
        )

    def loads(self, items: list[Plan]) -> dict[str, float]:
        """Return how even the loads of experts are on test rows, and which share was dropped."""
        runs = [self.run_folder(item) for item in items if self.cost(item, "train").ended]
        records = [read_token_record(run) for run in runs if has_token_record(run)]
        return {
            "load_entropy": _mean(float(record.evenness().mean()) for record in records),
            "dropped": 100 * _mean(float(record.dropped.mean()) for record in records),
        }

    def n_trained(self, item: Plan, mode: str) -> int:
        """Return how many parameters of skills and router a training, or a mode, trains."""
        run = self.run_folder(item)
        if mode == "all":
            return n_trained(run)
        first, *_ = (run / f"adapt-{mode}" / "results.jsonl").read_text("utf-8").splitlines()
        return json.loads(first)["n_trained"]

    def caption(self, plans: list[Plan]) -> str:
        """Return the budget and what the columns mean."""
        seeds = sorted({item.seed for item in plans})
        ended = sum(self.has_ended(item) for item in plans)
        unfinished = f" {ended} of {len(plans)} runs have ended." if ended < len(plans) else ""
        samples = f", few-shot samples {self.samples}" if self.samples else ""
        overrides = f" `-k {' '.join(self.overrides)}`" if self.overrides else ""
        return (
            f"`{self.config}`{overrides}: {self.steps} steps of training, {self.adapt_steps} of "
            f"each adaptation, seeds {', '.join(map(str, seeds))}{samples}.{unfinished} Mean test "
            "scores over tasks in per cent; in brackets the 95 % interval of the paired "
            "difference, from the seeds (Student's t). Trained parameters are those of skills and "
            "router, or what a mode trains; minutes are processor time per run; memory is the "
            "peak of a process."
            + (TOKEN_CAPTION if any(item.name.startswith("token") for item in plans) else "")
        )


def n_trained(run: Path) -> int:
    """Return the number of parameters of a run's skills and learned router, from file headers."""
    skills = run / "skills"
    kind = json.loads((skills / "meta.json").read_text("utf-8"))["settings"]["router"]["kind"]
    # What routes tokens learns, whatever routes tasks.
    learned = TOKENS if kind in FIXED_ROUTERS else ""
    routers = count_saved(skills / "router.safetensors", learned)
    return count_saved(skills / "skills.safetensors") + routers


def _columns(plans: list[Plan]) -> list[tuple[str, str]]:
    """Return methods, then the further modes of the reference."""
    columns = dict.fromkeys((item.name, mode) for item in plans for mode in item.modes)
    return sorted(columns, key=lambda column: column[1] != "all")


def _means(scores: list[Score], method: str, mode: str) -> dict[int, float]:
    """Return the mean over tasks by seed; of the tasks of training where there is no mode."""
    return by_seed(score for score in scores if (score.method, score.mode) == (method, mode))


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return statistics.fmean(known) if known else math.nan


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = comparison_parser(
        __doc__,
        config="crossfit.yaml+backbone/denoiser.yaml",
        out="runs/compare",
        methods=list(METHODS),
        ablations=list(ABLATIONS),
    )
    parser.add_argument(
        "--modes",
        nargs="*",
        default=list(MODES),
        choices=MODES,
        metavar="MODE",
        help=f"adaptation modes on top of {REFERENCE} (all)",
    )
    parser.add_argument("--steps", type=positive, default=500, help="of training (%(default)s)")
    parser.add_argument(
        "--adapt-steps", type=positive, default=60, help="of each adaptation job (%(default)s)"
    )
    parser.add_argument("--tasks", default="test", help="as for pl_finetune.py (%(default)s)")
    parser.add_argument(
        "--samples", metavar="N[,N...]", help="few-shot samples of every unseen task (all)"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    exit_with(main)
