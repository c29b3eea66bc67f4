"""Routers that read the weights of a library's members: Arrow and SpectR."""

import pytest
import torch
from torch import nn

from mttl.moe import MoELayer
from mttl.routing import (
    ArrowRouter,
    PhatgooseRouter,
    Routing,
    RoutingSlot,
    SpectralRouter,
    TokenRouter,
    Tokens,
)
from mttl.routing.token.choice import gate_matrix
from mttl.routing.token.members import right_factors
from mttl.skills import IA3Inventory, LoRAInventory

I, O, E, R, N = 7, 5, 4, 3, 20  # noqa: E741
KINDS = {
    "arrow": lambda **settings: ArrowRouter(I, E, **settings),
    "spectral": lambda **settings: SpectralRouter(I, E, rank=R, **settings),
}
ALL = KINDS | {"phatgoose": lambda **settings: PhatgooseRouter(I, E, **settings)}


def members(seed: int = 0, spread: float = 10.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return factors whose first singular value is far above the others."""
    generator = torch.Generator().manual_seed(seed)
    down = torch.randn(E, I, R, generator=generator)
    up = torch.randn(E, O, R, generator=generator)
    return down, up * spread ** -torch.arange(R)


def test_right_factors_are_those_of_the_dense_product() -> None:
    down, up = members(spread=1.0)
    found = right_factors(down, up)
    _, values, right = torch.linalg.svd(up.double() @ down.double().mT, full_matrices=False)
    expected = (right[:, :R] * values[:, :R, None]).mT
    sign = (found * expected).sum(1, keepdim=True).sign()
    torch.testing.assert_close(found, sign * expected)
    # Where the rank exceeds a side, columns of zeros fill it up.
    wide = right_factors(torch.randn(E, 2, R), torch.randn(E, O, R))
    assert wide.shape == (E, 2, R)
    assert not wide[:, :, 2:].any()


@pytest.mark.parametrize("top_k", [1, 2, E])
@pytest.mark.parametrize("kind", KINDS)
def test_gates_are_those_of_a_plain_loop(kind: str, top_k: int) -> None:
    router = KINDS[kind](top_k=top_k, temperature=0.7)
    down, up = members(spread=2.0)
    router.read(down, up)
    x = torch.randn(N, I)
    found = gate_matrix(router(Tokens(x)))
    for n in range(N):
        scores = []
        for e in range(E):
            _, values, right = torch.linalg.svd(up[e] @ down[e].T, full_matrices=False)
            if kind == "arrow":
                scores.append(abs(float(right[0] @ x[n])))
            else:
                scores.append(float((values * (right @ x[n])).norm()))
        best = sorted(range(E), key=lambda e: -scores[e])[:top_k]
        gates = torch.zeros(E)
        gates[best] = torch.softmax(torch.tensor([scores[e] for e in best]) / 0.7, 0)
        # Double precision in the one decomposition, single in the other.
        torch.testing.assert_close(found[n], gates, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ALL)
def test_a_member_that_lacks_the_layer_is_not_chosen(kind: str) -> None:
    router = ALL[kind](top_k=3)
    down, up = members()
    down[1], up[1], up[2] = 0, 0, 0
    router.read(down, up)
    found = router(Tokens(torch.randn(N, I)))
    assert set(found.experts.tolist()) == {0, 3}
    torch.testing.assert_close(gate_matrix(found).sum(1), torch.ones(N))
    # Where none has it, all may be chosen, and add nothing.
    router.read(torch.zeros_like(down), torch.zeros_like(up))
    found = router(Tokens(torch.randn(N, I)))
    assert len(found.tokens) == 3 * N
    assert torch.isfinite(found.weights).all()


def test_phatgoose_standardises_gates_and_tokens() -> None:
    router = PhatgooseRouter(I, E, top_k=2)
    torch.nn.init.normal_(router.gates)
    router.read(*members())
    x = torch.randn(N, I)
    found = gate_matrix(router(Tokens(x)))

    def standard(v: torch.Tensor) -> torch.Tensor:
        return (v - v.mean()) / v.std(unbiased=False)

    for n in range(N):
        scores = torch.stack([standard(x[n]) @ standard(gate) for gate in router.gates]) / I**0.5
        best = scores.topk(2).indices
        gates = torch.zeros(E).scatter(0, best, scores[best].softmax(0))
        # The one adds 1e-5 to the variance under the root, the other does not.
        torch.testing.assert_close(found[n], gates, atol=1e-4, rtol=0)
    router.reset_parameters()
    assert not router.gates.any()


def test_gates_are_learned_behind_sigmoids_of_the_members_that_the_prior_allows() -> None:
    router = PhatgooseRouter(I, E)
    torch.nn.init.normal_(router.gates)
    router.learning = True
    x, own = torch.randn(N, I), torch.arange(N) % E
    prior = torch.full((N, E), -torch.inf).scatter(1, own[:, None], 0.0)
    found = router(Tokens(x, prior=prior))
    assert torch.equal(found.tokens, torch.arange(N))
    assert torch.equal(found.experts, own)
    torch.testing.assert_close(found.weights, (x * router.gates[own]).sum(1).sigmoid())
    found.weights[own != 2].sum().backward()
    assert [bool(grad.any()) for grad in router.gates.grad] == [True, True, False, True]


def layer(router: TokenRouter, scale: float = 0.5) -> MoELayer:
    experts = LoRAInventory(I, O, E, rank=R, scale=scale)
    with torch.no_grad():
        for own, value in zip((experts.down, experts.up), members(), strict=True):
            own.copy_(value)
    return MoELayer(experts, router, RoutingSlot(), base=nn.Linear(I, O))


def test_a_layer_lets_its_router_read_the_members() -> None:
    found = layer(SpectralRouter(I, E, rank=R))
    found.read_members()
    down, up = members()
    x = torch.randn(N, I)
    expected = 0.5 * (x @ down[2] @ up[2].T).norm(dim=1)
    torch.testing.assert_close(found.router.scores(x)[:, 2], expected)
    with pytest.raises(NotImplementedError, match="has no low-rank factors"):
        MoELayer(
            IA3Inventory(I, O, E), ArrowRouter(I, E), RoutingSlot(), base=nn.Linear(I, O)
        ).read_members()


@pytest.mark.parametrize("top_k", [1, 2, 4])
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_arrow_is_that_of_peft(top_k: int, temperature: float) -> None:
    arrow = pytest.importorskip("peft.tuners.lora.arrow")
    from peft import ArrowConfig

    config = ArrowConfig(top_k=top_k, router_temperature=temperature, rng_seed=1)
    config.task_adapter_names, config.gks_adapter_names = [f"task_{e}" for e in range(E)], []
    down, up = members()
    lora_a, lora_b = nn.ModuleDict(), nn.ModuleDict()
    for e, name in enumerate(config.task_adapter_names):
        lora_a[name], lora_b[name] = nn.Linear(I, R, bias=False), nn.Linear(R, O, bias=False)
        lora_a[name].weight.data, lora_b[name].weight.data = down[e].T.clone(), up[e].clone()
    theirs = arrow.ArrowLoraLinearLayer(I, config)
    theirs.build_prototypes(lora_a, lora_b)
    scaling = dict.fromkeys(config.task_adapter_names, 0.5)
    x = torch.randn(2, N, I)
    expected = theirs(x, lora_a, lora_b, nn.Identity(), scaling)

    ours = layer(ArrowRouter(I, E, top_k=top_k, temperature=temperature))
    ours.read_members()
    with ours.slot.use(Routing(torch.arange(2), torch.ones(1, 2, 1, 1))):
        found = ours(x) - ours.base(x)
    # Their power iteration has converged, since the second singular value is far below the first;
    # both are sums in single precision, of the base's output here, in another order there.
    cosine = (ours.router.prototypes * theirs.prototypes).sum(1).abs()
    torch.testing.assert_close(cosine, torch.ones(E))
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
