"""What every kind of inventory promises."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from helpers.skills import INVENTORIES, filled, mixing
from mttl.skills import IA3Inventory, LoRAInventory

KINDS = sorted(INVENTORIES)
ADDITIVE = [kind for kind in KINDS if kind != "ia3"]
I, O, K, H = 8, 12, 3, 2  # noqa: E741 - the legend of letters


def layer(kind, n_heads=H, dtype=torch.float64):
    base = nn.Linear(I, O)
    inventory = filled(INVENTORIES[kind](I, O, K, n_heads))
    return base.to(dtype), inventory.to(dtype)


def inputs(n_examples=4, n_positions=5, dtype=torch.float64):
    return torch.randn(n_examples, n_positions, I, dtype=dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fresh_inventory_changes_nothing(kind):
    inventory = INVENTORIES[kind](I, O, K, H)
    base = nn.Linear(I, O)
    x = torch.randn(4, 5, I)
    weights = torch.randn(4, H, K)  # also where rows do not sum to 1
    assert torch.equal(inventory(x, base(x), weights), base(x))
    assert torch.equal(inventory.combine_linear(x, base, inventory.merge(weights)), base(x))


@pytest.mark.parametrize("kind", KINDS)
def test_the_fused_way_equals_the_ordinary_one(kind):
    base, inventory = layer(kind)
    x, weights = inputs(), mixing(4, H, K).double()
    torch.testing.assert_close(
        inventory.combine_linear(x, base, inventory.merge(weights)), inventory(x, base(x), weights)
    )


@pytest.mark.parametrize("n_heads", [1, H])
@pytest.mark.parametrize("kind", ADDITIVE)
def test_delta_is_the_effect_on_the_output(kind, n_heads):
    base, inventory = layer(kind, n_heads)
    x, weights = inputs(), mixing(4, n_heads, K).double()
    y = inventory(x, base(x), weights)
    for b in range(4):
        merged = base.weight + inventory.delta(weights[b])
        torch.testing.assert_close(y[b], nn.functional.linear(x[b], merged, base.bias))


def test_a_kind_that_is_no_weight_change_says_so():
    with pytest.raises(NotImplementedError, match="IA3Inventory does not add to the base weight"):
        IA3Inventory(I, O, K).delta(torch.ones(1, K))


@pytest.mark.parametrize("kind", KINDS)
def test_permuting_the_skills_together_with_the_weights_changes_nothing(kind):
    base, inventory = layer(kind)
    _, permuted = layer(kind)
    order = torch.tensor([2, 0, 1])
    with torch.no_grad():
        for name, own in permuted.state_dict().items():  # supports too, where there are any
            own.copy_(inventory.state_dict()[name][order])
    x, weights = inputs(), mixing(4, H, K).double()
    torch.testing.assert_close(
        permuted(x, base(x), weights[..., order]), inventory(x, base(x), weights)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_rows_does_not_matter(kind):
    base, inventory = layer(kind)
    x, weights = inputs(), mixing(4, H, K).double()
    order = torch.tensor([3, 1, 0, 2])
    y = inventory.combine_linear(x, base, inventory.merge(weights))
    again = inventory.combine_linear(x[order], base, inventory.merge(weights[order]))
    torch.testing.assert_close(again, y[order])


@pytest.mark.parametrize("kind", KINDS)
@given(n_examples=st.integers(1, 4), n_positions=st.integers(1, 6), n_heads=st.sampled_from([1, 4]))
def test_an_example_does_not_depend_on_its_neighbours(kind, n_examples, n_positions, n_heads):
    base, inventory = layer(kind, n_heads)
    x, weights = inputs(n_examples, n_positions), mixing(n_examples, n_heads, K).double()
    y = inventory(x, base(x), weights)
    for b in range(n_examples):
        alone = slice(b, b + 1)
        torch.testing.assert_close(inventory(x[alone], base(x[alone]), weights[alone]), y[alone])


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_agree_with_finite_differences(kind):
    base, inventory = layer(kind)
    base.requires_grad_(False)
    names = [name for name, _ in inventory.named_parameters()]

    def run(x, weights, *skills):
        state = dict(zip(names, skills, strict=True))
        return torch.func.functional_call(inventory, state, (x, base(x), weights))

    x, weights = inputs(2, 2).requires_grad_(), mixing(2, H, K).double().requires_grad_()
    skills = [parameter.detach().clone().requires_grad_() for parameter in inventory.parameters()]
    assert torch.autograd.gradcheck(run, (x, weights, *skills))


@pytest.mark.parametrize("kind", KINDS)
def test_every_skill_gets_a_gradient_even_if_no_example_uses_it(kind):
    # Data-parallel training waits for the gradient of every parameter on every process.
    base, inventory = layer(kind)
    weights = torch.zeros(4, H, K, dtype=torch.float64)
    weights[..., 0] = 1
    x = inputs()
    inventory(x, base(x), weights).square().sum().backward()
    for parameter in inventory.parameters():
        assert parameter.grad.shape == parameter.shape
        assert parameter.grad[0].abs().sum() > 0
        assert not parameter.grad[1:].any()


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_computes_in_bfloat16_and_keeps_float32_gradients(kind):
    base, inventory = layer(kind, dtype=torch.float32)
    x, weights = inputs(dtype=torch.float32), mixing(4, H, K)
    expected = inventory(x, base(x), weights)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = inventory.combine_linear(x, base, inventory.merge(weights))
    assert y.dtype == torch.bfloat16
    # bfloat16 has 8 bits of mantissa: a few roundings of 2^-9 each.
    torch.testing.assert_close(y.float(), expected, rtol=0.05, atol=0.05)
    y.float().square().sum().backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in inventory.parameters())
    assert all(parameter.grad.isfinite().all() for parameter in inventory.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_a_bfloat16_base_with_float32_skills(kind):
    base, inventory = layer(kind, dtype=torch.float32)
    x, weights = inputs(dtype=torch.float32), mixing(4, H, K)
    expected = inventory(x, base(x), weights)
    base.to(torch.bfloat16)
    y = inventory.combine_linear(x.bfloat16(), base, inventory.merge(weights))
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), expected, rtol=0.05, atol=0.05)
    y.float().square().sum().backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in inventory.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_the_role_is_skills_and_the_printed_form_names_the_sizes(kind):
    inventory = INVENTORIES[kind](I, O, K, H)
    assert inventory.role == "skills"
    assert "in_features=8, out_features=12, n_skills=3, n_heads=2" in repr(inventory)
    if kind != "ia3":
        assert f"mix={inventory.mix}" in repr(inventory)


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_must_be_positive(kind):
    with pytest.raises(ValueError, match=r"n_skills \(0\) must be at least 1"):
        INVENTORIES[kind](I, O, 0, 1)
    with pytest.raises(ValueError, match=r"n_heads \(0\) must be at least 1"):
        INVENTORIES[kind](I, O, K, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_heads_must_divide_the_output(kind):
    with pytest.raises(ValueError, match=r"n_heads \(4\) must divide out_features \(6\)"):
        INVENTORIES[kind](8, 6, K, 4)


def test_heads_must_divide_the_input_only_where_it_is_cut():
    with pytest.raises(ValueError, match=r"n_heads \(4\) must divide in_features \(6\)"):
        LoRAInventory(6, 8, K, n_heads=4, mix="factors")
    LoRAInventory(6, 8, K, n_heads=4, mix="deltas")
