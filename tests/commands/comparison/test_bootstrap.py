"""The bootstrap over tasks, seeds and samples: against plain loops and cases with known answers."""

import math
import random
import statistics

import numpy as np
import pytest
from scipy import stats

from helpers.command import ROOT, load_recipe
from mttl.commands.comparison.bootstrap import Key, draw_means, mean_and_interval, table

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
    scores = simulated(np.random.default_rng(3), n_tasks=300, spread=(1.0, 0.0, 0.0))
    values = [x for key, x in scores.items() if key[2:] == (0, 0)]
    mean, low, high = mean_and_interval(scores, n_draws=20_000)
    expected = stats.norm.interval(0.95, np.mean(values), stats.sem(values))
    assert mean == pytest.approx(np.mean(values))
    # The quantiles of 20,000 draws have an error of about 0.02 deviations.
    assert (low, high) == pytest.approx(expected, abs=0.1 * stats.sem(values))


def test_where_only_trainings_vary_all_tasks_move_together() -> None:
    """Seeds drawn for every task apart would make the interval √40 times too narrow."""
    scores = simulated(np.random.default_rng(4), n_seeds=30, n_samples=1, spread=(0.0, 1.0, 0.0))
    values = [x for key, x in scores.items() if key[0] == "000"]
    _, low, high = mean_and_interval(scores, n_draws=20_000)
    error = statistics.pstdev(values) / len(values) ** 0.5
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.05)


@pytest.mark.parametrize(("n_folds", "n_seeds"), [(1, 6), (5, 3)])
def test_intervals_cover(n_folds: int, n_seeds: int) -> None:
    """Of 200 simulated comparisons: 95 % less what few seeds cost, to three standard errors."""
    found = coverage.covered(200, seed=5, n_folds=n_folds, n_seeds=n_seeds)
    assert 0.86 <= found <= 0.985


def test_the_mean_counts_every_task_once() -> None:
    scores = {("a", 0, 13, 1): 10.0, ("a", 0, 13, 2): 30.0, ("a", 0, 14, 1): 40.0}
    scores |= {("b", 0, 13, 1): 60.0}
    mean, low, high = mean_and_interval(scores)
    assert mean == ((20 + 40) / 2 + 60) / 2
    assert low < mean < high
    assert mean_and_interval(scores) == (mean, low, high)  # the same draws


def test_tasks_that_were_seen_in_several_folds_share_their_trainings() -> None:
    """Two folds of one seed each: a draw has both, so only tasks vary."""
    scores = {
        (task, fold, 13, 1): x + fold
        for task, x in zip("abc", (0, 3, 6), strict=True)
        for fold in (1, 2)
    }
    means = draw_means(table(scores), 500, np.random.default_rng(0))
    assert {round(x, 6) for x in means} <= {1.5 + n for n in range(7)}


def test_a_fold_whose_other_seeds_have_not_ended_is_in_every_draw() -> None:
    """Draws that lost it would be those of the other fold alone, 40 above the rest."""
    scores = {(f"a{task}", 0, seed, 1): 80.0 for task in range(10) for seed in (13, 14, 15)}
    scores |= {(f"b{task}", 1, 13, 1): 40.0 for task in range(10)}
    means = draw_means(table(scores), 2000, np.random.default_rng(0))
    # A share of 20 draws of two values, whose deviation is 20 / √20.
    assert means.mean() == pytest.approx(60, abs=4 * 20 / 20**0.5 / 2000**0.5)


def test_equal_scores_have_no_interval() -> None:
    """Two seeds that agree in everything do not make a method certain."""
    scores = {(task, 0, seed, 1): 0.1 + 0.2 for task in "ab" for seed in (13, 14)}
    mean, low, high = mean_and_interval(scores)
    assert mean == pytest.approx(0.3)
    assert math.isnan(low)
    assert math.isnan(high)


@pytest.mark.parametrize(("n_seeds", "least"), [(1, 0.6), (2, 0.8)])
def test_intervals_of_one_or_two_seeds_have_a_width_and_cover_less(n_seeds, least) -> None:
    """One seed leaves out what trainings differ by, two show too little of it."""
    _, low, high = mean_and_interval(simulated(np.random.default_rng(5), n_seeds=n_seeds))
    assert low < high
    assert least <= coverage.covered(200, seed=5, n_seeds=n_seeds) <= 0.93


def test_a_single_score_has_no_interval() -> None:
    assert mean_and_interval({("a", 0, 13, 1): 5.0})[0] == 5.0
    assert all(math.isnan(x) for x in mean_and_interval({("a", 0, 13, 1): 5.0})[1:])
    assert all(math.isnan(x) for x in mean_and_interval({}))
