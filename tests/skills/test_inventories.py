"""All kinds of skills against plain loops, and what every kind promises."""

import pytest
import torch
from torch import nn

from mttl.routing import Routing, RoutingSlot
from mttl.skills import DenseInventory, IA3Inventory, Inventory, LoRAInventory, SkilledLinear
from mttl.skills.low_rank import low_rank_linear

KINDS = {
    "lora factors": lambda h: LoRAInventory(6, 12, 3, rank=2, n_heads=h),
    "lora deltas": lambda h: LoRAInventory(6, 12, 3, rank=2, n_heads=h, mix="deltas"),
    "lora outputs": lambda h: LoRAInventory(6, 12, 3, rank=2, n_heads=h, mix="outputs"),
    "ia3": lambda h: IA3Inventory(6, 12, 3, n_heads=h),
    "dense deltas": lambda h: DenseInventory(6, 12, 3, n_heads=h),
    "dense outputs": lambda h: DenseInventory(6, 12, 3, n_heads=h, mix="outputs"),
}


def trained(kind, n_heads):
    torch.manual_seed(3)
    inventory = KINDS[kind](n_heads)
    for parameter in inventory.parameters():
        nn.init.normal_(parameter)
    return inventory.double()


def weights(n_examples, n_heads):
    drawn = torch.rand(n_examples, n_heads, 3, dtype=torch.float64)
    return drawn / drawn.sum(-1, keepdim=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_heads", [1, 2])
def test_a_fresh_skill_changes_nothing(kind, n_heads):
    inventory = KINDS[kind](n_heads)
    x, y = torch.randn(4, 5, 6), torch.randn(4, 5, 12)
    mixing = torch.rand(4, n_heads, 3)
    assert torch.equal(inventory(x, y, mixing), y)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_heads", [1, 2])
def test_permuting_skills_and_weights_together_changes_nothing(kind, n_heads):
    inventory, mixing = trained(kind, n_heads), weights(4, n_heads)
    x, y = torch.randn(4, 5, 6).double(), torch.randn(4, 5, 12).double()
    expected = inventory(x, y, mixing)
    order = torch.tensor([2, 0, 1])
    with torch.no_grad():
        for parameter in inventory.parameters():
            parameter.copy_(parameter[order])
    torch.testing.assert_close(inventory(x, y, mixing[..., order]), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_heads", [1, 2])
def test_examples_do_not_touch_each_other(kind, n_heads):
    inventory, mixing = trained(kind, n_heads), weights(4, n_heads)
    x, y = torch.randn(4, 5, 6).double(), torch.randn(4, 5, 12).double()
    together = inventory(x, y, mixing)
    for row in range(4):
        alone = inventory(x[row : row + 1], y[row : row + 1], mixing[row : row + 1])
        torch.testing.assert_close(together[row : row + 1], alone)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "ia3"])
@pytest.mark.parametrize("n_heads", [1, 2])
def test_delta_is_what_the_output_changes_by(kind, n_heads):
    inventory, mixing = trained(kind, n_heads), weights(1, n_heads)
    x, y = torch.randn(1, 5, 6).double(), torch.randn(1, 5, 12).double()
    torch.testing.assert_close(inventory(x, y, mixing), y + x @ inventory.delta(mixing[0]).t())


@pytest.mark.parametrize("n_heads", [1, 2])
def test_ia3_equals_a_loop(n_heads):
    inventory, mixing = trained("ia3", n_heads), weights(4, n_heads)
    x, y = torch.randn(4, 5, 6).double(), torch.randn(4, 5, 12).double()
    found = inventory(x, y, mixing)
    for b in range(4):
        for o in range(12):
            head = o * n_heads // 12
            scale = 1 + sum(mixing[b, head, k] * inventory.difference[k, o] for k in range(3))
            torch.testing.assert_close(found[b, :, o], y[b, :, o] * scale)


def test_ia3_has_no_delta():
    with pytest.raises(NotImplementedError, match="IA3Inventory does not add to the base weight"):
        IA3Inventory(4, 4, 2).delta(torch.ones(1, 2))


@pytest.mark.parametrize("bias", [True, False])
def test_the_fused_operation_has_exact_gradients(bias):
    shapes = [(2, 3, 4), (5, 4), (5,), (2, 4, 2), (2, 5, 2)]
    x, weight, b, down, up = (
        torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in shapes
    )
    b = b if bias else None
    assert torch.autograd.gradcheck(low_rank_linear, (x, weight, b, down, up))
    expected = nn.functional.linear(x, weight, b) + x @ down @ up.transpose(1, 2)
    torch.testing.assert_close(low_rank_linear(x, weight, b, down, up), expected)


