"""Bottleneck adapters, beside those of AdapterHub; sparse and stacked ones, beside plain loops."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from helpers.adapterhub import adapted, adapterhub, mixed
from helpers.backbones import tiny_t5
from helpers.compare import assert_same
from helpers.skills import filled, mixing, skilled
from mttl.adaptation.modes import apply_mode
from mttl.io.errors import ConfigError
from mttl.skills import AdapterInventory, SparseAdapterInventory
from mttl.skills.attention import AttendedInventory
from mttl.skills.gated import GatedInventory

B, L, SIZE, HIDDEN = 4, 3, 8, 5
# The same double-precision sums in another order: some dozens of roundings of 1e-16 of numbers
# that are about 1, or about 10 in gradients.
ROUNDING = {"rtol": 1e-12, "atol": 1e-12}

# Their configuration, what is set in it, and our settings. `original_ln_after` adds what the model
# has behind every block, its residual connection and norm. Not here, as ours have none: a norm
# behind the way up (`ln_after`), scales that are learned, and gates of their own.
FORMS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "houlsby": ("DoubleSeqBnConfig", {}, {"parallel": False, "activation": "silu"}),
    "houlsby, gelu": (
        "DoubleSeqBnConfig",
        {"non_linearity": "gelu"},
        {"parallel": False, "activation": "gelu"},
    ),
    "houlsby, layer norm": (
        "DoubleSeqBnConfig",
        {"ln_before": True, "non_linearity": "gelu_new"},
        {"parallel": False, "activation": "gelu_new", "layer_norm": True},
    ),
    # What it reads otherwise has a test of its own, below.
    "pfeiffer": ("SeqBnConfig", {"original_ln_before": False}, {"parallel": False}),
    "parallel": ("ParBnConfig", {"scaling": 1.0}, {}),
    "scaled parallel": ("ParBnConfig", {}, {"scale": 4.0}),
    "scaled parallel, layer norm": (
        "ParBnConfig",
        {"ln_before": True},
        {"scale": 4.0, "layer_norm": True},
    ),
}


def theirs(config: str, **settings: Any) -> nn.Module:
    """Return one of their adapters, as their layers choose its class."""
    hub = adapterhub()
    settings = {"original_ln_after": False} | settings
    made = getattr(hub.configuration, config)(**settings)
    kind = hub.modeling.ParallelAdapter if made["is_parallel"] else hub.modeling.Adapter
    return kind("skill", SIZE, HIDDEN, made)


def stacks(inventory: Any, *, norm: bool = False) -> dict[str, Tensor]:
    """Return our parameters by their names; the way down follows a norm where there is one."""
    ways = (f"adapter_down.{int(norm)}", "adapter_up")
    names = [f"{way}.{part}" for way in ways for part in ("weight", "bias")]
    found = dict(zip(names, inventory.projections(), strict=True))
    if norm:
        ones = torch.ones(inventory.n_skills, SIZE).double()
        found |= {"adapter_norm_before.weight": ones, "adapter_norm_before.bias": 0 * ones}
    return found


def block() -> tuple[Tensor, Tensor]:
    """Return the input and the output of a block."""
    x, y = torch.randn(2, B, L, SIZE, dtype=torch.float64)
    return x.requires_grad_(), y.requires_grad_()


def rows(n_skills: int) -> Tensor:
    """Return mixing weights that sum to 1 in double precision, too."""
    return mixing(B, 1, n_skills).double().log().softmax(-1).requires_grad_()


@pytest.mark.parametrize("mix", ["factors", "outputs"])
@pytest.mark.parametrize("n_skills", [1, 3])
@pytest.mark.parametrize("form", FORMS)
def test_mixtures_are_those_of_adapterhubs_adapters(form: str, n_skills: int, mix: str) -> None:
    config, their_settings, our_settings = FORMS[form]
    adapter = theirs(config, **their_settings)
    inventory = filled(
        AdapterInventory(SIZE, SIZE, n_skills, hidden_features=HIDDEN, mix=mix, **our_settings)
    ).double()
    (x, y), weights = block(), rows(n_skills)
    normed = "layer_norm" in our_settings
    named = stacks(inventory, norm=normed)
    expected = mixed(adapter, named, weights, x, y, mix=mix)
    assert not torch.allclose(expected, y)
    by = [x, y, *inventory.parameters()]
    # Their outputs hold y, and the gain of their norm is mixed with the rest, so that these are
    # ours where weights sum to 1, and only there.
    if mix == "factors" and not normed:
        by.append(weights)
    assert_same(inventory(x, y, weights), expected, by, **ROUNDING)


@pytest.mark.parametrize("mix", ["factors", "outputs"])
@pytest.mark.parametrize("kind", [AdapterInventory, SparseAdapterInventory])
@pytest.mark.parametrize("sizes", [(2, 3), (1, 3, 1)])
def test_stages_are_a_stack_of_adapterhubs_adapters(
    sizes: tuple[int, ...], kind: Any, mix: str
) -> None:
    """Their `Stack` gives each adapter what the one below it made of the block's output."""
    adapter = theirs("DoubleSeqBnConfig")
    settings: dict[str, Any] = {"parallel": False, "activation": "silu", "mix": mix}
    inventory = filled(
        kind(SIZE, SIZE, 5, hidden_features=HIDDEN, stages=sizes, **settings)
    ).double()
    (x, y), weights = block(), rows(5)
    expected, first = y, 0
    for size in sizes:
        own = slice(first, first + size)
        shares = weights[..., own] / weights[..., own].sum(-1, keepdim=True)
        stage = {name: part[own] for name, part in stacks(inventory).items()}
        expected = mixed(adapter, stage, shares, x, expected, mix=mix)
        first += size
    by = [x, y, weights, *inventory.parameters()]
    assert_same(inventory(x, y, weights), expected, by, **ROUNDING)


