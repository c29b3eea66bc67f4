"""Results of few-shot jobs in a folder, which are all of the same settings and inventory."""

from collections.abc import Callable, Collection
from pathlib import Path

from mttl.adaptation.plan import FewShotJob, FewShotResult
from mttl.adaptation.resumable_jobs import ResumableJobs, keep_settings
from mttl.adaptation.shard import Shard
from mttl.io.errors import ConfigError
from mttl.io.files import write_text
from mttl.io.reading import read_text

# Settings that have no part in a job's result: those of the run, and which jobs there are …
MAY_CHANGE = (
    *("run.", "backbone.", "skills.", "router.", "trainer.", "search."),
    *("adapt.seeds", "adapt.levels"),
)
# … but for what adaptation shares with training.
SHARED = ("trainer.precision",)
# Where results may stand: in the folder itself, or in those of its trials.
RESULTS = ("results*.jsonl", "trials/*/results*.jsonl")


class Results(ResumableJobs[FewShotResult]):
    """The finished jobs of a folder, or without one, in memory: a line each in ``results*.jsonl``.

    Every part reads the files of all and writes its own, so several machines may share a folder.
    """

    advice = " (several processes of mttl adapt share the jobs with --shard I/N)"

    def __init__(self, folder: Path | None, shard: Shard | None = None) -> None:
        path = folder / (shard or Shard()).file if folder else None
        super().__init__(path, FewShotResult, folder.glob("results*.jsonl") if folder else ())


def check_folder(
    folder: Path, settings: str, inventory: str, *, shared: tuple[str, ...] = SHARED
) -> None:
    """Note the origin of new results, or refuse to mix them with others.

    The configuration, as YAML, and the digest of the inventory are written into the folder;
    ``shared`` names settings of training that adaptation depends on, too.

    Raises:
        ConfigError: If results there were made with other settings or from another inventory.
    """
    source = folder / "inventory.sha256"
    if any(path for pattern in RESULTS for path in folder.glob(pattern)):
        before = read_text(source, ConfigError).strip() if source.is_file() else "unknown"
        if before != inventory:
            raise ConfigError(
                f"the results in '{folder}' are of another inventory ({before[:12]} before, "
                f"{inventory[:12]} now): of another run, or of this one before it was trained on. "
                "Use another folder with --out (out= in a call), or delete this one"
            )
    problem = f"the results in '{folder}' were made with other settings"
    advice = "Use those, or another folder with --out (out= in a call)"
    keep_settings(folder / "config.yaml", settings, problem, advice, MAY_CHANGE, shared)
    write_text(source, f"{inventory}\n")


def check_rows(
    folder: Path, jobs: Collection[FewShotJob], digest: Callable[[str, int], str]
) -> None:
    """Refuse to continue with results of rows that have changed in the gym since.

    Raises:
        ConfigError: If a finished job had other rows, or was scored by another metric.
    """
    places = sorted({path.parent for pattern in RESULTS for path in folder.glob(pattern)})
    finished = [result for place in places for result in Results(place).finished.values()]
    # Seeds share the rows of a sample, and so do the trials of a search.
    noted = {(x.task, x.sample, x.rows) for x in finished if x.rows and x.job in jobs}
    other = {task for task, sample, rows in noted if rows != digest(task, sample)}
    if other:
        raise ConfigError(
            f"the results in '{folder}' are of other rows, or another metric, than the gym has "
            f"now: {', '.join(sorted(other))}. Use another folder with --out (out= in a call), "
            "or delete this one"
        )
