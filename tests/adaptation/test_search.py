"""Trials: their points, scores and files."""

import csv
import math
from pathlib import Path

import pytest

from mttl.adaptation.plan import FewShotResult
from mttl.adaptation.results import Results
from mttl.adaptation.search import (
    Trial,
    best_fragment,
    finished_trials,
    grid_points,
    note_values,
    ranked,
    trial_name,
    trials_table,
    write_trials,
)
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
    points = grid_points({"a": [1, 2], "b": ["x", "y", "z"]})
    assert points[:4] == [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 1, "b": "z"}, points[3]]
    assert len({trial_name(point) for point in points}) == 6
    assert trial_name({"adapt.lr": 1e-5, "adapt.mode": "all"}) == "adapt.lr=1e-05,adapt.mode=all"


def test_the_score_averages_samples_then_tasks() -> None:
    """By hand: a has 0.2 and 0.4, b 0.9; the mean of 0.3 and 0.9. Undefined counts as 0."""
    assert trial(0.1, a=[0.2, 0.4], b=[0.9]).score == pytest.approx(0.6)
    assert trial(0.1, a=[math.nan], b=[0.5]).score == pytest.approx(0.25)


def test_the_best_is_the_first_of_equals() -> None:
    trials = [trial(0.1, a=[0.3]), trial(0.2, a=[0.5]), trial(0.3, a=[0.5])]
    assert ranked(trials)[0] is trials[1]
    assert yaml12.parse(best_fragment(trials)) == {"adapt": {"lr": 0.2, "mode": "all"}}
    assert best_fragment(trials).startswith("# The best of 3 trials: 50.0 %")
    assert yaml12.parse(best_fragment([trial(1e-5, a=[0.0])]))["adapt"]["lr"] == 1e-5


def test_all_trials_are_written_and_shown_best_first(tmp_path: Path) -> None:
    trials = [trial(1e-4, a=[0.3], b=[0.1]), trial(1e-3, a=[0.5, 0.5], b=[0.3])]
    write_trials(tmp_path / "trials.csv", trials)
    with (tmp_path / "trials.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["adapt.lr", "adapt.mode", "score", "jobs", "dev/a", "dev/b"]
    assert [row["jobs"] for row in rows] == ["2", "3"]
    assert float(rows[1]["score"]) == pytest.approx(0.4)
    table = trials_table(trials, "title")
    assert [list(column.cells) for column in table.columns] == [
        ["0.001", "0.0001"], ["all", "all"], ["40.0", "20.0"], ["3", "2"]
    ]  # fmt: skip


def test_trials_of_several_grids_stand_in_one_table(tmp_path: Path) -> None:
    other = Trial({"adapt.router_lr": 0.5}, trial(0.1, a=[0.4]).results)
    trials = [trial(1e-3, a=[0.3]), other]
    write_trials(tmp_path / "trials.csv", trials)
    with (tmp_path / "trials.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["adapt.lr"] for row in rows] == ["0.001", ""]
    assert [row["adapt.router_lr"] for row in rows] == ["", "0.5"]
    table = trials_table(trials, "title")
    assert list(table.columns[0].cells) == ["", "0.001"]
    assert "Empty settings are those of the configuration" in str(table.caption)


def test_only_whole_trials_are_read_back(tmp_path: Path) -> None:
    whole, half, nameless = trial(1e-3, a=[0.3, 0.5]), trial(1e-2, a=[0.9]), trial(1, a=[1, 1])
    for number, found in enumerate((whole, half, nameless)):
        results = Results(tmp_path / str(number))
        for result in found.results:
            results.add(result)
        if found is not nameless:
            note_values(tmp_path / str(number), found.values)
    jobs = [result.job for result in whole.results]
    (read,) = finished_trials(tmp_path, jobs)
    assert read.values == whole.values
    assert read.score == whole.score
    assert len(finished_trials(tmp_path, jobs[:1])) == 2
    (tmp_path / "0" / "values.json").write_text("{")
    with pytest.raises(MttlError, match=r"values\.json, line 1"):
        finished_trials(tmp_path, jobs)


def test_a_best_trial_without_answers_is_named() -> None:
    silent = FewShotResult("a", 1, 13, "EM", 0.0, math.nan, 10, 100, 4, 4)
    caption = str(trials_table([Trial({"adapt.lr": 1}, (silent,))], "title").caption)
    assert "All answers of the best trial are empty on a" in caption
