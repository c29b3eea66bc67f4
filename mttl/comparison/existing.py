"""Runs that exist already, as methods of a comparison: their scores are read, nothing is run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mttl.adaptation.few_shot import FewShotResult
from mttl.adaptation.results import MAY_CHANGE, Results
from mttl.checkpoints.run_folder import PLACE, RunFolder, differing_settings, seed_of
from mttl.comparison.tables import Score, read_seen
from mttl.errors import MttlError

# Of the runs of a method, and of their adaptations.
PLACES = (
    *(*PLACE, "run.seed", "search.", "data.cache_dir", "trainer.loggers"),
    "data.partition",  # its tasks are compared
)
MAY_DIFFER = (*PLACES, "adapt.")
MOST_SHOWN = 12  # settings by which methods differ
Adapted = tuple[str, int]  # task and few-shot sample


@dataclass(frozen=True)
class ExistingRuns:
    """The runs of one method, of a seed each.

    Args:
        name: Of the method.
        folders: Of its runs.
    """

    name: str
    folders: tuple[Path, ...]

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """Their seeds.

        Raises:
            MttlError: If a folder is no run, or two are of one seed.
        """
        found = [seed_of(folder) for folder in self.folders]
        twice = sorted({seed for seed in found if found.count(seed) > 1})
        if twice:
            raise MttlError(f"--runs {self.name}: two runs have the seed {twice[0]}; name one")
        return tuple(found)

    def check(self) -> None:
        """See that all are runs of one method.

        Raises:
            MttlError: If one is no run, has not ended or has no test scores, or they
                differ in more than their seeds.
        """
        for folder in self.folders[1:]:
            other = differing_settings(self.folders[0], folder, ignore=MAY_DIFFER)
            other += adapted_otherwise(self.folders[0], folder)
            other += trained_on_others(self.folders[0], folder)
            if other:
                raise MttlError(
                    f"--runs {self.name}: '{self.folders[0]}' and '{folder}' differ in more than "
                    f"their seeds: {', '.join(other)}. Give each its own name"
                )
        for folder, seed in zip(self.folders, self.seeds, strict=True):
            if not any(score.seed == seed for score in self.scores):
                results = RunFolder(folder).require_results()
                raise MttlError(
                    f"--runs {self.name}: '{results}' has no test scores of tasks, which are "
                    "compared here (data.evaluate: [test]; mttl compare RUN shows others, "
                    "those of BabyAI too). Leave the run out"
                )
        for mode in dict.fromkeys(score.mode for score in self.scores if score.mode):
            found = [adapted_to(folder / f"adapt-{mode}") for folder in self.folders]
            everything = set[Adapted]().union(*found)
            for folder, own in zip(self.folders, found, strict=True):
                if own and own != everything:
                    raise MttlError(
                        f"--runs {self.name}: '{folder / f'adapt-{mode}'}' has results of "
                        f"{len(own)} of the {len(everything)} tasks and samples that its runs were "
                        "adapted to; finish it with the same mttl adapt, or leave the run out"
                    )

    @cached_property
    def scores(self) -> list[Score]:
        """Test scores of the tasks of training, and of others that the runs were adapted to."""
        found: list[Score] = []
        for folder, seed in zip(self.folders, self.seeds, strict=True):
            results = RunFolder(folder).results
            if results.is_file():
                found += read_seen(results, self.name, seed)
            seen = trained_on(folder)
            for place in sorted(folder.glob("adapt-*")):
                scores = read_unseen(place, self.name, place.name.removeprefix("adapt-"), seed)
                # With --allow-seen tasks of training stand there too.
                found += [score for score in scores if score.task not in seen]
        return found


def read_unseen(folder: Path, method: str, mode: str, seed: int, fold: int = 0) -> list[Score]:
    """Read the test scores of adapted tasks from a folder of an adaptation.

    A few-shot sample has the mean over the seeds that it was adapted with, of which those without
    a score count as 0; it has none itself (NaN) where none of them has.
    """
    by_sample: dict[Adapted, list[FewShotResult]] = {}
    for job, result in Results(folder).finished.items():
        by_sample.setdefault((job.task, job.sample), []).append(result)
    return [
        Score(
            *(method, mode, seed, "unseen", *adapted),
            _mean_of_known([100 * result.test for result in results]),
            fold,
            rows=results[-1].rows or "",
        )
        for adapted, results in by_sample.items()
    ]


def _mean_of_known(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(values) if known else math.nan


def read_runs(texts: Sequence[str], taken: Sequence[str]) -> list[ExistingRuns]:
    """Return the methods that ``NAME=RUN[,RUN...]`` stand for.

    Args:
        texts: Of the command line.
        taken: Names of other methods.

    Raises:
        MttlError: If one has another form, or its runs do not fit one another.
    """
    found: dict[str, ExistingRuns] = {}
    for text in texts:
        name, _, listed = text.partition("=")
        folders = tuple(Path(folder) for folder in listed.split(",") if folder)
        if not name or not folders:
            raise MttlError(f"--runs '{text}' must have the form NAME=RUN[,RUN...]")
        if name in found or name in taken:
            raise MttlError(f"--runs {name}: there is another method of this name; choose one")
        found[name] = ExistingRuns(name, folders)
        found[name].check()
    return list(found.values())


def other_settings(first: Path, others: Sequence[ExistingRuns]) -> str:
    """Return a sentence per method about the settings by which its runs differ from a run."""
    parts = []
    for runs in others:
        names = differing_settings(first, runs.folders[0], ignore=MAY_DIFFER)
        names += trained_on_others(first, runs.folders[0])
        names += adapted_otherwise(first, runs.folders[0])
        names += adapted_to_others(first, runs.folders[0])
        shown = ", ".join(names[:MOST_SHOWN]) + (" …" if len(names) > MOST_SHOWN else "")
        if names:
            parts.append(f"`{runs.name}` differs from `{first}` in {shown}.")
    return "\n".join(parts)


def adapted_otherwise(one: Path, other: Path) -> list[str]:
    """Return settings by which two runs were adapted differently, with the name of the folder.

    Those by which they were trained differently are not told again.
    """
    found = []
    for place in sorted(one.glob("adapt-*")):
        if all(RunFolder(run / place.name).config.is_file() for run in (one, other)):
            names = differing_settings(place, other / place.name, (*PLACES, *MAY_CHANGE))
            trained = differing_settings(one, other, MAY_DIFFER)
            found += [f"{place.name}: {name}" for name in names if name not in trained]
    return found


def trained_on(run: Path) -> set[str]:
    """Return the tasks that a run was trained on; none are known before it has ended."""
    from mttl.checkpoints.inventory_files import read_names  # it brings PyTorch

    skills = RunFolder(run).skills
    return set(read_names(skills)) if (skills / "tasks.json").is_file() else set()


def trained_on_others(one: Path, other: Path) -> list[str]:
    """Return that two runs were trained on different tasks, with how many, or nothing."""
    first, second = trained_on(one), trained_on(other)
    if not first or not second or first == second:
        return []
    both = len(first & second)
    return [f"the tasks of training ({len(first)} and {len(second)}, {both} of both)"]


def adapted_to(folder: Path) -> set[Adapted]:
    """Return the tasks and few-shot samples that a folder of an adaptation has results of."""
    return {(job.task, job.sample) for job in Results(folder).finished}


def adapted_to_others(one: Path, other: Path) -> list[str]:
    """Return ways to adapt by which two runs have results of different tasks and samples."""
    found = []
    for place in sorted(one.glob("adapt-*")):
        first, second = adapted_to(place), adapted_to(other / place.name)
        if first and second and first != second:
            found.append(
                f"{place.name}: tasks and samples ({len(first)} and {len(second)}, "
                f"{len(first & second)} of both)"
            )
    return found


def check_pairs(trainings: Sequence[tuple[str, int]], reference: str) -> None:
    """Refuse methods that share no seed with the reference, so that nothing could be paired.

    Args:
        trainings: Method and seed of each.
        reference: The method that others are compared with.

    Raises:
        MttlError: If one does.
    """
    seeds: dict[str, set[int]] = {}
    for name, seed in trainings:
        seeds.setdefault(name, set()).add(seed)
    for name, own in seeds.items():
        if not own & seeds[reference]:
            shown = [", ".join(map(str, sorted(x))) for x in (own, seeds[reference])]
            raise MttlError(
                f"'{name}' has the seeds {shown[0]} and '{reference}' has {shown[1]}: differences "
                "are paired by seed, and they share none"
            )
