"""The bootstrap over tasks, seeds and samples: against plain loops and cases with known answers."""

import math
import random
import statistics

import numpy as np
import pytest
from scipy import stats

from helpers.command import ROOT, load_recipe
from mttl.analysis.bootstrap import Key, draw_means, mean_and_interval, table

coverage = load_recipe(ROOT / "scripts" / "studies" / "interval_coverage.py")
simulated = coverage.simulated


def drawn_by_a_loop(scores: dict[Key, float], rng: random.Random) -> float:
    """Draw once, with nothing but loops over the scores."""
    tasks = sorted({key[0] for key in scores})
    folds = sorted({key[1] for key in scores})
    seeds = {fold: sorted({key[2] for key in scores if key[1] == fold}) for fold in folds}
    chosen = {fold: rng.choices(own, k=len(own)) for fold, own in seeds.items()}
    means = []
    for task in rng.choices(tasks, k=len(tasks)):
        trainings = []
        for fold in folds:
            for seed in chosen[fold]:
                own = [v for key, v in sorted(scores.items()) if key[:3] == (task, fold, seed)]
                if own:
                    trainings.append(statistics.fmean(rng.choices(own, k=len(own))))
        means.append(statistics.fmean(trainings))
    return statistics.fmean(means)


@pytest.mark.parametrize("n_folds", [1, 2])
def test_draws_are_those_of_a_loop(n_folds: int) -> None:
    """Unlike numbers of samples and of seeds; means and deviations of draws, to their errors."""
    scores = simulated(np.random.default_rng(0), n_tasks=5, n_folds=n_folds, n_samples=3)
    scores = {key: x for key, x in scores.items() if key[3] == 0 or key[0] != "001"}
    last = max(key[1:3] for key in scores)
    scores = {key: x for key, x in scores.items() if key[1:3] != last}
    ours = draw_means(table(scores), 20_000, np.random.default_rng(1))
    rng = random.Random(2)
    theirs = [drawn_by_a_loop(scores, rng) for _ in range(2000)]
    deviation = statistics.stdev(theirs)
    assert ours.mean() == pytest.approx(statistics.fmean(theirs), abs=4 * deviation / 2000**0.5)
    assert ours.std() == pytest.approx(deviation, rel=4 / (2 * 2000) ** 0.5)
    for quantile in (0.025, 0.975):
        assert np.quantile(ours, quantile) == pytest.approx(
            np.quantile(theirs, quantile), abs=0.2 * deviation
        )


def test_where_only_tasks_vary_the_interval_is_the_analytic_one() -> None:
    scores = simulated(np.random.default_rng(3), n_tasks=100, spread=(1.0, 0.0, 0.0))
    values = [x for key, x in scores.items() if key[2:] == (0, 0)]
    mean, low, high = mean_and_interval(scores, n_draws=10_000)
    expected = stats.norm.interval(0.95, np.mean(values), stats.sem(values))
    assert mean == pytest.approx(np.mean(values))
    # The quantiles of 10,000 draws have an error of about 0.03 deviations.
    assert (low, high) == pytest.approx(expected, abs=0.1 * stats.sem(values))


def test_intervals_cover() -> None:
    """Of 200 simulated comparisons: 95 % less what few seeds cost, to three standard errors."""
    assert 0.86 <= coverage.covered(200, seed=5, n_folds=5, n_seeds=3) <= 0.985


def test_the_mean_counts_every_task_once() -> None:
    scores = {("a", 0, 13, 1): 10.0, ("a", 0, 13, 2): 30.0, ("a", 0, 14, 1): 40.0}
    scores |= {("b", 0, 13, 1): 60.0}
    mean, low, high = mean_and_interval(scores)
    assert mean == ((20 + 40) / 2 + 60) / 2
    assert low < mean < high
    assert mean_and_interval(scores) == (mean, low, high)  # the same draws


def test_equal_scores_have_no_interval() -> None:
    """Two seeds that agree in everything do not make a method certain."""
    scores = {(task, 0, seed, 1): 0.1 + 0.2 for task in "ab" for seed in (13, 14)}
    assert mean_and_interval(scores) == pytest.approx((0.3, math.nan, math.nan), nan_ok=True)
    # Tasks that are not drawn add no spread.
    scores = {(task, fold, n, 0): float(fold) for fold, task in enumerate("ab") for n in (0, 1)}
    assert math.isnan(mean_and_interval(scores, draw_tasks=False)[1])
    assert mean_and_interval(scores)[1:] == (0.0, 1.0)


@pytest.mark.parametrize(
    ("samples", "level", "expected"),
    [
        # Two samples: both the first with 1/4, one of each with 1/2, both the second with 1/4.
        ([[0.0], [1.0]], 0.8, (0.0, 1.0)),
        # All the spread between seeds: four fair draws, at most one of them a 1 with 5/16.
        ([[0.0, 1.0], [0.0, 1.0]], 0.8, (0.25, 0.75)),
        # The same four scores, all the spread between samples.
        ([[0.0, 0.0], [1.0, 1.0]], 0.8, (0.0, 1.0)),
    ],
)
def test_an_interval_of_one_task_by_hand(samples, level, expected) -> None:
    scores = {("a", 0, n, m): x for n, own in enumerate(samples) for m, x in enumerate(own)}
    assert mean_and_interval(scores, level=level, draw_tasks=False)[1:] == expected


def test_the_interval_equals_that_of_scipy() -> None:
    """One task: the plain bootstrap of a mean; both draw 10,000 times, hence the tolerance."""
    scores = [0.1, 0.4, 0.35, 0.8, 0.55]
    expected = stats.bootstrap(
        (scores,), lambda x, axis: x.mean(axis), n_resamples=10_000, method="percentile"
    ).confidence_interval
    keyed = {("a", 0, place, 0): score for place, score in enumerate(scores)}
    _, *found = mean_and_interval(keyed, n_draws=10_000, draw_tasks=False)
    assert found == pytest.approx([expected.low, expected.high], abs=0.02)
