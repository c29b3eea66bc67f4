"""Intervals over seeds, against scipy."""

import math
import sys

import numpy as np
import pytest
from scipy import stats

from helpers.command import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
from comparison.intervals import half_width, interval


def test_the_interval_is_that_of_scipy():
    runs = [2_218_226, 2_143_491, 1_853_060, 2_400_000]
    found = interval(runs, [3_000_000] * 4)
    low, high = stats.t.interval(0.95, 3, loc=np.mean(runs), scale=stats.sem(runs))
    assert (found.low, found.mean, found.high) == pytest.approx((low, np.mean(runs), high))
    assert (found.n_runs, found.n_reached) == (4, 4)
    assert str(found) == f"2,153,694 [{low:,.0f}, {high:,.0f}] (4 runs)"
    low, high = stats.t.interval(0.99, 3, loc=np.mean(runs), scale=stats.sem(runs))
    assert 2 * half_width(runs, 0.99) == pytest.approx(high - low)


def test_a_run_that_never_got_there_makes_the_mean_a_bound():
    found = interval([1_000_000, None, 2_000_000], [2_500_000, 6_000_000, 2_500_000])
    assert found.mean == 3_000_000
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    assert str(found) == "> 3,000,000 (2 of 3 runs)"
    assert str(interval([None], [6_000_000])) == "> 6,000,000 (0 of 1 run)"


def test_a_single_run_has_no_interval():
    found = interval([24_000], [30_000])
    assert str(found) == "24,000 (1 run)"
    assert math.isnan(found.low)


def test_runs_that_are_all_alike_have_no_interval():
    found = interval([24_000, 24_000], [30_000, 30_000])
    assert str(found) == "24,000 (2 runs)"


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"reached_at has 0 runs and seen has 0; .* at least one"):
        interval([], [])
    with pytest.raises(ValueError, match="reached_at has 2 runs and seen has 1"):
        interval([3, 4], [5])
    with pytest.raises(ValueError, match="run 1 cannot reach the rate at 7 if it saw 6 episodes"):
        interval([5, 7], [6, 6])