def test_the_fused_operation_leaves_frozen_arguments_without_gradient():
    x, weight = torch.randn(2, 3, 4, requires_grad=True), torch.randn(5, 4)
    down, up = torch.randn(2, 4, 2, requires_grad=True), torch.randn(2, 5, 2)
    low_rank_linear(x, weight, None, down, up).sum().backward()
    assert weight.grad is None
    assert up.grad is None
    assert x.grad is not None
    assert down.grad is not None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_heads", [1, 2])
def test_a_skilled_linear_equals_the_ordinary_path(kind, n_heads):
    inventory, mixing = trained(kind, n_heads), weights(4, n_heads)
    base = nn.Linear(6, 12).double()
    slot = RoutingSlot()
    layer = SkilledLinear(base, inventory, slot, 0)
    x = torch.randn(4, 5, 6).double()
    with slot.use(Routing(torch.arange(4), mixing[None])):
        found = layer(x)
    torch.testing.assert_close(found, inventory(x, base(x), mixing))
    # The gradients of a base that is trained too are those of the ordinary path.
    grads = torch.autograd.grad(found.square().sum(), list(layer.parameters()))
    ordinary = inventory(x, base(x), mixing).square().sum()
    for grad, expected in zip(
        grads, torch.autograd.grad(ordinary, list(layer.parameters())), strict=True
    ):
        torch.testing.assert_close(grad, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_backbone_and_autocast(kind):
    inventory, mixing = trained(kind, 1).float(), weights(4, 1).float()
    base, slot, x = nn.Linear(6, 12), RoutingSlot(), torch.randn(4, 5, 6)
    layer = SkilledLinear(base, inventory, slot, 0)
    with slot.use(Routing(torch.arange(4), mixing[None])):
        exact = layer(x)
        with torch.autocast("cpu", torch.bfloat16):
            mixed = layer(x)
        base.bfloat16()
        half = layer(x.bfloat16())
    assert mixed.dtype == torch.bfloat16
    assert half.dtype == torch.bfloat16
    # bfloat16 keeps 8 bits: a relative error of 2^-8 per factor, and three factors in a row.
    for found in (mixed, half):
        torch.testing.assert_close(found.float(), exact, rtol=0.05, atol=0.1)


def test_the_base_stays_identical_while_skills_learn():
    base = nn.Linear(6, 12).requires_grad_(False)
    before = base.weight.clone()
    slot, inventory = RoutingSlot(), LoRAInventory(6, 12, 3, rank=2)
    layer = SkilledLinear(base, inventory, slot, 0)
    optimizer = torch.optim.AdamW(inventory.parameters(), lr=0.1)
    with slot.use(Routing(torch.arange(2), torch.full((1, 2, 1, 3), 1 / 3))):
        layer(torch.randn(2, 5, 6)).square().sum().backward()
    optimizer.step()
    assert torch.equal(base.weight, before)
    assert not torch.equal(inventory.up, torch.zeros_like(inventory.up))


def test_inputs_without_positions():
    slot, inventory = RoutingSlot(), trained("lora factors", 1)
    layer = SkilledLinear(nn.Linear(6, 12).double(), inventory, slot, 0)
    x = torch.randn(4, 6).double()
    with slot.use(Routing(torch.arange(4), weights(4, 1)[None])):
        torch.testing.assert_close(layer(x), layer(x[:, None])[:, 0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LoRAInventory(4, 4, 0), r"n_skills \(0\) must be at least 1"),
        (lambda: LoRAInventory(4, 4, 2, n_heads=0), r"n_heads \(0\) must be at least 1"),
        (lambda: LoRAInventory(4, 4, 2, rank=0), r"rank \(0\) must be at least 1"),
        (lambda: LoRAInventory(4, 4, 2, mix="sum"), r"mix \('sum'\) must be 'factors'"),
        (lambda: LoRAInventory(5, 4, 2, n_heads=2), r"n_heads \(2\) must divide in_features \(5\)"),
        (lambda: LoRAInventory(4, 5, 2, n_heads=2), r"must divide out_features \(5\)"),
        (lambda: IA3Inventory(4, 5, 2, n_heads=2), r"must divide out_features \(5\)"),
        (lambda: DenseInventory(4, 5, 2, n_heads=2), r"must divide out_features \(5\)"),
        (lambda: DenseInventory(4, 4, 2, mix="factors"), r"mix \('factors'\) must be 'deltas'"),
    ],
)
def test_wrong_sizes(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_outputs_do_not_need_heads_that_divide_the_input():
    assert isinstance(LoRAInventory(5, 4, 2, n_heads=2, mix="outputs"), Inventory)
