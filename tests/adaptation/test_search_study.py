"""Trials drawn from ranges: interrupted, killed, and shared by several processes."""

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mttl.adaptation.plan import FewShotJob, FewShotResult
from mttl.adaptation.search_study import TrialResults, Values, open_study, search_ranges
from mttl.config.schema import Range, Search
from mttl.io.errors import ConfigError, MttlError

JOBS = [FewShotJob("a", 13, 1)]
RANGES = {
    "adapt.lr": Range(low=1e-4, high=1e-1, log=True),
    "adapt.max_steps": Range(low=10, high=20),
}


class Evaluator:
    """Scores a trial by its distance from lr 1e-2; can be interrupted."""

    def __init__(self, interrupt_at: int | None = None) -> None:
        self.seen: list[Values] = []
        self.interrupt_at = interrupt_at

    def __call__(self, values: Values) -> tuple[float, TrialResults]:
        if len(self.seen) == self.interrupt_at:
            raise KeyboardInterrupt
        self.seen.append(values)
        score = -abs(math.log10(values["adapt.lr"]) + 2)
        return score, (FewShotResult("a", 13, 1, "EM", score, math.nan, 1, 1, 0),)


def search(
    storage: Path | str,
    evaluate: Callable,
    n_trials: int,
    seed: int = 13,
    jobs: Sequence[FewShotJob] = JOBS,
    place: str = "",
) -> list[tuple[Values, TrialResults]]:
    if sys.modules.get("optuna", "") is not None:
        pytest.importorskip("optuna")
    given = Search(ranges=RANGES, trials=n_trials, seed=seed)
    return search_ranges(given, evaluate, open_study(given, jobs, storage), place)


def test_draws_lie_in_their_ranges_and_whole_numbers_stay_whole(tmp_path: Path) -> None:
    evaluate = Evaluator()
    search(tmp_path / "journal", evaluate, 15)
    assert all(1e-4 <= values["adapt.lr"] <= 1e-1 for values in evaluate.seen)
    assert all(type(values["adapt.max_steps"]) is int for values in evaluate.seen)
    assert len({values["adapt.lr"] for values in evaluate.seen}) == 15


def test_an_interrupted_search_ends_like_a_whole_one(tmp_path: Path) -> None:
    """Interrupted among the random draws, then among those of the estimator (after ten)."""
    whole, last = Evaluator(), Evaluator()
    search(tmp_path / "whole", whole, 14)
    for place in (3, 12):
        with pytest.raises(KeyboardInterrupt):
            search(tmp_path / "parts", Evaluator(interrupt_at=place), 14)
    search(tmp_path / "parts", last, 14)
    assert last.seen == whole.seen
    assert [list(values) for values in last.seen] == [list(RANGES)] * 14  # names of folders


def test_what_a_killed_search_leaves_stops_no_other(tmp_path: Path) -> None:
    """Optuna's lock, and a line of the journal that was cut off."""
    whole, last = Evaluator(), Evaluator()
    search(tmp_path / "whole", whole, 4)
    journal = tmp_path / "journal"
    search(journal, Evaluator(), 2)
    (tmp_path / "journal.lock").symlink_to(journal)
    with journal.open("ab") as file:
        file.write(b'{"op_code": 4, "worker_i')
    search(journal, last, 4)
    assert last.seen == whole.seen
    fewer = Evaluator()
    search(journal, fewer, 3)
    assert fewer.seen == whole.seen[:3]


def test_other_seeds_and_jobs_begin_anew(tmp_path: Path) -> None:
    first, seeded, other = Evaluator(), Evaluator(), Evaluator()
    search(tmp_path / "journal", first, 6, seed=13)
    search(tmp_path / "journal", seeded, 6, seed=14)  # neighbouring seeds share no draw
    assert not {x["adapt.lr"] for x in first.seen} & {x["adapt.lr"] for x in seeded.seen}
    # The same draws, for other jobs: scores of different jobs must not be compared.
    search(tmp_path / "journal", other, 1, jobs=[FewShotJob("b", 13, 1)])
    assert other.seen == first.seen[:1]


@pytest.mark.every(2)
@pytest.mark.parametrize(("storage", "n"), [("sqlite:///{}/study.db", 4), ("{}/study.log", 12)])
def test_processes_share_the_trials_of_a_storage(tmp_path: Path, storage: str, n: int) -> None:
    """One after another, as by one process; and one while another evaluates a trial."""
    whole, first, second = Evaluator(), Evaluator(interrupt_at=n // 2), Evaluator()
    expected, storage = search(tmp_path / "whole", whole, n), storage.format(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        search(storage, first, n, place="one")
    assert search(storage, second, n, place="two") == expected
    assert first.seen + second.seen == whole.seen  # each once, with the same scores
    within: list[Any] = []
    outer, inner = Evaluator(), Evaluator()

    def evaluate(values: Values) -> tuple[float, TrialResults]:
        within.extend(search(storage, inner, n, seed=14, place="two"))
        return outer(values)

    found = search(storage, evaluate, n, seed=14, place="one")
    assert [values for values, _ in found] == outer.seen + inner.seen
    assert (found[1:], len(found)) == (within, n)


def test_a_killed_process_gives_its_trial_back(tmp_path: Path) -> None:
    """If it is started again at its place; elsewhere, the trial may be running."""
    storage = str(tmp_path / "study.log")
    search(storage, Evaluator(), 1, place="one")
    killed = open_study(Search(ranges=RANGES), JOBS, storage).ask()
    killed.set_user_attr("place", "one")
    assert len(search(storage, Evaluator(), 3, place="two")) == 2
    assert len(search(storage, Evaluator(), 3, place="one")) == 3


@pytest.mark.parametrize("storage", ["sqlite:////no/such/folder/a.db", "nothing://a", "no/a.log"])
def test_a_storage_that_cannot_be_opened(tmp_path, monkeypatch, storage: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="--storage cannot be opened: "):
        search(storage, Evaluator(), 1)


def test_what_is_not_installed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MttlError, match="pip install optuna"):
        search(tmp_path / "journal", Evaluator(), 1)
