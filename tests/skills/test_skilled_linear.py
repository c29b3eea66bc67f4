import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from transformers.pytorch_utils import Conv1D

from helpers.skills import INVENTORIES, filled, mixing
from mttl.routing import Routing, RoutingSlot
from mttl.skills import SkilledLinear

KINDS = sorted(INVENTORIES)
TASK_IDS = torch.tensor([0, 1, 2])


def make(kind, base=None, n_heads=2):
    slot = RoutingSlot()
    base = (base or nn.Linear(8, 12)).double()
    inventory = filled(INVENTORIES[kind](8, 12, 3, n_heads=n_heads)).double()
    return SkilledLinear(base, inventory, slot, 1), slot


def routing(n_heads=2, **settings):
    # Two groups: the layer must read the second.
    other, own = mixing(3, n_heads, 3, seed=1), mixing(3, n_heads, 3, seed=2)
    return Routing(TASK_IDS, torch.stack([other, own]).double(), **settings)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_any_shape_read_the_weights_of_the_group(kind):
    layer, slot = make(kind)
    for positions in ((), (4,), (2, 3), (2, 1, 3)):
        x = torch.randn(6, *positions, 8).double()
        flat = x.reshape(6, -1, 8)
        with slot.use(routing(expansion=2)):  # rows of beams are neighbours
            y = layer(x)
        assert y.shape == (6, *positions, 12)
        for beam in (0, 1):
            with slot.use(routing()) as current:
                found = layer(x[beam::2])
            torch.testing.assert_close(y[beam::2], found)
            own = flat[beam::2]
            expected = layer.inventory(own, layer.base(own), current.mixing[1])
            torch.testing.assert_close(found.reshape(3, -1, 12), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_transposed_base_as_gpt2_has_it(kind):
    base = Conv1D(12, 8)
    nn.init.normal_(base.bias)
    layer, slot = make(kind, base)
    plain, plain_slot = make(kind)
    with torch.no_grad():
        plain.base.weight.copy_(base.weight.t())
        plain.base.bias.copy_(base.bias)
    x = torch.randn(3, 4, 8).double()
    with slot.use(routing()), plain_slot.use(routing()):
        found, expected = layer(x), plain(x)
    torch.testing.assert_close(found, expected)
    found.square().sum().backward()
    expected.square().sum().backward()
    for one, other in zip(layer.inventory.parameters(), plain.inventory.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    torch.testing.assert_close(base.weight.grad.t(), plain.base.weight.grad)


def test_a_class_derived_from_linear_keeps_its_own_forward():
    # Quantised layers are such: reading their weight instead would be wrong.
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    layer, slot = make("lora-factors", Doubled(8, 12))
    with torch.no_grad():
        layer.inventory.up.zero_()
    x = torch.randn(3, 4, 8).double()
    with slot.use(routing()):
        torch.testing.assert_close(layer(x), 2 * nn.functional.linear(x, layer.weight, layer.bias))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_a_trained_base(kind, bias):
    layer, slot = make(kind, nn.Linear(8, 12, bias=bias))
    x = torch.randn(3, 4, 8).double().requires_grad_()
    with slot.use(routing()) as current:
        layer(x).square().sum().backward()
    wanted = [x, *layer.base.parameters(), *layer.inventory.parameters()]
    found = [tensor.grad.clone() for tensor in wanted]
    y = nn.functional.linear(x, layer.weight, layer.bias)
    loss = layer.inventory(x, y, current.mixing[1]).square().sum()
    for one, other in zip(found, torch.autograd.grad(loss, wanted), strict=True):
        torch.testing.assert_close(one, other)


def test_the_base_is_seen_from_outside():
    layer, _ = make("lora-factors", nn.Linear(8, 12, bias=False))
    assert layer.weight is layer.base.weight
    assert layer.bias is None
    # Each parameter has one name.
    assert set(layer.state_dict()) == {"base.weight", "inventory.down", "inventory.up"}
    assert "group=1" in repr(layer)


@pytest.mark.every(5)
@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("kind", KINDS)
def test_compiles_to_one_graph_that_serves_every_batch(kind):
    layer, slot = make(kind)
    counter = CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend=counter, fullgraph=True)
    for seed in range(4):
        weights = mixing(3, 2, 3, seed=seed).double()[None].repeat(2, 1, 1, 1)
        torch.manual_seed(seed)
        x = torch.randn(3, 4, 8).double().requires_grad_()
        outcomes = []
        for module in (layer, compiled):
            mixed = weights.clone().requires_grad_()
            with slot.use(Routing(TASK_IDS, mixed)):
                y = module(x)
            wanted = [x, mixed, *layer.inventory.parameters()]
            outcomes.append([y, *torch.autograd.grad(y.square().sum(), wanted)])
        for one, other in zip(*outcomes, strict=True):
            torch.testing.assert_close(one, other)
    torch._dynamo.reset()
    # A new routing in every step must not mean a new compilation in every step.
    assert counter.frame_count == 1
