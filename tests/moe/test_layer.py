"""A layer whose tokens choose experts: what surrounds the experts."""

import pytest
import torch
from torch import nn

from mttl.moe import FeedForwardExperts, MoELayer
from mttl.routing import (
    Balance,
    BaseRouter,
    ExampleRouter,
    ExpertChoiceRouter,
    Routing,
    RoutingSlot,
    Tokens,
    TopKRouter,
)
from mttl.routing.token.choice import gate_matrix
from mttl.routing.token.masks import TokenMasks
from mttl.skills import AdapterInventory, IA3Inventory, LoRAInventory

I, O, E = 6, 4, 4  # noqa: E741


def make(experts=None, router=None, **settings) -> MoELayer:
    experts = experts or FeedForwardExperts(I, 8, I, E)
    router = router or TopKRouter(I, E, init_scale=10.0)
    for parameter in experts.parameters():
        nn.init.normal_(parameter)
    return MoELayer(experts, router, RoutingSlot(), **settings)


def routing(n: int = 2, mixing: torch.Tensor | None = None, **settings) -> Routing:
    ids = torch.arange(n)
    return Routing(ids, torch.ones(1, n, 1, E) if mixing is None else mixing, **settings)


def run(layer: MoELayer, x: torch.Tensor, given: Routing | None = None):
    given = given or routing(len(x))
    with layer.slot.use(given):
        return layer(x), given


@pytest.mark.parametrize(
    "experts",
    [LoRAInventory(I, O, E), IA3Inventory(I, O, E), AdapterInventory(I, O, E, parallel=False)],
    ids=["lora", "ia3", "adapter"],
)
def test_experts_add_to_the_base(experts) -> None:
    """Some read its output."""
    base = nn.Linear(I, O)
    layer = make(experts, base=base)
    x = torch.randn(2, 5, I)
    y = base(x).flatten(0, 1)
    given = layer.router(Tokens(x.flatten(0, 1)))
    low_rank = isinstance(experts, LoRAInventory)
    expected = y + experts.dispatch(x.flatten(0, 1) if low_rank else y, given)
    if isinstance(experts, IA3Inventory):
        torch.testing.assert_close(expected, y * (1 + gate_matrix(given) @ experts.difference))
    torch.testing.assert_close(run(layer, x)[0].flatten(0, 1), expected)


def test_a_shared_expert_is_always_on() -> None:
    shared = nn.Linear(I, I)
    layer, x = make(shared=shared), torch.randn(2, 5, I)
    found = run(layer, x)[0]
    layer.shared = None
    torch.testing.assert_close(found, run(layer, x)[0] + shared(x))


def test_tokens_without_room_pass_through() -> None:
    base = nn.Linear(I, O)
    layer = make(LoRAInventory(I, O, E), base=base, capacity_factor=0.5)
    x = torch.randn(2, 8, I)
    y, given = run(layer, x)
    record = given.records[0]
    # 32 pairs, half of an even share of 8.
    kept = torch.bincount(record.experts[record.kept], minlength=E)
    assert kept.tolist() == record.load().clamp(max=4).tolist()
    assert int(record.dropped()) == 32 - int(kept.sum()) > 0
    gone = torch.ones(16, dtype=torch.bool)
    gone[record.tokens[record.kept]] = False
    assert gone.any()
    torch.testing.assert_close(y.flatten(0, 1)[gone], base(x).flatten(0, 1)[gone])
    layer.eval()
    assert run(layer, x)[1].records[0].kept is None
    layer.eval_capacity_factor = 0.25
    assert int(run(layer, x)[1].records[0].dropped()) > int(record.dropped())


def test_padding_is_neither_routed_nor_counted() -> None:
    layer = make(
        router=TopKRouter(I, E, balance=Balance(switch=1.0, z=1.0, importance=1.0, entropy=1.0))
    )
    x = torch.randn(2, 5, I)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
    y, given = run(layer, x, routing(masks=TokenMasks({"model": mask})))
    assert not y[0, 3:].any()
    assert set(given.records[0].tokens.tolist()) == {0, 1, 2, 5, 6, 7, 8, 9}
    # What padding holds changes nothing; leaving it away neither.
    other = x.clone()
    other[0, 3:] = 100.0
    again = run(layer, other, routing(masks=TokenMasks({"model": mask})))[1]
    alone = run(layer, x[mask][None], routing(1))[1]
    for name, loss in given.losses.items():
        assert torch.equal(loss, again.losses[name])
        torch.testing.assert_close(loss, alone.losses[name])


def test_a_tasks_mixing_weights_are_a_prior() -> None:
    mixing = torch.tensor([[0.7, 0.3, 0.0, 0.0], [0.0, 0.0, 0.2, 0.8]])[None, :, None]
    x = torch.randn(2, 5, I)
    layer = make(prior="mask", group=0)
    record = run(layer, x, routing(mixing=mixing))[1].records[0]
    of_first = record.tokens < 5
    assert set(record.experts[of_first].tolist()) == {0, 1}
    assert set(record.experts[~of_first].tolist()) == {2, 3}
    # With equal logits, the gates are the task's mixing weights.
    layer = make(prior="logits", group=0)
    nn.init.zeros_(layer.router.weight)
    given = routing(mixing=mixing)
    with layer.slot.use(given):
        assignment = layer._assign(x, given)
    expected = mixing[0, :, 0].repeat_interleave(5, dim=0)
    torch.testing.assert_close(gate_matrix(assignment), expected)
    # A weight of 0 has a finite gradient.
    weights = mixing.clone().requires_grad_()
    run(layer, x, routing(mixing=weights))[0].sum().backward()
    assert torch.isfinite(weights.grad).all()
    assert weights.grad.any()


def test_low_precision_is_routed_in_float32() -> None:
    layer = make()
    x = torch.randn(2, 5, I)
    with torch.autocast("cpu", torch.bfloat16):
        assignment = layer.router(Tokens(x.flatten(0, 1)))
        assert run(layer, x)[0].dtype == torch.bfloat16
    assert assignment.weights.dtype == assignment.probabilities.dtype == torch.float32
    assert torch.equal(assignment.weights, layer.router(Tokens(x.flatten(0, 1))).weights)
    half = layer.to(torch.bfloat16)
    y = run(half, x.bfloat16())[0]
    assert y.dtype == torch.bfloat16
    assert half.router(Tokens(x.flatten(0, 1).bfloat16())).weights.dtype == torch.float32


@pytest.mark.parametrize("router", [ExpertChoiceRouter(I, E), ExampleRouter(I, E)])
def test_routers_that_look_ahead_are_refused_in_causal_decoders(router) -> None:
    with pytest.raises(ValueError, match=r"depends on later tokens"):
        make(router=router, causal=True)
    make(router=router)
    make(router=BaseRouter(I, E), causal=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"router": TopKRouter(I, 5)}, "has 5 experts, but the layer has 4"),
        ({"experts": IA3Inventory(I, O, E)}, "IA3Inventory acts on the output of a base"),
    ],
)
def test_what_does_not_fit_is_refused(settings, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**settings)
