"""Trials: their points, scores and files."""

import math
from pathlib import Path

import pytest

from helpers.command import read_csv
from mttl.adaptation.plan import FewShotJob, FewShotResult, Results
from mttl.adaptation.search import (
    Trial,
    best_fragment,
    finished_trials,
    job_results,
    note_values,
    points_of,
    trial_name,
    trials_table,
    write_trials,
)
from mttl.config.schema import Search
from mttl.io import yaml12
from mttl.io.errors import MttlError


def trial(lr: float, **scores: list[float]) -> Trial:
    """A trial of a few tasks, with a development score per sample."""
    results = tuple(
        FewShotResult(task, sample, 13, "EM", dev, math.nan, 10, 100, 0)
        for task, values in scores.items()
        for sample, dev in enumerate(values)
    )
    return Trial({"adapt.lr": lr, "adapt.mode": "all"}, results)


def test_a_grid_is_every_combination() -> None:
    points = points_of(Search(grid={"adapt.lr": [1, 2], "adapt.mode": ["all", "full", "average"]}))
    assert [list(point.values()) for point in points[:3]] == [
        [1, "all"],
        [1, "full"],
        [1, "average"],
    ]
    assert len({trial_name(point) for point in points}) == 6
    assert trial_name({"adapt.lr": 1e-5, "adapt.mode": "all"}) == "adapt.lr=1e-05,adapt.mode=all"


def test_the_score_averages_samples_then_tasks() -> None:
    """By hand: a has 0.2 and 0.4, b 0.9; the mean of 0.3 and 0.9. Undefined counts as 0."""
    assert trial(0.1, a=[0.2, 0.4], b=[0.9]).score == pytest.approx(0.6)
    assert trial(0.1, a=[math.nan], b=[0.5]).score == pytest.approx(0.25)


def test_the_best_is_the_first_of_equals() -> None:
    trials = [trial(0.1, a=[0.3]), trial(0.2, a=[0.5]), trial(0.3, a=[0.5])]
    assert yaml12.parse(best_fragment(trials)) == {"adapt": {"lr": 0.2, "mode": "all"}}
    assert best_fragment(trials).startswith("# The best of 3 trials: 50.0 %")
    assert yaml12.parse(best_fragment([trial(1e-5, a=[0.0])]))["adapt"]["lr"] == 1e-5


def written(path: Path, trials: list[Trial]) -> list[dict[str, str]]:
    write_trials(path / "trials.csv", trials)
    return read_csv(path / "trials.csv")


def test_all_trials_are_written_and_shown_best_first(tmp_path: Path) -> None:
    trials = [trial(1e-4, a=[0.3], b=[0.1]), trial(1e-3, a=[0.5, 0.5], b=[0.3])]
    rows = written(tmp_path, trials)
    assert list(rows[0]) == ["adapt.lr", "adapt.mode", "score", "jobs", "dev/a", "dev/b"]
    assert [row["jobs"] for row in rows] == ["2", "3"]
    assert float(rows[1]["score"]) == pytest.approx(0.4)
    table = trials_table(trials, "title")
    assert [list(column.cells) for column in table.columns] == [
        ["0.001", "0.0001"], ["all", "all"], ["40.0", "20.0"], ["3", "2"]
    ]  # fmt: skip


def test_trials_of_several_grids_and_without_answers(tmp_path: Path) -> None:
    silent = FewShotResult("a", 1, 13, "EM", 0.4, math.nan, 10, 100, 4, 4)
    trials = [trial(1e-3, a=[0.3]), Trial({"adapt.router_lr": 0.5}, (silent,))]
    rows = written(tmp_path, trials)
    assert [row["adapt.lr"] for row in rows] == ["0.001", ""]
    assert [row["adapt.router_lr"] for row in rows] == ["", "0.5"]
    table = trials_table(trials, "title")
    assert list(table.columns[0].cells) == ["", "0.001"]
    assert "Empty settings are those of the configuration" in str(table.caption)
    assert "All answers of the best trial are empty on a" in str(table.caption)


def test_only_whole_trials_are_read_back(tmp_path: Path) -> None:
    whole, half, nameless = trial(1e-3, a=[0.3, 0.5]), trial(1e-2, a=[0.9]), trial(1, a=[1, 1])
    for number, each in enumerate((whole, half, nameless)):
        results = Results(tmp_path / str(number))
        for result in each.results:
            results.add(result)
        if each is not nameless:
            note_values(tmp_path / str(number), each.values)
    jobs = [result.job for result in whole.results]

    def found(jobs: list[FewShotJob]) -> list[Trial]:
        return finished_trials(tmp_path, lambda folder: job_results(folder, jobs))

    (read,) = found(jobs)
    assert read.values == whole.values
    assert read.score == whole.score
    assert len(found(jobs[:1])) == 2
    (tmp_path / "0" / "values.json").write_text("{")
    with pytest.raises(MttlError, match=r"values\.json, line 1"):
        found(jobs)
