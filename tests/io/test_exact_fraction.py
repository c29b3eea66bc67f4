from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mttl.io.exact_fraction import exact_fraction


@given(st.decimals(0, 100, places=6), st.integers(0, 10**9))
def test_a_share_is_that_of_the_decimal(share, n):
    assert exact_fraction(float(share), n) == Fraction(share) * n


@pytest.mark.parametrize(
    ("share", "n", "expected"), [(0.29, 100, 29), (1.1, 50, 55), (1e-05, 10**5, 1), (2, 3, 6)]
)
def test_products_that_floats_miss(share, n, expected):
    assert exact_fraction(share, n) == expected
