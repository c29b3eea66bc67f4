"""Models hold equal tensors once, and different ones separately."""

import pytest
import torch
from torch import nn

from helpers.quantised import KINDS, packed_linear
from mttl.aggregation.packed_weights import parts
from mttl.assembly.load_tasks import share_weights


class Two(nn.Module):
    def __init__(self, shift: float) -> None:
        super().__init__()
        self.same = nn.Linear(3, 2)
        self.other = nn.Parameter(torch.full((4,), shift))
        self.register_buffer("scale", torch.ones(5))
        with torch.no_grad():
            self.same.weight.fill_(1.0)
            self.same.bias.fill_(0.5)


def test_what_is_alike_has_one_place() -> None:
    models = [Two(0.0), Two(1.0), Two(0.0).double(), Two(1.0)]
    expected = [model.same(torch.ones(3, dtype=model.other.dtype)) for model in models]
    # The second's layer and buffer; the third is of another type; all of the fourth.
    known: dict[str, list[torch.Tensor]] = {}
    saved = [share_weights(model, known) for model in models]
    assert saved == [0, 4 * (6 + 2 + 5), 0, 4 * (6 + 2 + 5 + 4)]
    first, second, third, fourth = models
    assert first.same.weight.data_ptr() == second.same.weight.data_ptr()
    assert first.other.data_ptr() != second.other.data_ptr() == fourth.other.data_ptr()
    assert first.same.weight.data_ptr() != third.same.weight.data_ptr()
    for model, output in zip(models, expected, strict=True):
        assert torch.equal(model.same(torch.ones(3, dtype=model.other.dtype)), output)
    assert [share_weights(model, known) for model in models] == [0] * 4


@pytest.mark.parametrize("kind", KINDS)
def test_packed_weights_that_are_alike(kind: str) -> None:
    models = [nn.Sequential(packed_linear(kind, 64, 32, bias=False)) for _ in range(2)]
    other = nn.Sequential(packed_linear(kind, 64, 32, bias=False))
    parts(other[0].weight)[1].mul_(2)  # the same numbers in few bits, with other scales
    x = torch.randn(3, 64)
    expected = [model(x) for model in (models[1], other)]
    known: dict[str, list[torch.Tensor]] = {}
    saved = [share_weights(model, known) for model in (*models, other)]
    size = sum(part.nbytes for part in parts(models[0][0].weight))
    assert saved == [0, size, 0]
    assert models[0][0].weight is models[1][0].weight is not other[0].weight
    for model, output in zip((models[1], other), expected, strict=True):
        assert torch.equal(model(x), output)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_what_is_alike_on_another_device_is_not_moved_there() -> None:
    first, second = Two(0.0).cuda(), Two(1.0)
    known: dict[str, list[torch.Tensor]] = {}
    assert share_weights(first, known) == 0
    assert share_weights(second, known) == 4 * (6 + 2 + 5)
    assert second.other.device.type == "cpu"
    second.cuda()
    assert first.same.weight.data_ptr() == second.same.weight.data_ptr()
    assert first.get_buffer("scale").data_ptr() == second.get_buffer("scale").data_ptr()
