"""Use finished runs as methods in a comparison."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mttl.adaptation.plan import MAY_CHANGE, SUCCESS, FewShotResult, Results
from mttl.analysis.saved_scores import saved_scores
from mttl.checkpoints.run_folder import PLACE, RunFolder, differing_settings, settings_of
from mttl.commands.comparison.tables import TaskScore, markdown, spread
from mttl.io.errors import MttlError
from mttl.tasks.partition import MEAN

# Settings that affect neither training nor scoring.
PLACES = (*PLACE, "run.seed", "search.", "data.cache_dir", "trainer.loggers")
PARTITION = "data.partition"  # compared by its tasks, not its name
MAY_DIFFER = (*PLACES, "adapt.")
MOST_SHOWN = 12  # settings in a list of differences
Adapted = tuple[str, int]  # task and few-shot sample


@dataclass(frozen=True)
class ExistingRuns:
    """The runs of one method, one per seed."""

    name: str
    folders: tuple[Path, ...]

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of the runs."""
        return seeds_of(self.folders)

    def check(self) -> None:
        """Raise an `MttlError` unless the folders are finished runs of one method."""
        if problem := next(self._problems(), None):
            raise MttlError(f"--runs {self.name}: {problem}")

    def _problems(self) -> Iterator[str]:
        for folder in self.folders[1:]:
            if other := differences(self.folders[0], folder):
                yield (
                    f"'{self.folders[0]}' and '{folder}' differ in settings other than the seed: "
                    f"{', '.join(other)}. Give them different names"
                )
        for folder, seed in zip(self.folders, self.seeds, strict=True):
            if not any(score.seed == seed for score in self.scores):
                results = RunFolder(folder).require_results()
                yield (
                    f"'{results}' has no test scores (data.evaluate: [test], or of levels "
                    "rl.evaluation.choose: [greedy]). Remove the run from --runs; mttl compare RUN "
                    "shows other scores"
                )
        for mode in dict.fromkeys(score.mode for score in self.scores if score.mode):
            places = [folder / f"adapt-{mode}" for folder in self.folders]
            found = {place: adapted_to(place) for place in places}
            everything = set[Adapted]().union(*found.values())
            for place, own in found.items():
                if own and own != everything:
                    yield (
                        f"'{place}' has results for {len(own)} of the {len(everything)} tasks and "
                        "samples of this method's runs; repeat the same mttl adapt to finish it, "
                        "or remove the run from --runs"
                    )

    @cached_property
    def scores(self) -> list[TaskScore]:
        """Test scores of the training tasks and of the tasks adapted to."""
        found: list[TaskScore] = []
        for folder, seed in zip(self.folders, self.seeds, strict=True):
            modes = [place.name.removeprefix("adapt-") for place in sorted(folder.glob("adapt-*"))]
            found += read_scores(folder, self.name, seed, modes)
        return found


def seeds_of(runs: Sequence[Path]) -> tuple[int, ...]:
    """Return the seeds of runs, which must differ."""
    found: dict[int, Path] = {}
    for run in runs:
        seed = settings_of(run)["run.seed"]
        if seed in found:
            raise MttlError(f"'{found[seed]}' and '{run}' have the same seed, {seed}; remove one")
        found[seed] = run
    return tuple(found)


def read_scores(
    run: Path, method: str, seed: int, modes: Sequence[str], fold: int = 0
) -> list[TaskScore]:
    """Return the test scores of a run's training tasks, and of the tasks it was adapted to.

    The score of a few-shot sample is the mean over seeds; see `mean_of_known`.
    """
    found, seen = [], trained_on(run)
    for row in saved_scores(RunFolder(run).results):
        # Those of levels are the success rates of policies with their most probable actions.
        policy = (row.split, row.metric) == ("greedy", SUCCESS)
        if row.task != MEAN and (policy or row.split == "test"):
            sample = 0 if policy else int(row.sample)
            found.append(TaskScore(method, "", seed, "seen", row.task, sample, row.percent, fold))
    for mode in modes:
        by_sample: dict[Adapted, list[FewShotResult]] = {}
        for job, result in Results(run / f"adapt-{mode}").finished.items():
            if job.task not in seen:  # possible with --allow-seen
                by_sample.setdefault((job.task, job.sample), []).append(result)
        for key, own in by_sample.items():
            score = mean_of_known([100 * result.test for result in own])
            found.append(TaskScore(method, mode, seed, "unseen", *key, score, fold, own[-1].rows))
    return found


