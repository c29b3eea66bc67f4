"""Skills of norms, beside PEFT's tuning of norms and beside norms whose parameters are changed."""

import copy

import pytest
import torch
from peft import LNTuningConfig, get_peft_model
from torch import nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm

from helpers.backbones import BACKBONES, batch, fill
from helpers.compare import relative_error
from helpers.skills import mixing, skilled
from mttl.routing import AverageRouter
from mttl.skills import NormInventory
from mttl.skills.skilled_layer import norm_places, normalised

NAMES = {  # of the norms of each family, for PEFT
    "t5": "layer_norm final_layer_norm",
    "bart": "self_attn_layer_norm encoder_attn_layer_norm final_layer_norm layernorm_embedding",
    "llama": "input_layernorm post_attention_layernorm norm",
    "gpt2": "ln_1 ln_2 ln_f",
}


@pytest.mark.parametrize("family", BACKBONES)
def test_one_skill_is_pefts_tuning_of_norms(family: str) -> None:
    """With copied changes: outputs, and gradients of gains and biases."""
    ids, sizes = torch.zeros(4, dtype=torch.long), {"n_tasks": 1, "n_skills": 1}
    where = {"inventory": "norm", "targets": ["norms"], "router": AverageRouter}
    model = skilled(BACKBONES[family](), **where, **sizes).double()
    peer = get_peft_model(
        BACKBONES[family]().double(), LNTuningConfig(target_modules=NAMES[family].split())
    )
    trained = {}
    for path, layer in model.skilled_layers().items():
        own = peer.base_model.model.get_submodule(path).ln_tuning_layers["default"]
        for part, change in (("weight", layer.inventory.gain), ("bias", layer.inventory.bias)):
            if change is not None:
                trained[change] = getattr(own, part)
                with torch.no_grad():
                    trained[change].add_(change[0])
    assert sum(p.requires_grad for p in peer.parameters()) == len(trained)
    found, expected = model(ids, **batch(4)), peer(**batch(4))
    # Llama's norm computes in single precision, whatever it is given.
    assert relative_error(found.logits, expected.logits) < 1e-5
    found.loss.backward()
    expected.loss.backward()
    for change, parameter in trained.items():
        assert relative_error(change.grad[0], parameter.grad) < 1e-5


@pytest.mark.parametrize(
    "norm",
    [nn.LayerNorm(6), nn.LayerNorm(6, bias=False), nn.RMSNorm(6, eps=1e-3), GemmaRMSNorm(6, 1e-3)],
    ids=["layer norm", "without a bias", "root mean square", "gain around 1"],
)
def test_examples_have_norms_of_their_own(norm: nn.Module) -> None:
    norm = norm.double()
    nn.init.normal_(norm.weight)
    inventory = NormInventory(*norm_places(norm)[""][:2], 3, norm_places(norm)[""][2], n_heads=2)
    fill(inventory.double())
    x, weights = 3 + torch.randn(2, 4, 6).double(), mixing(2, 2, 3).double()
    y = inventory(normalised(norm, x), norm(x), weights)
    for b in range(2):
        changed = copy.deepcopy(norm)
        gain, bias = inventory.fold(norm.weight, getattr(norm, "bias", None), weights[b])
        changed.weight = nn.Parameter(gain)
        assert (bias is None) == (inventory.bias is None)
        if bias is not None:
            changed.bias = nn.Parameter(bias)
        # Gemma's norm computes in single precision, as Llama's.
        assert relative_error(y[b], changed(x[b])) < 1e-6
        torch.testing.assert_close(gain - norm.weight, inventory.delta(weights)[b])


def test_norms_without_gains_and_of_other_kinds_are_no_places() -> None:
    model = nn.ModuleDict(
        {
            "plain": nn.LayerNorm(4, elementwise_affine=False),
            "planes": nn.LayerNorm([2, 4]),
            "batch": nn.BatchNorm1d(4),
            "rms": nn.RMSNorm(4, elementwise_affine=False),
            "good": nn.LayerNorm(4),
        }
    )
    assert norm_places(model) == {"good": (4, 4, 1)}
