"""The tests of this folder check annotated shapes, also in repeated calls."""

import jaxtyping
import pytest
import torch

from mttl.aggregation import mix_deltas


def test_the_rooms_are_checked() -> None:
    sizes = [(3, 4, 2), (3, 5, 2), (2, 1, 3)]
    told = r"(?s)Type-check error.*mttl\.aggregation\.mix"
    for _ in range(2):
        assert mix_deltas(*(torch.ones(size) for size in sizes)).shape == (2, 5, 4)
        with pytest.raises(jaxtyping.TypeCheckError, match=told):
            mix_deltas(*(torch.ones(size).int() for size in sizes))
