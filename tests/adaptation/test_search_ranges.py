"""Trials that Optuna draws."""

import math
import sys
from pathlib import Path

import pytest

from mttl.adaptation.plan import FewShotJob
from mttl.adaptation.search import Values
from mttl.adaptation.search_ranges import search_ranges
from mttl.config.schema import Range, Search
from mttl.io.errors import ConfigError

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

    def __call__(self, values: Values) -> float:
        if len(self.seen) == self.interrupt_at:
            raise KeyboardInterrupt
        self.seen.append(values)
        return -abs(math.log10(values["adapt.lr"]) + 2)


def search(journal: Path, evaluate: Evaluator, n_trials: int, seed: int = 13, jobs=JOBS) -> None:
    given = Search(ranges=RANGES, trials=n_trials, seed=seed)
    search_ranges(given, evaluate, jobs=jobs, journal=journal)


@pytest.fixture(autouse=True)
def needs_optuna(request: pytest.FixtureRequest) -> None:
    if "installed" not in request.node.name:
        pytest.importorskip("optuna")


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


def test_more_trials_go_on_and_fewer_stop_early(tmp_path: Path) -> None:
    few, more, again = Evaluator(), Evaluator(), Evaluator()
    search(tmp_path / "journal", few, 2)
    search(tmp_path / "journal", more, 4)
    search(tmp_path / "journal", again, 3)
    assert more.seen[:2] == few.seen
    assert again.seen == more.seen[:3]


def test_other_seeds_and_jobs_begin_anew(tmp_path: Path) -> None:
    first, seeded, other = Evaluator(), Evaluator(), Evaluator()
    search(tmp_path / "journal", first, 3)
    search(tmp_path / "journal", seeded, 3, seed=1)
    assert seeded.seen != first.seen
    # The same draws, for other jobs: scores of different jobs must not be compared.
    search(tmp_path / "journal", other, 1, jobs=[FewShotJob("b", 13, 1)])
    assert other.seen == first.seen[:1]


def test_neighbouring_seeds_share_no_draw(tmp_path: Path) -> None:
    first, next_one = Evaluator(), Evaluator()
    search(tmp_path / "journal", first, 6, seed=13)
    search(tmp_path / "journal", next_one, 6, seed=14)
    assert not {x["adapt.lr"] for x in first.seen} & {x["adapt.lr"] for x in next_one.seen}


def test_what_is_not_installed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match="pip install optuna"):
        search(tmp_path / "journal", Evaluator(), 1)
