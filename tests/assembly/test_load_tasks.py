"""Models hold equal tensors once, and different ones separately."""

from pathlib import Path

import pytest
import torch
from torch import nn

import mttl
from helpers.gyms import make_run, write_gym
from helpers.quantised import KINDS, packed_linear
from helpers.serving import BACKBONES
from mttl.aggregation.packed_weights import parts
from mttl.assembly.load_tasks import fixed_model, share_weights
from mttl.io.errors import ConfigError


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


def test_a_fixed_model_shares_only_frozen_weights(tmp_path: Path) -> None:
    backbone = {**BACKBONES["t5"], "train": False}
    gym = write_gym(tmp_path / "gym", {"copy": ("EM", str)})
    folder = make_run(tmp_path / "run", backbone=backbone)
    built = mttl.load(folder)
    frozen = [name for name, own in built.model.named_parameters() if not own.requires_grad]
    trained = dict(built.model.named_parameters())
    before = {name: own.detach().clone() for name, own in trained.items()}
    found = [fixed_model(built, reference) for reference in (None, str(folder))]
    with torch.no_grad():
        for own in built.model.parameters():
            own.add_(own.requires_grad)
    assert 0 < len(frozen) < len(trained)
    for model, task_ids in found:
        assert task_ids.tolist() == [0, 1, 2]
        for name, own in model.named_parameters():
            assert (own is trained[name]) == (name in frozen)
            assert torch.equal(own, before[name])
    (tmp_path / "other").mkdir()
    other = make_run(tmp_path / "other", gym=gym, backbone=backbone)
    with pytest.raises(
        ConfigError, match=r"reference '.*other/runs/source': the model has no task 'reverse'"
    ):
        fixed_model(built, str(other))
