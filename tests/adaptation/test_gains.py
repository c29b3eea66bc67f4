"""Statistics of scores, by hand and beside scipy."""

import math

import numpy as np
import pytest

from mttl.adaptation.gains import average_relative_gain, comparable_tasks, interval


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
def test_interval_by_hand(samples, level, expected) -> None:
    assert interval({"a": samples}, level=level) == pytest.approx(expected)


def test_more_seeds_of_the_same_samples_do_not_narrow_the_interval() -> None:
    few = {"a": [[0.1], [0.4], [0.9]], "b": [[0.2], [0.3]]}
    many = {task: [seeds * 50 for seeds in samples] for task, samples in few.items()}
    assert interval(many) == pytest.approx(interval(few), abs=0.02)


def test_the_order_of_tasks_samples_and_seeds_does_not_matter() -> None:
    scores = {"a": [[0.1, math.nan], [0.4], [0.9]], "b": [[0.2], [0.3, 0.8]]}
    turned = {
        task: [seeds[::-1] for seeds in scores[task][::-1]] for task in reversed(list(scores))
    }
    assert interval(turned) == interval(scores)


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


@pytest.mark.slow
@pytest.mark.parametrize(("n_samples", "stated"), [(2, 0.78), (3, 0.86), (5, 0.90)])
def test_the_coverage_is_the_stated_one(n_samples: int, stated: float) -> None:
    """Samples differ by 0.5 and seeds by 0.2; three standard errors of 400 intervals."""
    rng, held = np.random.default_rng(0), 0
    for _ in range(400):
        noise = 0.5 * rng.standard_normal((6, n_samples, 1)) + 0.2 * rng.standard_normal(
            (6, n_samples, 3)
        )
        low, high = interval({str(t): own.tolist() for t, own in enumerate(noise)}, n_draws=400)
        held += low <= 0 <= high
    assert held / 400 == pytest.approx(stated, abs=0.06)


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
