"""Stacked adapters, against one module after the other."""

import pytest
import torch

from helpers.backbones import tiny_t5
from helpers.skills import filled, mixing, skilled
from mttl.adaptation.modes import apply_mode
from mttl.config.load import load_config
from mttl.io.errors import ConfigError
from mttl.skills import AdapterInventory, SparseAdapterInventory
from mttl.skills.attention import AttendedInventory

B, L, I, K = 4, 3, 8, 5  # noqa: E741
KINDS = {"adapter": AdapterInventory, "sparse_adapter": SparseAdapterInventory}


def alone(inventory, h, w):
    """What a mixture of the skills of one stage makes of h, by their networks one by one."""
    down, down_bias, up, up_bias = inventory.projections()

    def network(parts):
        d, a, u, c = parts
        return inventory.scale * (inventory.activation(h @ d.T + a) @ u.T + c)

    parts = (down, down_bias, up, up_bias)
    if inventory.mix == "outputs":
        return sum(w[k] * network([part[k] for part in parts]) for k in range(K) if w[k])
    return network([torch.einsum("k,k...->...", w, part) for part in parts])


@pytest.mark.parametrize("mix", ["factors", "outputs"])
@pytest.mark.parametrize("kind", ["adapter", "sparse_adapter"])
@pytest.mark.parametrize("stages", [(2, 3), (1, 3, 1)])
def test_an_upper_stage_reads_what_the_lower_one_made(kind, mix, stages):
    inventory = filled(
        KINDS[kind](
            *(I, I, K), hidden_features=4, parallel=False, stages=stages, mix=mix, scale=2.0
        )
    ).double()
    y = torch.randn(B, L, I, dtype=torch.float64)
    weights = mixing(B, 1, K).double()
    found = inventory(torch.full_like(y, torch.nan), y, weights)  # the block's input is not read
    for b in range(B):
        h, before = y[b], 0
        for size in stages:
            own = torch.zeros(K, dtype=torch.float64)
            own[before : before + size] = weights[b, 0, before : before + size]
            h = h + alone(inventory, h, own / own.sum())
            before += size
        torch.testing.assert_close(found[b], h)


def test_a_stage_without_weight_adds_nothing():
    """As where a language is known and a task is not; and gradients are finite."""
    inventory = filled(AdapterInventory(I, I, K, hidden_features=4, parallel=False, stages=(2, 3)))
    plain = AdapterInventory(I, I, K, hidden_features=4, parallel=False)
    plain.load_state_dict(inventory.state_dict())
    x, y = torch.randn(B, L, I), torch.randn(B, L, I)
    weights = torch.tensor([0, 1.0, 0, 0, 0]).expand(B, 1, K).clone().requires_grad_()
    found = inventory(x, y, weights)
    torch.testing.assert_close(found, plain(x, y, weights))
    found.sum().backward()
    assert weights.grad.isfinite().all()


def test_free_coefficients_are_refused():
    """A new task's may become negative, and such a row has no shares."""
    model = skilled(tiny_t5(), inventory="adapter, stacked")
    with pytest.raises(ConfigError, match="stacked skills are mixed by their shares of a row"):
        apply_mode(model, "router_only", init="coefficients")
    apply_mode(model, "router_only", init="mean")


def test_what_stacked_adapters_cannot_be():
    inventory = AdapterInventory(I, I, K, parallel=False, stages=(2, 3))
    with pytest.raises(ValueError, match="cannot be chosen by token, only mixed by task"):
        inventory.require_use("token")
    with pytest.raises(NotImplementedError, match="stacked adapters change what others"):
        AttendedInventory(inventory)(torch.randn(B, L, I), torch.randn(B, L, I), mixing(B, 1, K))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["router.kind=hyperformer"], r"does not work with skills.stages \(\[4, 4\]\)"),
        (
            ["aggregation.kind=fusion", "aggregation.source=runs/x", "router.kind=average"],
            r"skills.stages \(\[4, 4\]\) must be None for aggregation fusion",
        ),
    ],
)
def test_wrong_combinations_are_errors_of_the_configuration(settings, message):
    with pytest.raises(ConfigError, match=message):
        load_config("crossfit.yaml+skills/adapter_stacked.yaml", settings)
