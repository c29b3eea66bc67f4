"""With copied weights, the same as the mixture-of-experts blocks of transformers."""

import pytest
import torch
from torch import Tensor
from transformers import MixtralConfig, SwitchTransformersConfig
from transformers.models.mixtral.modeling_mixtral import (
    MixtralSparseMoeBlock,
    load_balancing_loss_func,
)
from transformers.models.switch_transformers import modeling_switch_transformers as switch

from mttl.moe import FeedForwardExperts, MoELayer
from mttl.routing import Balance, Routing, RoutingSlot, TopKRouter

I, F, E = 16, 24, 6  # noqa: E741
# Float32 sums of 24 products, in another order.
CLOSE = {"atol": 1e-5, "rtol": 1e-4}


def run(layer: MoELayer, x: Tensor) -> tuple[Tensor, Routing]:
    routing = Routing(torch.zeros(len(x), dtype=torch.long), torch.ones(1, len(x), 1, 1))
    with layer.slot.use(routing):
        return layer(x), routing


def mixtral(top_k: int = 2, jitter: float = 0.0) -> tuple[MixtralSparseMoeBlock, MoELayer]:
    config = MixtralConfig(
        hidden_size=I,
        intermediate_size=F,
        num_local_experts=E,
        num_experts_per_tok=top_k,
        router_jitter_noise=jitter,
    )
    config._experts_implementation = "eager"
    theirs = MixtralSparseMoeBlock(config)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    experts = FeedForwardExperts(I, F, I, E, activation="silu", gated=True)
    router = TopKRouter(I, E, top_k=top_k, balance=Balance(switch=1.0))
    ours = MoELayer(experts, router, RoutingSlot())
    with torch.no_grad():
        experts.up.copy_(theirs.experts.gate_up_proj)
        experts.down.copy_(theirs.experts.down_proj)
        router.weight.copy_(theirs.gate.weight)
    return theirs, ours


def inputs(name: str, weight: Tensor) -> Tensor:
    """Tokens whose routing is random, or degenerate."""
    match name:
        case "random":
            return torch.randn(3, 7, I)
        case "all to the same two":  # tokens that like experts 1 and 4 best
            return 5 * (weight[1] + weight[4]) / weight.square().mean() + torch.randn(3, 7, I)
        case "one token":
            return torch.randn(1, 1, I)
        case _:
            return torch.randn(0, 7, I)


@pytest.mark.parametrize("name", ["random", "all to the same two", "one token", "no token"])
@pytest.mark.parametrize("top_k", [2, E])
def test_equals_mixtral(name: str, top_k: int) -> None:
    theirs, ours = mixtral(top_k)
    with torch.no_grad():
        x = inputs(name, theirs.gate.weight)
    one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    found, routing = run(ours, one)
    assert found.shape == x.shape
    if name == "no token":
        assert routing.records[0].load().tolist() == [0] * E
        return
    expected = theirs(other)
    torch.testing.assert_close(found, expected, **CLOSE)
    if name == "all to the same two" and top_k == 2:
        assert set(routing.records[0].experts.tolist()) == {1, 4}
    grad = torch.randn_like(found)
    found.backward(grad)
    expected.backward(grad)
    for mine, reference in (
        (one, other),
        (ours.experts.up, theirs.experts.gate_up_proj),
        (ours.experts.down, theirs.experts.down_proj),
        (ours.router.weight, theirs.gate.weight),
    ):
        torch.testing.assert_close(mine.grad, reference.grad, atol=1e-4, rtol=1e-3)


def test_switch_loss_is_mixtrals_per_pair() -> None:
    theirs, ours = mixtral()
    x = torch.randn(3, 7, I)
    found = run(ours, x)[1].losses["switch"]
    logits = theirs.gate(x)[0]
    expected = load_balancing_loss_func((logits,), E, top_k=2)
    torch.testing.assert_close(found, expected / 2)  # theirs counts a token's two pairs as two


def test_equals_switch() -> None:
    config = SwitchTransformersConfig(
        d_model=I,
        d_ff=F,
        num_experts=E,
        expert_capacity=64,
        router_jitter_noise=0.0,
        router_bias=False,
        dropout_rate=0.0,
    )
    theirs = switch.SwitchTransformersSparseMLP(config)
    experts = FeedForwardExperts(I, F, I, E)
    router = TopKRouter(
        I, E, top_k=1, normalise=False, jitter=0.0, balance=Balance(switch=1.0, z=1.0)
    )
    ours = MoELayer(experts, router, RoutingSlot())
    with torch.no_grad():
        router.weight.copy_(torch.randn(E, I))
        theirs.router.classifier.weight.copy_(router.weight)
        for e in range(E):
            block = theirs.experts[f"expert_{e}"]
            experts.up[e].copy_(block.wi.weight)
            experts.down[e].copy_(block.wo.weight)
    x = torch.randn(4, 9, I)
    one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    (found, routing), expected = run(ours, one), theirs(other)
    torch.testing.assert_close(found, expected, **CLOSE)
    grad = torch.randn_like(found)
    found.backward(grad)
    expected.backward(grad)
    torch.testing.assert_close(one.grad, other.grad, **CLOSE)
    torch.testing.assert_close(router.weight.grad, theirs.router.classifier.weight.grad, **CLOSE)
    for e in range(E):
        block = theirs.experts[f"expert_{e}"]
        if block.wi.weight.grad is not None:  # theirs skips an expert that nothing was sent to
            torch.testing.assert_close(experts.up.grad[e], block.wi.weight.grad, **CLOSE)
            torch.testing.assert_close(experts.down.grad[e], block.wo.weight.grad, **CLOSE)
    # Their losses, from their router's outputs.
    chosen, _, logits = theirs.router(x)
    probabilities = torch.softmax(logits, -1)
    torch.testing.assert_close(
        routing.losses["switch"],
        switch.load_balancing_loss_func(probabilities.flatten(0, 1)[None], chosen.argmax(-1)),
    )
    torch.testing.assert_close(routing.losses["z"], switch.router_z_loss_func(logits))
