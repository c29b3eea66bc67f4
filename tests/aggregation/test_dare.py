"""DARE against peft's, and the independence of its masks."""

import pytest
import torch

from mttl.aggregation.task_vectors import (
    add_task_vectors,
    drop_and_rescale,
    mask_generator,
    merge_agreeing,
)


@pytest.mark.parametrize("then", ["dare_linear", "dare_ties"])
def test_the_merge_is_peft_s(then: str) -> None:
    utils = pytest.importorskip("peft.utils.merge_utils")
    base, *vectors = torch.randn(3, 8, 7).unbind()
    torch.manual_seed(5)
    expected = base + getattr(utils, then)(vectors, torch.tensor([1.0, 0.5]), 0.4)
    # peft draws from the global generator, one vector after another.
    generator = torch.Generator().manual_seed(5)
    dropped = [drop_and_rescale(vector, 0.4, generator) for vector in vectors]
    merge = add_task_vectors if then == "dare_linear" else merge_agreeing
    torch.testing.assert_close(merge(base, dropped, [1.0, 0.5]), expected)


def test_ranges_get_the_mask_of_the_whole() -> None:
    vector = torch.randn(1001)
    whole = drop_and_rescale(vector, 0.3, mask_generator(1, 0, "a"))
    generator = mask_generator(1, 0, "a")
    parts = [drop_and_rescale(part, 0.3, generator) for part in vector.split(37)]
    assert torch.equal(torch.cat(parts), whole)


def test_a_density_that_keeps_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"density .0\.0. must lie in"):
        drop_and_rescale(torch.ones(1), 0.0, torch.Generator())
