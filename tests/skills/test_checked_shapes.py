"""The tests of this folder check annotated shapes, also in repeated calls."""

import jaxtyping
import pytest
import torch
from beartype import beartype
from jaxtyping import Float
from torch import Tensor

from mttl.aggregation import mix_deltas


@jaxtyping.jaxtyped(typechecker=beartype)
def scaled(x: Float[Tensor, "B O"], by: Float[Tensor, "B"], cut: int = 0) -> Float[Tensor, "B O"]:
    return (x * by[:, None])[cut:]


@pytest.mark.parametrize(
    ("by", "cut"), [(torch.ones(1), 0), (torch.ones(2).int(), 0), (torch.ones(2), 1)]
)
def test_what_does_not_fit_is_told_every_time(by: Tensor, cut: int) -> None:
    x = torch.ones(2, 3)
    for _ in range(2):
        assert scaled(x, torch.ones(2)).shape == (2, 3)
        assert scaled(torch.ones(4, 1), by=torch.ones(4)).shape == (4, 1)
        with pytest.raises(jaxtyping.TypeCheckError, match=r"(?s)Type-check error.*scaled"):
            scaled(x, by, cut)


def test_the_rooms_are_checked() -> None:
    sizes = [(3, 4, 2), (3, 5, 2), (2, 1, 3)]
    told = r"(?s)Type-check error.*mttl\.aggregation\.mix"
    for _ in range(2):
        assert mix_deltas(*(torch.ones(size) for size in sizes)).shape == (2, 5, 4)
        with pytest.raises(jaxtyping.TypeCheckError, match=told):
            mix_deltas(*(torch.ones(size).int() for size in sizes))