def mean_of_known(values: Sequence[float]) -> float:
    """Return the mean, in which undefined scores count as 0; NaN if all are undefined."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(values) if known else math.nan


def read_runs(texts: Sequence[str], taken: Sequence[str]) -> list[ExistingRuns]:
    """Return the methods defined by ``NAME=RUN[,RUN...]`` texts, after checking their runs."""
    found: dict[str, ExistingRuns] = {}
    for text in texts:
        name, _, listed = text.partition("=")
        folders = tuple(Path(folder) for folder in listed.split(",") if folder)
        if not name or not folders:
            raise MttlError(f"--runs '{text}' must have the form NAME=RUN[,RUN...]")
        if name in found or name in taken:
            raise MttlError(f"--runs {name}: another method has this name; choose another")
        found[name] = ExistingRuns(name, folders)
        found[name].check()
    return list(found.values())


def differences(one: Path, other: Path) -> list[str]:
    """Return the differences of two runs except their seeds: settings and training tasks."""
    trained = differing_settings(one, other, (*MAY_DIFFER, PARTITION))
    found = list(trained)
    for place in sorted(one.glob("adapt-*")):
        if all(RunFolder(run / place.name).config.is_file() for run in (one, other)):
            names = differing_settings(place, other / place.name, (*PLACES, PARTITION, *MAY_CHANGE))
            found += [f"{place.name}: {name}" for name in names if name not in trained]
    first, second = trained_on(one), trained_on(other)
    if first and second and first != second:
        both = len(first & second)
        found.append(f"the training tasks ({len(first)} and {len(second)}, {both} in common)")
    return found


def trained_on(run: Path) -> set[str]:
    """Return a finished run's training tasks; empty for an unfinished run."""
    from mttl.checkpoints.inventory_files import read_names  # imports PyTorch

    skills = RunFolder(run).skills
    return set(read_names(skills)) if (skills / "tasks.json").is_file() else set()


def adapted_to(folder: Path) -> set[Adapted]:
    """Return the tasks and few-shot samples with results in an adaptation folder."""
    return {(job.task, job.sample) for job in Results(folder).finished}


def other_settings(first: Path, others: Sequence[ExistingRuns]) -> str:
    """Return one sentence per method on the settings that differ from those of a run."""
    parts = []
    for runs in others:
        names = differences(first, runs.folders[0])
        for place in sorted(first.glob("adapt-*")):
            one, other = adapted_to(place), adapted_to(runs.folders[0] / place.name)
            if one and other and one != other:
                counts = f"{len(one)} and {len(other)}, {len(one & other)} in common"
                names.append(f"{place.name}: tasks and samples ({counts})")
        shown = ", ".join(names[:MOST_SHOWN]) + (" …" if len(names) > MOST_SHOWN else "")
        if names:
            parts.append(f"`{runs.name}` differs from `{first}` in {shown}.")
    return "\n".join(parts)


def check_pairs(trainings: Sequence[tuple[str, int]], reference: str) -> None:
    """Raise an `MttlError` if a method has no seed in common with the reference."""
    common = {seed for name, seed in trainings if name == reference}
    for name in dict.fromkeys(name for name, _ in trainings):
        own = {seed for other, seed in trainings if other == name}
        if not own & common:
            shown = [", ".join(map(str, sorted(seeds))) for seeds in (own, common)]
            raise MttlError(
                f"'{name}' has the seeds {shown[0]} and '{reference}' has {shown[1]}; differences "
                "are paired by seed, so the methods need a common seed"
            )


def summary(runs: Sequence[Path]) -> str:
    """Return a Markdown table with the scores of runs that differ only in their seeds.

    Baselines are those of the first run. Raises an `MttlError` for runs of different settings.
    """
    for run in runs[1:]:
        if different := differing_settings(runs[0], run, MAY_DIFFER):
            raise MttlError(
                f"'{runs[0]}' and '{run}' differ in more than their seed: {', '.join(different)}. "
                "Summarise runs of one configuration; compare others with mttl compare --runs"
            )
    if len(runs) > 1:
        seeds_of(runs)
    scores: dict[tuple[str, str], list[float]] = {}  # by task and split
    for run in runs:
        for key, value in _task_means(RunFolder(run).require_results()).items():
            scores.setdefault(key, []).append(value)
    path = RunFolder(runs[0]).baselines
    names = ("copy", "majority") if path.is_file() else ()  # none for BabyAI
    baselines = {name: _task_means(path, name) for name in names}
    splits = list(dict.fromkeys(split for _, split in scores))
    rows = []
    for task in (*dict.fromkeys(task for task, _ in scores if task != MEAN), MEAN):
        cells = [f"`{task}`" if task != MEAN else "**mean**"]
        for split in splits:
            cells.append(spread(scores.get((task, split), [])))
            cells += [spread([table.get((task, split), math.nan)]) for table in baselines.values()]
        rows.append(cells)
    heads = ["task", *(name for split in splits for name in (split, *baselines))]
    caption = f"Scores in %; mean ± standard deviation over {len(runs)} runs."
    return f"{caption}\n\n{markdown(heads, rows)}".rstrip()


def _task_means(path: Path, baseline: str = "") -> dict[tuple[str, str], float]:
    """Return mean scores in % by task and split, over few-shot samples."""
    found: dict[tuple[str, str], list[float]] = {}
    for row in saved_scores(path):
        if row.baseline == baseline and row.metric != "steps":
            found.setdefault((row.task, row.split), []).append(row.percent)
    return {key: mean_of_known(values) for key, values in found.items()}
