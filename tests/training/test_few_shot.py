"""The few-shot loop keeps the best weights and leaves the model as it was."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from helpers.backbones import tiny_t5
from helpers.skills import skilled
from mttl.training import few_shot
from mttl.training.adapt import adapted
from mttl.training.few_shot import (
    FewShotJob,
    FewShotResult,
    average_relative_gain,
    fine_tune,
    interval,
)
from mttl.training.few_shot_jobs import Results, Shard
from mttl.training.few_shot_table import few_shot_table
from mttl.training.optim import Optimization
from mttl.training.text_to_text import TextToTextModule

BATCH = {
    "input_ids": torch.arange(10).view(2, 5) + 2,
    "attention_mask": torch.ones(2, 5).long(),
    "labels": torch.arange(6).view(2, 3) + 2,
    "task_ids": torch.tensor([0, 0]),
}


def result(task: str, test: float, sample: int = 1, n_empty: int = 0) -> FewShotResult:
    return FewShotResult(task, sample, 13, "EM", 0.5, test, 10, 100, n_empty)


@pytest.mark.parametrize(
    ("scores", "kept", "best"),
    [
        ([0.1, 0.5, 0.3, 0.2], 2, 0.5),
        ([0.1, 0.2, 0.3, 0.4], 6, 0.4),
        ([0.9, 0.5, 0.3, 0.2], 0, 0.9),
        ([math.nan, math.nan, 0.0, math.nan], 4, 0.0),
        ([0.1, 0.5, 0.5, 0.5], 2, 0.5),
    ],
)
def test_the_weights_of_the_best_score_are_kept(
    monkeypatch: pytest.MonkeyPatch, scores: list[float], kept: int, best: float
) -> None:
    """Scores stand for steps 0, 2, 4 and 6; what is kept is compared with a copy of each step."""
    model = skilled(tiny_t5())
    module = TextToTextModule(
        model,
        SimpleNamespace(),
        {"new": "EM"},
        Optimization(lr=0.1),  # type: ignore[arg-type]
    )
    snapshots = []

    def score(module: TextToTextModule, batches: object) -> tuple[float, list]:
        snapshots.append([value.detach().clone() for value in model.parameters()])
        return scores[len(snapshots) - 1], []

    monkeypatch.setattr(few_shot, "score_batches", score)
    assert fine_tune(module, [BATCH], [], n_steps=6, eval_every=2) == (kept, best)
    for found, expected in zip(model.parameters(), snapshots[kept // 2], strict=True):
        assert torch.equal(found, expected)
    assert not torch.equal(
        torch.cat([v.flatten() for v in snapshots[0]]),
        torch.cat([v.flatten() for v in snapshots[1]]),
    )


@pytest.mark.parametrize("mode", ["zero_shot", "router_only", "all", "average", "full"])
def test_afterwards_the_model_is_as_it_was(mode: str) -> None:
    model = skilled(tiny_t5(), train_backbone=True)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    flags = {name: value.requires_grad for name, value in model.named_parameters()}
    router = model.router
    with adapted(model, mode, 2) as inside:  # type: ignore[arg-type]
        with torch.no_grad():
            for value in inside.parameters():
                if value.requires_grad:
                    value.add_(1)
        assert inside.router is not router
    assert model.router is router
    assert {name: value.requires_grad for name, value in model.named_parameters()} == flags
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_interval_of_constant_scores_is_a_point() -> None:
    assert interval({"a": [0.25, 0.25], "b": [0.75]}) == pytest.approx((0.5, 0.5))


def test_interval_equals_that_of_scipy() -> None:
    """One task: the plain bootstrap of a mean; both draw 10,000 times, hence the tolerance."""
    bootstrap = pytest.importorskip("scipy.stats").bootstrap
    scores = [0.1, 0.4, 0.35, 0.8, 0.55]
    expected = bootstrap(
        (scores,), lambda x, axis: x.mean(axis), n_resamples=10_000, method="percentile"
    ).confidence_interval
    assert interval({"a": scores}) == pytest.approx((expected.low, expected.high), abs=0.02)


def test_results_are_read_back_and_a_cut_line_is_dropped(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.add(result("a", 0.5))
    results.add(result("b", math.nan))
    path = tmp_path / "results.jsonl"
    assert json.loads(path.read_text().splitlines()[1])["test"] is None
    whole = path.read_text()
    path.write_text(whole + '{"task": "c", "sam')
    again = Results(tmp_path)
    assert path.read_text() == whole
    assert list(again.finished) == [FewShotJob("a", 1, 13), FewShotJob("b", 1, 13)]
    assert again.finished[FewShotJob("a", 1, 13)] == result("a", 0.5)
    again.add(result("c", 1.0))
    assert len(Results(tmp_path).finished) == 3


def test_parts_see_what_the_others_finished_and_leave_their_files_alone(tmp_path: Path) -> None:
    first, second = Shard(1, 2), Shard(2, 2)
    Results(tmp_path, first).add(result("a", 0.5))
    theirs = tmp_path / "results-1-of-2.jsonl"
    theirs.write_text(theirs.read_text() + "{half")  # being written
    results = Results(tmp_path, second)
    results.add(result("b", 0.5))
    assert {job.task for job in results.finished} == {"a", "b"}
    assert theirs.read_text().endswith("{half")


@pytest.mark.parametrize("n_shards", [1, 2, 3, 7])
def test_parts_share_all_jobs(n_shards: int) -> None:
    jobs = [FewShotJob("a", sample, 13) for sample in range(5)]
    parts = [Shard(number, n_shards).share(jobs) for number in range(1, n_shards + 1)]
    assert sorted((job for part in parts for job in part), key=lambda job: job.sample) == jobs


def test_the_table_averages_samples_then_tasks() -> None:
    """By hand: task a has 20 and 40, task b 90; the mean is 60, the deviation of a √200."""
    rows = [result("a", 0.2), result("a", 0.4, sample=2, n_empty=3), result("b", 0.9)]
    table = few_shot_table(rows, "title")
    cells = [list(column.cells) for column in table.columns]
    assert cells[0] == ["a", "b", "mean"]
    assert cells[3] == ["30.0 ± 14.1", "90.0", "60.0"]
    assert cells[4] == ["2", "1", "3"]
    assert "3 test answers are empty" in str(table.caption)


def test_average_relative_gain() -> None:
    """By hand: 0.2 to 0.3 is +50 %, 0.4 to 0.2 is -50 %; zero and absent ones are left out."""
    scores = {"a": [0.2, 0.4], "b": [0.2], "c": [0.9], "d": [0.9]}
    reference = {"a": [0.2], "b": [0.4], "c": [0.0]}
    assert average_relative_gain(scores, reference) == pytest.approx(0.0, abs=1e-6)
    assert average_relative_gain({"a": [0.3]}, reference) == pytest.approx(0.5)
    assert math.isnan(average_relative_gain({"d": [0.9]}, reference))


def test_the_gain_is_printed_with_its_caveat() -> None:
    table = few_shot_table([result("a", 0.3)], "title", [result("a", 0.2)])
    assert "+50.0 % (tasks with a reference near zero dominate it" in str(table.caption)
