"""Task arithmetic and CaPE."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mttl.aggregation.arithmetic import add_task_vectors


def test_adding_a_vector_gives_the_tuned_model_and_subtracting_it_undoes_that() -> None:
    base, tuned = torch.randn(2, 5, 3).unbind()
    vector = tuned - base
    # One rounding of a sum of numbers of size 1.
    torch.testing.assert_close(add_task_vectors(base, [vector], [1.0]), tuned, atol=1e-6, rtol=0)
    both = add_task_vectors(base, [vector, vector], [0.7, -0.7])
    torch.testing.assert_close(both, base, atol=1e-6, rtol=0)


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