@pytest.mark.parametrize("n_skills", [1, 3])
def test_a_gate_is_adapterhubs_where_there_is_one_token(n_skills: int) -> None:
    """Theirs takes the mean over the tokens of an example, ours reads each for itself (UniPELT)."""
    adapter = theirs("ParBnConfig", use_gating=True)
    inner = AdapterInventory(SIZE, SIZE, n_skills, hidden_features=HIDDEN, scale=4.0)
    inventory: Any = filled(GatedInventory(inner)).double()
    x, y = (value[:, :1].detach().requires_grad_() for value in block())
    weights = rows(n_skills)
    gates = {"gate.weight": inventory.weight[:, None], "gate.bias": inventory.bias}
    expected = mixed(adapter, stacks(inner) | gates, weights, x, y, mix="factors")
    by = [x, y, weights, *inventory.parameters()]
    assert_same(inventory(x, y, weights), expected, by, **ROUNDING)


def test_gain_and_shift_of_their_norm_are_products_with_the_way_down() -> None:
    adapter = theirs("DoubleSeqBnConfig", ln_before=True)
    inventory: Any = AdapterInventory(
        SIZE, SIZE, 1, hidden_features=HIDDEN, parallel=False, activation="silu", layer_norm=True
    ).double()
    x, y = block()
    shapes = {name: part.shape for name, part in adapter.named_parameters()}
    parts = {
        name: torch.randn(shape, dtype=torch.float64, requires_grad=True)
        for name, shape in shapes.items()
    }
    gain, shift, way_down, bias, way_up, last = (
        parts[name]
        for name in (
            *("adapter_norm_before.weight", "adapter_norm_before.bias"),
            *("adapter_down.1.weight", "adapter_down.1.bias"),
            *("adapter_up.weight", "adapter_up.bias"),
        )
    )
    ours = {
        "blocks.up": way_down * gain,
        "blocks.up_bias": bias + way_down @ shift,
        "blocks.down": way_up,
        "blocks.down_bias": last,
    }
    stacked = {name: part[None] for name, part in ours.items()}
    found = functional_call(inventory, stacked, (x, y, torch.ones(B, 1, 1).double()))
    expected = adapted(adapter, parts, x, y, None)
    assert_same(found, expected, [x, y, *parts.values()], **ROUNDING)


@pytest.mark.parametrize("norm", [None, nn.LayerNorm(SIZE)], ids=["no norm", "norm"])
def test_their_pfeiffer_adapter_reads_the_sum_with_the_residual(norm: nn.Module | None) -> None:
    """Ours reads the block's output; from the same input the same change is made."""
    adapter = theirs("SeqBnConfig")
    inventory = filled(
        AdapterInventory(SIZE, SIZE, 1, hidden_features=HIDDEN, parallel=False)
    ).double()
    x, y = block()
    if norm is not None:
        norm.double()
    read = x + y if norm is None else norm(x + y)
    parts = {name: part[0] for name, part in stacks(inventory).items()}
    change = inventory(x, read, torch.ones(B, 1, 1).double()) - read
    expected = adapted(adapter, parts, x, y, norm)
    assert_same(y + change, expected, [x, y, *inventory.parameters()], **ROUNDING)


# Of which most entries are pruned before training.

K, F = 3, 20


def sparse(**settings):
    sizes = {"hidden_features": F, "sparsity": 0.7}
    return filled(SparseAdapterInventory(8, 12, K, **sizes, **settings)).double()


