"""One DoRA or VeRA skill against peft's, and mixtures against dense formulas."""

import pytest
import torch
from torch import nn

from helpers.compare import relative_error
from helpers.skills import filled, mixing
from mttl.skills import DoRAInventory, VeRAInventory

peft = pytest.importorskip("peft")
RANK, N_IN, N_OUT, K, B = 3, 8, 6, 4, 5
# Double precision; the norm of the changed weight is computed without the dense change.
ROUNDING = 1e-12


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(N_IN, N_OUT)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def compared(config, inventory, copy) -> None:
    """Compare output and gradients of one skill with peft's layer."""
    net = Net()
    base = nn.Linear(N_IN, N_OUT).double()
    base.load_state_dict(net.layer.state_dict())
    layer = peft.get_peft_model(net, config).double().base_model.model.layer
    filled(inventory).double()
    pairs = copy(layer, inventory)
    x, weights = torch.randn(B, 2, N_IN).double(), torch.ones(B, 1, 1).double()
    found = inventory.combine_linear(x, base, inventory.merge(weights))
    expected = layer(x)
    assert relative_error(found, expected) < ROUNDING
    assert relative_error(expected, base(x)) > 1e-3
    found.square().sum().backward()
    expected.square().sum().backward()
    for own, other in pairs:
        assert relative_error(own.grad[0], other.grad.view_as(own.grad[0])) < ROUNDING


def test_dora_is_peft_s() -> None:
    def copy(layer, own):
        down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        magnitude = layer.lora_magnitude_vector["default"].weight
        with torch.no_grad():
            down.copy_(own.down[0].t())
            up.copy_(own.up[0])
            magnitude.copy_(layer.weight.norm(dim=1) + own.magnitude[0])
        return [(own.up, up), (own.magnitude, magnitude)]

    config = peft.LoraConfig(r=RANK, lora_alpha=2, target_modules=["layer"], use_dora=True)
    compared(config, DoRAInventory(N_IN, N_OUT, 1, rank=RANK, alpha=2.0), copy)


def test_vera_is_peft_s() -> None:
    def copy(layer, own):
        scales = (6 / N_IN) ** 0.5, (6 / RANK) ** 0.5
        inner, outer = layer.vera_lambda_d["default"], layer.vera_lambda_b["default"]
        down, up = (own._rows(which, torch.device("cpu")) for which in (0, 1))
        with torch.no_grad():
            layer.vera_A["default"].copy_(scales[0] * down.double().t())
            layer.vera_B["default"].copy_(scales[1] * up.double())
            inner.copy_(own.inner[0])
            outer.copy_(own.outer[0])
        return [(own.inner, inner), (own.outer, outer)]

    config = peft.VeraConfig(r=RANK, target_modules=["layer"])
    compared(config, VeRAInventory(N_IN, N_OUT, 1, rank=RANK), copy)


@pytest.mark.parametrize("n_heads", [1, 2])
def test_a_mixture_of_doras_has_the_mixed_magnitude(n_heads: int) -> None:
    own = filled(DoRAInventory(N_IN, N_OUT, K, rank=RANK, n_heads=n_heads)).double()
    base, weights = nn.Linear(N_IN, N_OUT).double(), mixing(B, n_heads, K).double()
    x = torch.randn(B, 2, N_IN).double()
    found = own.combine_linear(x, base, own.merge(weights))
    for b in range(B):
        rows, columns = (weights[b].repeat_interleave(n // n_heads, 0) for n in (N_OUT, N_IN))
        up = torch.einsum("ok,kor->or", rows, own.up)
        down = torch.einsum("ik,kir->ir", columns, own.down)
        changed = base.weight + up @ down.t() / RANK
        magnitude = base.weight.norm(dim=1) + torch.einsum("ok,ko->o", rows, own.magnitude)
        expected = x[b] @ (magnitude / changed.norm(dim=1) * changed.t()) + base.bias
        assert relative_error(found[b], expected) < ROUNDING
        weight, bias = own.fold(base.weight, base.bias, weights[b])
        assert relative_error(nn.functional.linear(x[b], weight, bias), expected) < ROUNDING


def test_all_layers_read_the_first_rows_of_the_same_matrices() -> None:
    first, second = (
        VeRAInventory(N_IN, N_OUT, K, rank=RANK),
        VeRAInventory(2 * N_IN, N_OUT, K, rank=RANK),
    )
    second.tie_to(first)
    alone, other = (VeRAInventory(2 * N_IN, N_OUT, K, rank=RANK, seed=seed) for seed in (0, 1))
    small, wide, again, differs = (
        one._rows(0, torch.device("cpu")) for one in (first, second, alone, other)
    )
    assert torch.equal(small, wide[:N_IN])
    assert torch.equal(again, wide)
    assert not torch.equal(again, differs)
    found = filled(first).double().delta(mixing(B, 1, K).double())
    x, y = torch.randn(B, 2, N_IN).double(), torch.zeros(B, 2, N_OUT).double()
    weights = mixing(B, 1, K).double()
    assert (
        relative_error(first(x, y, weights), torch.einsum("boi,bli->blo", first.delta(weights), x))
        < ROUNDING
    )
    assert found.shape == (B, N_OUT, N_IN)
