"""What all routers of tokens have in common."""

from collections.abc import Callable

import pytest
import torch

from mttl.routing import (
    ArrowRouter,
    BaseRouter,
    ExampleRouter,
    ExpertChoiceRouter,
    GShardRouter,
    HashRouter,
    NoisyTopKRouter,
    PhatgooseRouter,
    SpectralRouter,
    TokenRouter,
    Tokens,
    TopKRouter,
)
from mttl.routing.token.members import MemberRouter

I, E, N = 6, 4, 20  # noqa: E741


def read(router: MemberRouter) -> MemberRouter:
    router.reset_parameters()
    for value in router.parameters():
        torch.nn.init.normal_(value)
    router.read(torch.randn(E, I, 2), torch.randn(E, 3, 2))
    return router


ROUTERS: dict[str, Callable[[], TokenRouter]] = {
    "top_k": lambda: TopKRouter(I, E),
    "switch": lambda: TopKRouter(I, E, top_k=1, normalise=False, jitter=1e-2),
    "noisy": lambda: NoisyTopKRouter(I, E),
    "gshard": lambda: GShardRouter(I, E),
    "expert choice": lambda: ExpertChoiceRouter(I, E),
    "base": lambda: BaseRouter(I, E),
    "hash": lambda: HashRouter(I, E, vocabulary_size=11),
    "example": lambda: ExampleRouter(I, E),
    "arrow": lambda: read(ArrowRouter(I, E, top_k=2)),
    "spectral": lambda: read(SpectralRouter(I, E, rank=2, top_k=2)),
    "phatgoose": lambda: read(PhatgooseRouter(I, E)),
}
LEARNED = [name for name in ROUTERS if name not in ("hash", "arrow", "spectral")]


def given(n: int = N) -> dict[str, torch.Tensor]:
    return {"examples": torch.arange(n) // 5, "ids": torch.arange(n) % 11}


@pytest.mark.parametrize("name", ROUTERS)
@pytest.mark.parametrize("training", [True, False])
def test_an_assignment_is_well_formed(name: str, training: bool) -> None:
    router = ROUTERS[name]().train(training)
    found = router(Tokens(torch.randn(N, I), **given()))
    assert found.tokens.min() >= 0
    assert found.tokens.max() < N
    assert found.experts.max() < E
    pairs = set(zip(found.tokens.tolist(), found.experts.tolist(), strict=True))
    assert len(pairs) == len(found.tokens)
    assert (found.weights >= 0).all()
    torch.testing.assert_close(found.probabilities.sum(1), torch.ones(N))
    assert int(found.counts().sum()) == len(pairs)
    assert "in_features=6, n_experts=4" in repr(router)


@pytest.mark.parametrize("name", ROUTERS)
def test_padding_is_left_out(name: str) -> None:
    router = ROUTERS[name]().eval()
    x, mask = torch.randn(N, I), torch.arange(N) % 5 < 3
    found = router(Tokens(x, mask=mask, **given()))
    assert mask[found.tokens].all()
    assert not found.probabilities[~mask].any()
    alone = router(Tokens(x[mask], **{key: value[mask] for key, value in given().items()}))
    assert torch.equal(found.tokens, mask.nonzero().squeeze(1)[alone.tokens])
    assert torch.equal(found.experts, alone.experts)
    assert torch.equal(found.weights, alone.weights)
    nothing = ROUTERS[name]()(Tokens(x, mask=torch.zeros(N).bool(), **given()))
    assert len(nothing.tokens) == 0


@pytest.mark.parametrize("name", LEARNED)
def test_the_gate_teaches_the_router(name: str) -> None:
    router = ROUTERS[name]()
    found = router(Tokens(torch.randn(N, I), **given()))
    (found.weights * torch.rand(len(found.weights))).sum().backward()
    assert next(router.parameters()).grad.any()


@pytest.mark.parametrize("name", [name for name in ROUTERS if name != "hash"])
def test_arithmetic_is_float32_whatever_comes_in(name: str) -> None:
    router = ROUTERS[name]().eval()
    x = torch.randn(N, I).bfloat16()
    expected = router(Tokens(x.float(), **given()))
    with torch.autocast("cpu", torch.bfloat16):
        found = router(Tokens(x, **given()))
    assert found.weights.dtype == torch.float32
    assert torch.equal(found.weights, expected.weights)
    assert torch.equal(found.experts, expected.experts)


@pytest.mark.parametrize("name", [name for name in ROUTERS if name not in ("base", "hash")])
def test_a_prior_forbids_experts(name: str) -> None:
    router = ROUTERS[name]()
    prior = torch.zeros(N, E)
    prior[:, 1:] = -torch.inf
    prior[10:] = torch.tensor([-torch.inf, -torch.inf, 0.0, 0.0])
    found = router(Tokens(torch.randn(N, I), prior=prior, **given()))
    assert (prior[found.tokens, found.experts] == 0).all()
    if name in LEARNED:
        found.weights.sum().backward()
        assert all(torch.isfinite(p.grad).all() for p in router.parameters() if p.grad is not None)


def test_a_prior_must_leave_an_expert() -> None:
    prior = torch.zeros(N, E)
    prior[3] = -torch.inf
    with pytest.raises(ValueError, match="excludes all 4 experts for 1 of 20 tokens"):
        TopKRouter(I, E)(Tokens(torch.randn(N, I), prior=prior))
    lacking = ArrowRouter(I, E)  # a member that changes nothing in a layer, neither
    lacking.read(
        torch.randn(E, I, 2), torch.ones(E, 3, 2) * torch.tensor([1, 0, 1, 1])[:, None, None]
    )
    prior[3, 1] = 0.0
    with pytest.raises(ValueError, match="excludes all 4 experts for 1 of 20 tokens"):
        lacking(Tokens(torch.randn(N, I), prior=prior))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TopKRouter(0, E), r"in_features \(0\) must be at least 1"),
        (lambda: BaseRouter(I, 0), r"n_experts \(0\) must be at least 1"),
        (lambda: TopKRouter(I, E, top_k=5), r"top_k \(5\) must be at most n_experts \(4\)"),
        (lambda: TopKRouter(I, E, top_k=1), r"with normalise and top_k \(1\) every gate is 1"),
        (lambda: NoisyTopKRouter(I, E, top_k=4), r"top_k \(4\) must be at most n_experts - 1"),
        (lambda: ExpertChoiceRouter(I, E, capacity=5.0), r"capacity \(5.0\) must be at most n_exp"),
        (lambda: ArrowRouter(I, E, top_k=5), r"top_k \(5\) must be at most n_experts \(4\)"),
    ],
)
def test_bad_settings_are_refused(make: Callable[[], TokenRouter], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
