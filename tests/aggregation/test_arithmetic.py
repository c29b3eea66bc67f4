"""Task arithmetic and CaPE."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mttl.aggregation.task_vectors import add_task_vectors


@given(weights=st.lists(st.floats(-2, 2), min_size=1, max_size=4))
def test_the_sum_is_peft_s(weights: list[float]) -> None:
    utils = pytest.importorskip("peft.utils.merge_utils")
    base, *vectors = torch.randn(1 + len(weights), 4, 3).unbind()
    expected = base + utils.task_arithmetic(vectors, torch.tensor(weights))
    # The order of the additions differs.
    torch.testing.assert_close(add_task_vectors(base, vectors, weights), expected)


def test_weights_are_counted() -> None:
    with pytest.raises(ValueError, match="longer"):
        add_task_vectors(torch.ones(2), [torch.ones(2)], [1.0, 2.0])
