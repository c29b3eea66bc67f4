"""Skills on a base in few bits compute what they do on the same base unpacked."""

import pytest
import torch
from torch import nn

from helpers.compare import relative_error
from helpers.quantised import KINDS, ROUNDING, dense_copy, packed_linear
from helpers.skills import INVENTORIES, OTHERS, filled, make_kind
from mttl.routing import Routing, RoutingSlot
from mttl.skills import LoRAInventory, SkilledLinear, SupermaskInventory, attach_skills

I, O, K, B, L = 64, 96, 4, 2, 5  # noqa: E741
SKILLS = [name for name in (*INVENTORIES, *OTHERS) if "task" in make_kind(name, I, O, K).uses]


@pytest.mark.parametrize(
    ("kind", "skills"), [([*KINDS][n % len(KINDS)], skills) for n, skills in enumerate(SKILLS)]
)
def test_outputs_and_gradients(kind: str, skills: str) -> None:
    base = packed_linear(kind, I, O)
    found = _pass(base, skills)
    expected = _pass(dense_copy(base), skills)
    assert found.keys() == expected.keys()
    assert {"y", "x", "weights"} < found.keys()
    for name, value in found.items():
        assert relative_error(value, expected[name]) < ROUNDING, name


@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_in_half_precision_the_skills_stay_in_single(kind: str) -> None:
    base = packed_linear(kind, I, O)
    exact = _pass(dense_copy(base), "lora-factors")
    with torch.autocast("cpu", torch.bfloat16):
        found = _pass(base, "lora-factors")
    assert found["down"].dtype == torch.float32
    for name, value in found.items():  # bfloat16 has eight bits
        assert relative_error(value.float(), exact[name]) < 0.05, name


def _pass(base: nn.Linear, skills: str) -> dict[str, torch.Tensor]:
    """Return output and gradients of a layer with skills."""
    generator = torch.Generator().manual_seed(3)
    slot = RoutingSlot()
    layer = SkilledLinear(base, filled(make_kind(skills, I, O, K)), slot, 0)
    x = torch.randn(B, L, I, generator=generator).requires_grad_()
    weights = torch.rand(1, B, 1, K, generator=generator).requires_grad_()
    with slot.use(Routing(torch.arange(B), weights)):
        y = layer(x)
    (y * torch.randn(y.shape, generator=generator)).sum().backward()
    assert x.grad is not None
    assert weights.grad is not None
    grads = {name: value.grad for name, value in layer.inventory.named_parameters()}
    return {"y": y, "x": x.grad, "weights": weights.grad} | {
        name: grad for name, grad in grads.items() if grad is not None
    }


class Packed(nn.Module):
    """A layer as GPTQ and AWQ make them: no nn.Linear, and its numbers in 32 bits, eight each."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.register_buffer("qweight", torch.zeros(n_in // 8, n_out, dtype=torch.int32))
        self.register_buffer("scales", torch.ones(n_out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(-1, keepdim=True) * self.scales  # type: ignore[operator]


class Attention(nn.Module):
    """One whose packed layer tells its features, or not."""

    def __init__(self, **tells: int) -> None:
        super().__init__()
        self.q_proj, self.o_proj = Packed(8, 4), nn.Linear(4, 8)
        vars(self.q_proj).update(tells)


def _attach(targets: list[str], **tells: int) -> nn.Module:
    model = nn.Sequential()
    model.layers = nn.ModuleList([Attention(**tells)])
    attach_skills(model, lambda n, m: LoRAInventory(n, m, 2), targets=targets, slot=RoutingSlot())
    return model


@pytest.mark.parametrize("targets", [["q_proj"], ["all"], ["attention"]])
def test_layers_of_other_libraries_have_skills_where_they_tell_their_features(targets) -> None:
    """And are named where they do not."""
    model = _attach(targets, in_features=8, out_features=4)
    layer = model.get_submodule("layers.0.q_proj")
    assert isinstance(layer, SkilledLinear)
    filled(layer.inventory)
    x = torch.randn(1, 3, 8, requires_grad=True)
    weights = torch.full((8, 1, 1, 2), 0.5)
    with layer.slot.use(Routing(torch.zeros(1, dtype=torch.long), weights)):
        y = layer(x)
    assert not torch.equal(y, layer.base(x))
    y.sum().backward()
    assert layer.inventory.up.grad is not None
    assert not hasattr(layer, "weight")
    message = f"the target '{targets[0]}' matches 'layers.0.q_proj', a Packed without in_features"
    with pytest.raises(ValueError, match=message):
        _attach(targets)
    _attach(["o_proj"])


def test_kinds_that_read_the_weight_are_refused_on_them() -> None:
    with pytest.raises(ValueError, match=r"needs an nn\.Linear, not Packed"):
        SkilledLinear(Packed(8, 4), SupermaskInventory(8, 4, 2), RoutingSlot(), 0)
