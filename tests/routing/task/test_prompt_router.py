"""Routers that read prompts, against plain loops: SMEAR, and retrieval of members."""

import pytest
import torch
from torch.nn.functional import layer_norm

from mttl.routing import RetrievalRouter, SmearRouter

G, T, H, K, D = 2, 5, 2, 5, 8
IDS = torch.tensor([4, 0, 0])


def texts(n: int = 3) -> torch.Tensor:
    """Return vectors with much in common, as means of embeddings have."""
    return 10 + torch.randn(n, D)


def smear() -> SmearRouter:
    router = SmearRouter(G, T, H, K, D)
    torch.nn.init.normal_(router.maps)
    router.show("examples", texts(T))
    return router


def retrieval(**settings) -> RetrievalRouter:
    router = RetrievalRouter(G, T, H, K, D, **settings)
    router.members.copy_(texts(K))
    router.show("examples", texts(T))
    return router


def test_smear_is_a_plain_loop() -> None:
    router, prompts = smear(), texts()
    found = router.mix(IDS, prompts)
    assert found.shape == (G, 3, H, K)
    for g in range(G):
        for b in range(3):
            for h in range(H):
                logits = layer_norm(prompts[b], (D,)) @ router.maps[g, :, h]
                torch.testing.assert_close(found[g, b, h], logits.softmax(0))
    (router.mix(IDS, prompts.bfloat16()) * torch.randn(K)).sum().backward()
    assert router.maps.grad.any()
    fresh = router.for_new_tasks(1, init="fresh")
    assert fresh.maps.abs().max() < 6 / D  # six deviations


@pytest.mark.parametrize("top_k", [1, 2, K])
def test_retrieval_is_a_plain_loop(top_k: int) -> None:
    router, prompts = retrieval(top_k=top_k, temperature=0.3), texts()
    found = router.mix(IDS, prompts)
    assert found.shape == (G, 3, H, K)
    middle = router.members.mean(0)
    for b in range(3):
        near = [
            float(torch.cosine_similarity(prompts[b] - middle, member - middle, dim=0))
            for member in router.members
        ]
        best = sorted(range(K), key=lambda k: -near[k])[:top_k]
        expected = torch.zeros(K)
        expected[best] = torch.softmax(torch.tensor([near[k] for k in best]) / 0.3, 0)
        # Cosines of numbers near to each other, in another order of sums.
        shown = expected.expand(G, H, K)
        torch.testing.assert_close(found[:, b], shown, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("make", [smear, retrieval])
def test_prompts_are_read_whatever_the_task_and_examples_stand_for_them(make) -> None:
    router, prompts = make(), texts()
    assert not router.draws
    expected = router.mix(IDS, prompts)
    assert torch.equal(router.mix(IDS * 0, prompts), expected)
    by_task = router.mix(torch.arange(T), router.shown_examples)
    assert torch.equal(router.matrix(), by_task)
    assert torch.equal(router.probabilities(), by_task)
    new = router.for_new_tasks(2)
    new.show("examples", prompts[:2])
    assert torch.equal(new.mix(IDS * 0, prompts), expected)
    torch.testing.assert_close(new.matrix(), expected[:, :2])


def test_retrieval_by_examples_of_the_task() -> None:
    router = retrieval(by="examples")
    assert torch.equal(router.mix(IDS, texts()), router.matrix()[:, IDS])
    assert not list(router.parameters())
