import pytest
import torch
from torch import nn

from helpers.backbones import tiny_gpt2
from helpers.compare import assert_same
from helpers.skills import filled, mixing, skilled
from mttl.skills import SupermaskInventory

B, L, I, O, K = 4, 3, 6, 8, 3  # noqa: E741


def parts(n_heads=1, *, bias=True, threshold=0.0):
    base = nn.Linear(I, O, bias=bias).double()
    inventory = filled(SupermaskInventory(I, O, K, n_heads=n_heads, threshold=threshold)).double()
    return base, inventory, torch.randn(B, L, I).double(), mixing(B, n_heads, K).double()


@pytest.mark.parametrize("n_heads", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_equals_a_loop_over_masked_layers(n_heads, bias):
    base, inventory, x, weights = parts(n_heads, bias=bias, threshold=0.05)
    found = inventory.combine_linear(x, base, inventory.merge(weights))
    by_feature = weights.repeat_interleave(O // n_heads, dim=1)
    for b in range(B):
        scores = torch.einsum("ok,koi->oi", by_feature[b], inventory.scores)
        mask = (scores >= 0.05).double()
        assert 0 < mask.mean() < 1
        expected = nn.functional.linear(x[b], base.weight * mask, base.bias)
        torch.testing.assert_close(found[b], expected)
        assert torch.equal(inventory.merge(weights)[0][b], mask)
    fresh = SupermaskInventory(I, O, K, n_heads=n_heads)  # under its threshold, none is off
    assert fresh.merge(weights)[0].all()


def test_gradients_pass_through_the_threshold_as_if_it_were_the_identity():
    base, inventory, x, weights = parts()
    weights.requires_grad_()
    y = inventory.combine_linear(x, base, inventory.merge(weights))
    # The same with scores in the place of masks, at the masks' values.
    scores = torch.einsum("bhk,koi->boi", weights, inventory.scores)
    mask = (scores >= 0).double()
    stand_in = scores + (mask - scores).detach()
    same = torch.bmm(x, (base.weight * stand_in).transpose(1, 2)) + base.bias
    assert_same(y, same, (inventory.scores, weights))


def test_a_layer_that_is_no_linear_one_is_refused() -> None:
    """The convolutions of GPT-2 keep their weight the other way round."""
    message = r"'transformer\.h\.0.*cannot be on a Conv1D; choose targets that are, or a kind that"
    with pytest.raises(ValueError, match=message):
        skilled(tiny_gpt2(), inventory="supermask")
