"""Retrieval of members against a plain loop."""

import pytest
import torch

from mttl.routing import RetrievalRouter

G, H, K, D = 2, 1, 5, 8
IDS = torch.tensor([4, 0, 0])


def make(**settings) -> RetrievalRouter:
    router = RetrievalRouter(G, K, H, K, D, **settings)
    vectors = 10 + torch.randn(K, D)  # much in common, as means of embeddings have
    router.show("examples", vectors)
    router.remember(vectors)
    return router


@pytest.mark.parametrize("top_k", [1, 2, K])
def test_weights_are_those_of_a_plain_loop(top_k: int) -> None:
    router, prompts = make(top_k=top_k, temperature=0.3), 10 + torch.randn(3, D)
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
        torch.testing.assert_close(found[:, b, 0], expected.expand(G, K), atol=1e-5, rtol=1e-4)


def test_by_prompts_or_by_examples_of_the_task() -> None:
    prompts = 10 + torch.randn(3, D)
    router = make()
    assert torch.equal(router.mix(IDS, prompts), router.mix(IDS * 0, prompts))
    router = make(by="examples")
    assert torch.equal(router.mix(IDS, prompts), router.matrix()[:, IDS])


def test_new_tasks_find_the_same_members() -> None:
    router, prompts = make(top_k=2, by="prompts"), 10 + torch.randn(3, D)
    new = router.for_new_tasks(2, init="fresh")
    new.show("examples", prompts[:2])
    expected = router.mix(IDS, prompts)
    assert torch.equal(new.mix(IDS * 0, prompts), expected)
    assert torch.equal(new.matrix(), expected[:, :2])
    assert not list(router.parameters())
