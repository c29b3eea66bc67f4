"""What the table of an adaptation says."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from mttl.adaptation.plan import FewShotResult
from mttl.adaptation.score_table import average_relative_gain, few_shot_table, silent_tasks
from mttl.training.predictions import Result, mean_result
from mttl.training.report import MAJORITY


def result(
    task: str, test: float, sample: int = 1, n_empty: int = 0, n_answers: int = 4
) -> FewShotResult:
    return FewShotResult(task, sample, 13, "EM", 0.5, test, 10, 100, n_empty, n_answers)


def caption(rows: list[FewShotResult], reference: Sequence[FewShotResult] = ()) -> str:
    return str(few_shot_table(rows, "title", reference).caption)


def test_the_table_averages_samples_then_tasks() -> None:
    """By hand: task a has 20 and 40, task b 90; the mean is 60, the deviation of a √200."""
    rows = [result("a", 0.2), result("a", 0.4, sample=2, n_empty=3), result("b", 0.9)]
    table = few_shot_table(rows, "title")
    cells = [list(column.cells) for column in table.columns]
    assert cells[0] == ["a", "b", "mean"]
    assert cells[3] == ["30.0 ± 14.1", "90.0", "60.0"]
    assert cells[4] == ["2", "1", "3"]
    assert "3 of 12 answers are empty" in caption(rows)
    own = [
        Result(task, "test", "1", 13, "EM", score, 4) for task, score in (("a", 0.25), ("b", 1.0))
    ]
    beside = few_shot_table(rows, "title", baselines={MAJORITY: [*own, mean_result(own)]})
    cells = [[column.header, *column.cells] for column in beside.columns[4:]]
    assert cells == [["major", "25.0", "100.0", "62.5"], ["jobs", "2", "1", "3"]]
    assert "major: the most frequent training answer. No confidence" in str(beside.caption)


def test_an_undefined_score_counts_as_0_and_is_told() -> None:
    """By hand: 0 and 40 have the mean 20 and the deviation √800."""
    rows = [result("a", math.nan), result("a", 0.4, sample=2), result("b", math.nan)]
    cells = list(few_shot_table(rows, "title").columns[3].cells)
    assert cells == ["20.0 ± 28.3", "0.0", "10.0"]
    assert "Undefined scores count as 0: 2 test" in caption(rows)
    assert "Undefined" not in caption([result("a", 0.4)])
    # Development rows that nothing was chosen by have no score.
    table = few_shot_table([replace(result("a", 0.4), dev=math.nan, n_trained=0)], "title")
    assert [list(column.cells) for column in table.columns[2:4]] == [["", ""], ["40.0", "40.0"]]
    assert "Undefined" not in str(table.caption)


def test_the_interval_is_printed_where_every_task_has_two_samples() -> None:
    rows = [result("a", 0.2), result("a", 0.4, sample=2)]
    assert "samples, and seeds within them): 20.0 to 40.0" in caption(rows)
    seeds = [result("b", 0.1), replace(result("b", 0.3), seed=14)]
    assert "No confidence interval of the mean: it needs two samples of" in caption([*rows, *seeds])
    assert "there are fewer of b" in caption([*rows, *seeds])
    assert "95 %" not in caption([*rows, *seeds])
    same = [result("a", 0.4, sample=sample) for sample in (1, 2, 3)]
    assert "No confidence interval: all samples have equal scores" in caption(same)


def test_tasks_without_any_answer_are_named() -> None:
    rows = [
        result("a", 0.0, n_empty=4, n_answers=4),
        result("b", 0.0, n_empty=4, n_answers=4),
        result("b", 0.1, sample=2, n_empty=3, n_answers=4),
        result("c", 0.1, n_answers=4),
    ]
    assert "11 of 16 answers are empty; all answers are empty on a" in caption(rows)
    assert silent_tasks(rows) == ["a"]
    assert caption([]) == "No job has finished yet"


def test_the_gain_is_printed_with_its_caveats() -> None:
    found = caption([result("a", 0.3)], [result("a", 0.2)])
    assert "+50.0 % (dominated by tasks with a reference near zero" in found
    assert "left out" not in found
    found = caption([result("a", 0.3), result("b", 0.3)], [result("a", 0.2), result("b", 0.0)])
    assert "+50.0 %" in found
    assert "1 of 2 tasks omitted, reference score not above 0" in found
    found = caption([result("a", 0.3)], [result("c", 0.2)])
    assert "No average relative gain: the reference has no positive score on" in found
    assert "nan" not in found


def test_the_gain_is_over_samples_of_the_same_rows_and_metric() -> None:
    """By hand: of a the sample 1 counts, 0.3 over 0.2; other rows and metrics say nothing."""
    ours = [result("a", 0.3), result("a", 0.9, sample=2), result("b", 0.9), result("c", 0.9)]
    theirs = [
        replace(result("a", 0.2), seed=14),
        result("a", 0.1, sample=3),
        replace(result("b", 0.1), metric="ACC"),
        replace(result("c", 0.1), rows="1234"),
    ]
    ours[3] = replace(ours[3], rows="5678")
    found = caption(ours, theirs)
    assert "+50.0 %" in found
    assert "3 of 4 samples omitted, because the reference lacks them or has" in found


def test_average_relative_gain() -> None:
    """0.2 to 0.3 is +50 %, 0.4 to 0.2 is -50 %; tasks without a reference above 0 are left out."""
    scores = {"a": [0.2, 0.4], "b": [0.2], "c": [0.9], "d": [0.9], "e": [0.5]}
    found = average_relative_gain(scores, {"a": [0.2], "b": [0.4], "c": [0.0], "e": [-0.5]})
    assert found == (pytest.approx(0.0, abs=1e-6), 2)
