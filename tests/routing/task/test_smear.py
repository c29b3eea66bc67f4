"""A router of prompts against plain loops, and what routers of prompts promise."""

import torch
from torch.nn.functional import layer_norm

from mttl.routing import SmearRouter

G, T, H, K, D = 2, 5, 2, 4, 8
IDS = torch.tensor([4, 0, 0])


def make() -> SmearRouter:
    router = SmearRouter(G, T, H, K, D)
    torch.nn.init.normal_(router.maps)
    router.show("examples", torch.randn(T, D))
    return router


def test_weights_are_those_of_a_plain_loop() -> None:
    router, prompts = make(), torch.randn(3, D)
    found = router.mix(IDS, prompts)
    assert found.shape == (G, 3, H, K)
    for g in range(G):
        for b in range(3):
            for h in range(H):
                logits = layer_norm(prompts[b], (D,)) @ router.maps[g, :, h]
                torch.testing.assert_close(found[g, b, h], logits.softmax(0))


def test_no_task_is_needed_where_there_is_a_prompt() -> None:
    router, prompts = make(), torch.randn(3, D)
    assert torch.equal(router.mix(IDS, prompts), router.mix(torch.zeros_like(IDS), prompts))
    # Examples of a task stand for its prompts where none is given.
    expected = router.mix(torch.arange(T), router.shown_examples)
    assert torch.equal(router.matrix(), expected)
    assert torch.equal(router.probabilities(), expected)
    assert not router.draws
    (router.mix(IDS, prompts.bfloat16()) * torch.randn(K)).sum().backward()
    assert router.maps.grad.any()


def test_new_tasks_are_read_alike() -> None:
    router, prompts = make(), torch.randn(2, D)
    new = router.for_new_tasks(2)
    new.show("examples", torch.randn(2, D))
    assert torch.equal(new.mix(IDS[:2] * 0, prompts), router.mix(IDS[:2] * 0, prompts))
    fresh = router.for_new_tasks(1, init="fresh")
    assert fresh.maps.abs().max() < 6 / D  # six deviations
