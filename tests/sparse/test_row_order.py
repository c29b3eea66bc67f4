"""The stream of rows: every epoch holds each row once, and places are stable."""

import pytest

from mttl.sparse.lottery_ticket import RowOrder


def test_an_epoch_holds_every_row_once_in_an_order_of_its_own() -> None:
    order = RowOrder(5, seed=3)
    epochs = [order.rows(5 * epoch, 5) for epoch in range(4)]
    assert all(sorted(rows) == [0, 1, 2, 3, 4] for rows in epochs)
    assert len(set(map(tuple, epochs))) > 1


def test_a_place_holds_the_same_row_whoever_asks() -> None:
    whole = RowOrder(5, seed=3).rows(0, 23)
    order = RowOrder(5, seed=3)
    assert order.rows(12, 9) == whole[12:21]  # across an epoch's end
    assert order.rows(3, 4) == whole[3:7]  # and back
    assert RowOrder(5, seed=4).rows(0, 23) != whole


def test_no_rows_are_refused() -> None:
    with pytest.raises(ValueError, match=r"n_rows \(0\) must be at least 1"):
        RowOrder(0, seed=3)
