"""Sizes, settings and their bounds, the forms that are printed, and skills of tensors."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from helpers.skills import INVENTORIES
from mttl.moe import FeedForwardExperts
from mttl.plugins.describe import described
from mttl.skills import (
    KINDS,
    AdapterInventory,
    BitFitInventory,
    CompacterInventory,
    DenseInventory,
    DiffPruningInventory,
    HeadMaskInventory,
    IA3Inventory,
    IntrinsicInventory,
    KronABlockInventory,
    KronAInventory,
    LoRAInventory,
    PrefixInventory,
    SupermaskInventory,
)
from mttl.skills.attention import AttendedInventory
from mttl.skills.gated import GatedInventory

K = 3
# What kinds with an attachment point of their own are given.
MORE: dict[str, tuple[int, ...]] = {"head_mask": (4,), "norm": (1,), "prefix": (4,), "ladder": (2,)}


@pytest.mark.parametrize("kind", sorted(INVENTORIES))
def test_the_printed_form_names_sizes_and_settings(kind):
    inventory = INVENTORIES[kind](8, 12, K, n_heads=2)
    assert inventory.role == "skills"
    assert "in_features=8, out_features=12, n_skills=3, n_heads=2" in repr(inventory)
    if hasattr(inventory, "mix"):
        assert f"mix={inventory.mix}" in repr(inventory)
    lora = LoRAInventory(4, 6, K, rank=2, alpha=3.0)
    assert "n_heads=1, rank=2, scale=1.5, rslora=False, dropout=0.0" in repr(lora)
    assert "query=input" in repr(AttendedInventory(lora, query="input"))


def outside(data: dict[str, Any]) -> Iterator[Any]:
    """Give values outside the bounds of a setting, one for each."""
    for one in data.get("any", [data]):
        for bound, beyond in (("gt", 0), ("ge", -1), ("lt", 0), ("le", 1)):
            if bound in one:
                yield one[bound] + beyond
        if "one_of" in one:
            yield "unknown"
        if "min_length" in one:
            yield []


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (kind, name, value)
        for kind, found in described("skills").items()
        for name, one in found["settings"].items()
        for value in outside(one["type"])
    ],
)
def test_a_setting_out_of_its_bounds_is_refused(kind, name, value):
    with pytest.raises(ValueError, match=re.escape(f"{name} ({value!r}) must ")):
        KINDS[kind](8, 8, K, *MORE.get(kind, ()), **{name: value})


def tensor_of(kind: Any, shape: tuple[int, ...], **settings: Any) -> Any:
    return kind.of_tensor(shape, 2, **settings)


REFUSED = [
    (LoRAInventory, (0, 4, K), {}, r"in_features \(0\) must be at least 1"),
    (LoRAInventory, (4, 0, K), {}, r"out_features \(0\) must be at least 1"),
    (LoRAInventory, (4, 4, 0), {}, r"n_skills \(0\) must be at least 1"),
    (IA3Inventory, (8, 6, K), {"n_heads": 0}, r"n_heads \(0\) must be at least 1"),
    (DenseInventory, (8, 6, K), {"n_heads": 4}, r"n_heads \(4\) must divide out_features"),
    (LoRAInventory, (6, 8, K), {"n_heads": 4}, r"n_heads \(4\) must divide in_features \(6\)"),
    (PrefixInventory, (6, 12, K, 4), {"n_heads": 4}, r"n_heads \(4\) must divide in_features"),
    (HeadMaskInventory, (8, 12, K, 4), {"n_heads": 3}, r"\(3\) must divide attention_heads"),
    (KronAInventory, (8, 12, K), {"n_heads": 2}, r"n_heads \(2\) must be 1 with mix: factors"),
    (KronAInventory, (8, 12, K), {"shape": (5, 2)}, r"shape \(\[5, 2\]\) must be two sizes"),
    (KronABlockInventory, (8, 12, K), {}, r"residual must be false for .* 12 features"),
    (CompacterInventory, (8, 12, K), {"n_products": 3}, r"\(3\) must divide in_features \(8\)"),
    (CompacterInventory, (8, 12, K), {"hidden_features": 6}, r"divide hidden_features \(6\)"),
    (AdapterInventory, (8, 8, 5), {"stages": (2, 2)}, r"stages \(\[2, 2\]\) must be positive"),
    (AdapterInventory, (8, 8, 5), {"stages": (0, 5)}, r"stages \(\[0, 5\]\) must be positive"),
    (AdapterInventory, (8, 8, 5), {"stages": (2, 3)}, r"parallel must be false for several stages"),
    (IntrinsicInventory, (8, 8, K), {"init": "normal"}, r"init .'normal'. must be one"),
    (DiffPruningInventory, (8, 8, K), {"stretch": (0.0, 1.5)}, "must start below 0 and end ab"),
    (LoRAInventory, (4, 6, K), {"scale": 0.5, "alpha": 1.0}, r"scale \(0\.5\) cannot be combined"),
    (LoRAInventory, (4, 6, K), {"shared_down": True, "init": "pissa"}, "a separate input factor"),
    (FeedForwardExperts, (8, 0, 8, K), {}, r"hidden_features \(0\) must be at least 1"),
    (FeedForwardExperts, (8, 8, 8, K), {"dropout": 1.0}, r"dropout \(1.0\) must be below 1"),
    (FeedForwardExperts, (8, 8, 8, K), {"activation": "swish"}, "must be one of relu, gelu"),
    (tensor_of, (DenseInventory, (3, 3)), {"init": "normal"}, r"init \('normal'\) must be one"),
    (tensor_of, (LoRAInventory, (4, 4)), {"dropout": 0.1}, "whole parameters dropout must"),
    (tensor_of, (LoRAInventory, (4, 4)), {"init": "pissa"}, "init 'zero' or 'kaiming'"),
    (AttendedInventory, (LoRAInventory(4, 6, K),), {"query": "key"}, r"query \('key'\) must be"),
    (GatedInventory, (PrefixInventory(4, 4, 2, 2, gated=False),), {}, "prefixes with gated: true"),
    (GatedInventory, (SupermaskInventory(4, 4, K),), {}, "gate must be false .*add to an output"),
    (GatedInventory, (HeadMaskInventory(4, 4, K, 2),), {}, "gate must be false .*add to an output"),
]


@pytest.mark.parametrize(("kind", "sizes", "settings", "message"), REFUSED)
def test_what_does_not_fit_is_refused(kind, sizes, settings, message):
    with pytest.raises(ValueError, match=message):
        kind(*sizes, **settings)


def test_what_a_kind_cannot_do_is_refused():
    x, y, weights = torch.randn(1, 2, 8), torch.randn(1, 2, 8), torch.ones(1, 1, 2)
    for masks in (SupermaskInventory(8, 8, 2), HeadMaskInventory(8, 8, 2, 4)):
        with pytest.raises(TypeError, match="Inventory needs the base layer; call combine_lin"):
            masks(x, y, weights)
    with pytest.raises(NotImplementedError, match="the layer has no bias"):
        BitFitInventory(8, 8, 2).fold(torch.randn(8, 8), None, weights[0])
    with pytest.raises(NotImplementedError, match="IA3Inventory have no matrix product"):
        AttendedInventory(IA3Inventory(8, 8, 2)).merge(weights)


@pytest.mark.parametrize("layer", ["linear", "convolution"])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_kaiming_draws_as_the_layers_of_pytorch_do(layer, kind):
    weight = nn.Linear(200, 60).weight if layer == "linear" else nn.Conv2d(32, 50, 3).weight
    settings = {"sparsity": 0.7} if kind == "sparse" else {}
    skills = KINDS[kind].of_tensor(weight.shape, K, init="kaiming", **settings)
    values = torch.cat([parameter.flatten() for parameter in skills.parameters()]).detach()
    assert values.abs().max() <= weight[0].numel() ** -0.5
    # Uniform draws, at least 10 000 of them: their spread is within 3 % with near certainty.
    assert float(values.std() / weight.detach().std()) == pytest.approx(1, abs=0.03)
    vectors = KINDS[kind].of_tensor((50,), K, init="kaiming")
    assert not any(parameter.any() for parameter in vectors.parameters())


def test_kaiming_draws_both_sides_of_a_low_rank_skill():
    skills = LoRAInventory.of_tensor((100, 8, 5), K, rank=4, init="kaiming")
    assert skills.mix == "deltas"
    for side, fan_in in ((skills.down, 40), (skills.up, 4)):
        assert 0.95 * fan_in**-0.5 < side.abs().max() <= fan_in**-0.5
    assert not LoRAInventory.of_tensor((100, 8, 5), K).up.any()
