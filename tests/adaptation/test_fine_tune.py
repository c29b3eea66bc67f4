"""The few-shot loop keeps the best weights and leaves the model as it was."""

import math
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import get_args

import pytest
import torch

from helpers.backbones import tiny_t5
from helpers.skills import skilled
from mttl.adaptation import fine_tune as few_shot
from mttl.adaptation.fine_tune import (
    FewShotJob,
    FewShotResult,
    average_relative_gain,
    comparable_tasks,
    fine_tune,
    interval,
)
from mttl.adaptation.modes import adapted
from mttl.adaptation.score_table import few_shot_table, silent_tasks
from mttl.adaptation.shard import Shard
from mttl.config.section import AdaptMode
from mttl.training.optim import Optimization
from mttl.training.precision import precision_plugin
from mttl.training.text_to_text import TextToTextModule

BATCH = {
    "input_ids": torch.arange(10).view(2, 5) + 2,
    "attention_mask": torch.ones(2, 5).long(),
    "labels": torch.arange(6).view(2, 3) + 2,
    "task_ids": torch.tensor([0, 0]),
}


def result(
    task: str, test: float, sample: int = 1, n_empty: int = 0, n_answers: int | None = None
) -> FewShotResult:
    return FewShotResult(task, sample, 13, "EM", 0.5, test, 10, 100, n_empty, n_answers)


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

    def score(module: TextToTextModule, batches: object, precision: object) -> tuple[float, list]:
        snapshots.append([value.detach().clone() for value in model.parameters()])
        step = len(snapshots) - 1
        return scores[step], [step]

    monkeypatch.setattr(few_shot, "score_batches", score)
    found = fine_tune(module, [BATCH], [], n_steps=6, eval_every=2)
    assert found == (kept, best, [kept // 2])
    for found, expected in zip(model.parameters(), snapshots[kept // 2], strict=True):
        assert torch.equal(found, expected)
    assert not torch.equal(
        torch.cat([v.flatten() for v in snapshots[0]]),
        torch.cat([v.flatten() for v in snapshots[1]]),
    )


@pytest.mark.parametrize("name", ["bf16-mixed", "16-mixed"])
def test_mixed_precision_computes_in_half_and_keeps_weights_in_single_precision(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Compared with single precision from the same start: alike, and not the same."""
    monkeypatch.setattr(few_shot, "score_batches", lambda *given: (0.0, []))
    ends, losses = {}, {}
    for kind in ("32-true", name):
        torch.manual_seed(0)
        module = TextToTextModule(
            skilled(tiny_t5()).eval(),
            SimpleNamespace(),
            {"new": "EM"},
            Optimization(kind="adam", lr=1e-3),  # type: ignore[arg-type]
        )
        plugin = precision_plugin(kind, "cpu")
        with plugin.forward_context():
            losses[kind] = module.nll(BATCH, 0.0)[0].sum().item()
        torch.manual_seed(1)
        scored = [math.nan, 0.5]
        monkeypatch.setattr(few_shot, "score_batches", lambda *given, s=scored: (s.pop(0), []))
        fine_tune(
            module, [BATCH], [], n_steps=1, eval_every=1, gradient_clip_val=1.0, precision=plugin
        )
        assert {value.dtype for value in module.model.parameters()} == {torch.float32}
        ends[kind] = torch.cat(
            [v.detach().flatten() for v in module.model.parameters() if v.requires_grad]
        )
    # bfloat16 keeps 8 bits of a number: a relative error of 2^-8 per product, less in sums.
    assert losses[name] == pytest.approx(losses["32-true"], rel=0.02)
    assert losses[name] != losses["32-true"]
    assert not torch.equal(ends[name], ends["32-true"])
    # Adam's first step has the size of the learning rate, whatever the gradient's.
    assert (ends[name] - ends["32-true"]).abs().max() <= 2.1e-3


def test_weights_in_half_precision_are_refused() -> None:
    with pytest.raises(ValueError, match=r"precision \('bf16-true'\) must be one of 32-true, 16-"):
        precision_plugin("bf16-true", "cpu")


@pytest.mark.parametrize("mode", get_args(AdaptMode))
def test_afterwards_the_model_is_as_it_was(mode: AdaptMode) -> None:
    model = skilled(tiny_t5(), train_backbone=True)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    flags = {name: value.requires_grad for name, value in model.named_parameters()}
    router = model.router
    with adapted(model, mode, 2) as inside:
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
    scores = {"a": [[0.25], [0.25]], "b": [[0.75, 0.75], [0.75]]}
    assert interval(scores) == pytest.approx((0.5, 0.5))


@pytest.mark.parametrize(
    ("samples", "level", "expected"),
    [
        # Two samples: both the first with 1/4, one of each with 1/2, both the second with 1/4.
        ([[0.0], [1.0]], 0.8, (0.0, 1.0)),
        ([[0.0], [1.0]], 0.4, (0.5, 0.5)),
        # All the spread between seeds: four fair draws, at most one of them a 1 with 5/16.
        ([[0.0, 1.0], [0.0, 1.0]], 0.8, (0.25, 0.75)),
        # The same four scores, all the spread between samples.
        ([[0.0, 0.0], [1.0, 1.0]], 0.8, (0.0, 1.0)),
        # Seeds that are lacking: the mean is over all scores, as in the table.
        ([[0.0, 0.0, 0.0], [1.0]], 0.4, (0.25, 0.25)),
        # Undefined scores count as 0.
        ([[math.nan], [1.0]], 0.8, (0.0, 1.0)),
    ],
)
def test_interval_by_hand(
    samples: list[list[float]], level: float, expected: tuple[float, float]
) -> None:
    assert interval({"a": samples}, level=level) == pytest.approx(expected)


def test_more_seeds_of_the_same_samples_do_not_narrow_the_interval() -> None:
    few = {"a": [[0.1], [0.4], [0.9]], "b": [[0.2], [0.3]]}
    many = {task: [seeds * 50 for seeds in samples] for task, samples in few.items()}
    assert interval(many) == pytest.approx(interval(few), abs=0.02)


@pytest.mark.parametrize("scores", [{"a": [[0.1], [0.2]], "b": [[0.1, 0.2]]}, {}])
def test_interval_needs_two_samples(scores: dict) -> None:
    with pytest.raises(ValueError, match="every task must have two samples"):
        interval(scores)


def test_interval_equals_that_of_scipy() -> None:
    """One task: the plain bootstrap of a mean; both draw 10,000 times, hence the tolerance."""
    bootstrap = pytest.importorskip("scipy.stats").bootstrap
    scores = [0.1, 0.4, 0.35, 0.8, 0.55]
    expected = bootstrap(
        (scores,), lambda x, axis: x.mean(axis), n_resamples=10_000, method="percentile"
    ).confidence_interval
    found = interval({"a": [[score] for score in scores]})
    assert found == pytest.approx((expected.low, expected.high), abs=0.02)


@pytest.mark.parametrize("n_shards", [1, 2, 3, 7])
def test_parts_share_all_jobs(n_shards: int) -> None:
    jobs = [FewShotJob("a", sample, 13) for sample in range(5)]
    parts = [Shard(number, n_shards).share(jobs) for number in range(1, n_shards + 1)]
    assert sorted((job for part in parts for job in part), key=lambda job: job.sample) == jobs


@pytest.mark.parametrize("n_workers", [1, 2, 3])
@pytest.mark.parametrize("n_shards", [1, 2, 3])
def test_workers_of_parts_share_all_jobs(n_shards: int, n_workers: int) -> None:
    jobs = [FewShotJob("a", sample, 13) for sample in range(7)]
    for number in range(1, n_shards + 1):
        part = Shard(number, n_shards)
        workers = [part.part(worker, n_workers).share(jobs) for worker in range(1, n_workers + 1)]
        shared = sorted((job for jobs in workers for job in jobs), key=lambda job: job.sample)
        assert shared == part.share(jobs)
    assert Shard().part(2, 3) == Shard(2, 3)


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
    assert "3 answers are empty" in caption(rows)


def test_the_table_of_nothing_says_so() -> None:
    assert caption([]) == "No job has ended yet"


def test_an_undefined_score_counts_as_0_and_is_told() -> None:
    """By hand: 0 and 40 have the mean 20 and the deviation √800."""
    rows = [result("a", math.nan), result("a", 0.4, sample=2), result("b", math.nan)]
    cells = list(few_shot_table(rows, "title").columns[3].cells)
    assert cells == ["20.0 ± 28.3", "0.0", "10.0"]
    assert "Undefined scores count as 0: 2 test" in caption(rows)
    assert "Undefined" not in caption([result("a", 0.4)])


def test_the_interval_is_printed_where_every_task_has_two_samples() -> None:
    rows = [result("a", 0.2), result("a", 0.4, sample=2)]
    assert "samples, and seeds within them: 20.0 to 40.0" in caption(rows)
    seeds = [result("b", 0.1), replace(result("b", 0.3), seed=14)]
    assert "No interval of the mean" in caption([*rows, *seeds])
    assert "there are fewer of b" in caption([*rows, *seeds])
    assert "95 %" not in caption([*rows, *seeds])


def test_tasks_without_any_answer_are_named() -> None:
    rows = [
        result("a", 0.0, n_empty=4, n_answers=4),
        result("b", 0.0, n_empty=4, n_answers=4),
        result("b", 0.1, sample=2, n_empty=3, n_answers=4),
        result("c", 0.1, n_answers=4),
    ]
    assert "11 of 16 answers are empty; all answers are empty on a" in caption(rows)
    assert silent_tasks(rows) == ["a"]
    # Rows of earlier versions do not tell how many answers there were.
    assert caption([*rows, result("d", 0.0, n_empty=2)]).endswith(
        "13 answers are empty; all answers are empty on a"
    )


def test_average_relative_gain() -> None:
    """By hand: 0.2 to 0.3 is +50 %, 0.4 to 0.2 is -50 %; zero and absent ones are left out."""
    scores = {"a": [0.2, 0.4], "b": [0.2], "c": [0.9], "d": [0.9]}
    reference = {"a": [0.2], "b": [0.4], "c": [0.0]}
    assert average_relative_gain(scores, reference) == pytest.approx(0.0, abs=1e-6)
    assert average_relative_gain({"a": [0.3]}, reference) == pytest.approx(0.5)
    assert math.isnan(average_relative_gain({"d": [0.9]}, reference))


def test_a_reference_below_0_is_no_comparison() -> None:
    """A correlation: from -0.5 to 0.5 would be -200 %."""
    scores, reference = {"a": [0.5], "b": [0.3]}, {"a": [-0.5], "b": [0.2]}
    assert comparable_tasks(scores, reference) == ["b"]
    assert average_relative_gain(scores, reference) == pytest.approx(0.5)


def test_the_gain_is_printed_with_its_caveats() -> None:
    found = caption([result("a", 0.3)], [result("a", 0.2)])
    assert "+50.0 % (tasks with a reference near zero dominate it" in found
    assert "left out" not in found
    found = caption([result("a", 0.3), result("b", 0.3)], [result("a", 0.2), result("b", 0.0)])
    assert "+50.0 %" in found
    assert "1 of 2 tasks left out" in found


def test_a_reference_of_other_tasks_is_told() -> None:
    found = caption([result("a", 0.3)], [result("c", 0.2)])
    assert "No average relative gain: the reference has no task of these" in found
    assert "nan" not in found