def masked(inventory, k):
    """A network of whole layers and the masks that multiply their weights, as in the release."""
    down, up = nn.Linear(8, F).double(), nn.Linear(F, 12).double()
    masks = []
    for layer, name in ((down, "down"), (up, "up")):
        places = getattr(inventory, f"{name}_places")[k]
        mask = torch.zeros(layer.weight.numel(), dtype=torch.float64)
        mask[places] = 1
        masks.append(mask.view_as(layer.weight))
        with torch.no_grad():
            layer.weight.view(-1)[places] = getattr(inventory, name)[k]
            layer.bias.copy_(getattr(inventory, f"{name}_bias")[k])

    def run(x):
        hidden = torch.relu(x @ (down.weight * masks[0]).T + down.bias)
        return inventory.scale * (hidden @ (up.weight * masks[1]).T + up.bias)

    return run, down, up


def test_each_skill_is_a_masked_network_and_learns_as_one():
    torch.manual_seed(0)
    inventory = sparse(scale=2.0)
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    y = torch.randn(2, 5, 12, dtype=torch.float64)
    for k in range(K):
        inventory.zero_grad()
        weights = torch.eye(K, dtype=torch.float64)[[k, k]][:, None]
        found = inventory(x, y, weights)
        run, down, up = masked(inventory, k)
        expected = y + run(x)
        torch.testing.assert_close(found, expected)
        found.square().sum().backward()
        expected.square().sum().backward()
        for layer, name in ((down, "down"), (up, "up")):
            places = getattr(inventory, f"{name}_places")[k]
            theirs = layer.weight.grad.flatten()
            torch.testing.assert_close(getattr(inventory, name).grad[k], theirs[places])
            assert theirs.count_nonzero() <= len(places)
            bias = getattr(inventory, f"{name}_bias").grad[k]
            torch.testing.assert_close(bias, layer.bias.grad)


def test_skills_keep_a_fraction_of_both_projections_each_its_own():
    inventory = SparseAdapterInventory(64, 64, K, hidden_features=256)
    for name in ("down", "up"):
        assert getattr(inventory, name).shape == (K, 64 * 256 // 4)
        places = getattr(inventory, f"{name}_places")
        assert not torch.equal(places[0], places[1])
    down, _, up, _ = inventory.projections()
    # Drawn as a whole layer is, and 0 elsewhere; the way up is 0 everywhere.
    assert down.abs().max() <= 64**-0.5
    assert (down != 0).float().mean().item() == pytest.approx(0.25, abs=1e-3)
    assert not up.any()


def test_a_stage_without_weight_adds_nothing():
    """As where a language is known and a task is not; and gradients are finite."""
    sizes: dict[str, Any] = {"hidden_features": 4, "parallel": False}
    inventory = filled(AdapterInventory(SIZE, SIZE, 5, stages=(2, 3), **sizes))
    plain = AdapterInventory(SIZE, SIZE, 5, **sizes)
    plain.load_state_dict(inventory.state_dict())
    x, y = torch.randn(B, L, SIZE), torch.randn(B, L, SIZE)
    weights = torch.tensor([0, 1.0, 0, 0, 0]).expand(B, 1, 5).clone().requires_grad_()
    found = inventory(x, y, weights)
    torch.testing.assert_close(found, plain(x, y, weights))
    found.sum().backward()
    assert weights.grad.isfinite().all()


def test_free_coefficients_are_refused():
    """A new task's may become negative, and such a row has no shares."""
    model = skilled(tiny_t5(), inventory="adapter, stacked")
    with pytest.raises(ConfigError, match="' allows negative weights, but stacked skills need"):
        apply_mode(model, "router_only", init="coefficients")
    apply_mode(model, "router_only", init="mean")


def test_what_stacked_adapters_cannot_be():
    inventory = AdapterInventory(SIZE, SIZE, 5, parallel=False, stages=(2, 3))
    with pytest.raises(ValueError, match="cannot be chosen by token, only mixed by task"):
        inventory.require_use("token")
    with pytest.raises(NotImplementedError, match="adapters in stages cannot be fused"):
        AttendedInventory(inventory)(*torch.randn(2, B, L, SIZE), mixing(B, 1, 5))


def test_weights_start_with_the_given_deviation() -> None:
    made = AdapterInventory(50, 50, 4, hidden_features=20, deviation=0.03)
    assert not made.neutral
    for weight in (made.blocks.up, made.blocks.down):
        assert weight.abs().max() <= 0.06
        # A normal distribution cut at two deviations has 0.8796 of its deviation; 4,000 values.
        assert weight.std().item() == pytest.approx(0.8796 * 0.03, rel=0.05)
    assert not any(bias.any() for bias in (made.blocks.up_bias, made.blocks.down_bias))
