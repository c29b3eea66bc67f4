"""Common skills and some of each task's own."""

import pytest
import torch

from helpers.skills import spread
from mttl.routing import IBP, CPolyRouter, PolytroponRouter, RoutingPrior

G, T, H, A, B = 2, 3, 2, 4, 2
K = A + B * T
IDS = torch.tensor([2, 0, 1, 1])
PRIOR = RoutingPrior(ibp=IBP(2.0, 1.0), sparsity=0.5)


def make(n_private: int = B, **settings) -> CPolyRouter:
    return spread(CPolyRouter(G, T, H, A + n_private * T, n_private=n_private, **settings))


def usable(task: int) -> list[int]:
    """Return the skills of a task: the common ones, and its own behind them."""
    return [*range(A), *range(A + B * task, A + B * (task + 1))]


@pytest.mark.parametrize("hard", [False, True])
def test_rows_equal_a_plain_loop(hard: bool) -> None:
    router = make(straight_through=hard).eval()
    expected = torch.zeros(G, T, H, K)
    likely = torch.zeros(G, T, H, K)
    for group in range(G):
        for task in range(T):
            for head in range(H):
                row = {k: router.logits[group, task, head, k].sigmoid() for k in usable(task)}
                if hard:
                    row = {k: torch.tensor(float(value > 0.5)) for k, value in row.items()}
                for k, value in row.items():
                    likely[group, task, head, k] = value
                    expected[group, task, head, k] = value / max(sum(row.values()), 1e-12)
    torch.testing.assert_close(router.matrix(), expected)
    torch.testing.assert_close(router(IDS), expected[:, IDS])
    torch.testing.assert_close(router.probabilities(), likely)


@pytest.mark.parametrize(
    "settings",
    [{}, {"straight_through": True}, {"relaxed": False}, {"prior": PRIOR}],
    ids=lambda settings: next(iter(settings), "default"),
)
def test_without_skills_of_their_own_it_is_polytropon_bit_for_bit(settings: dict) -> None:
    pair = []
    for kind in (PolytroponRouter, lambda *sizes, **s: CPolyRouter(*sizes, n_private=0, **s)):
        torch.manual_seed(3)
        router = kind(G, T, H, A, **settings)
        found = [router.logits.detach().clone(), router.train()(IDS), router.prior_loss()]
        (found[1].square().sum() + router.prior_loss()).backward()
        found += [router.logits.grad, router.eval()(IDS), router.matrix(), router.probabilities()]
        for init in ("mean", "fresh"):
            found.append(router.for_new_tasks(2, init=init).train()(torch.tensor([1, 0])))
        pair.append((found, torch.get_rng_state()))
    assert all(
        torch.equal(ours, theirs) for ours, theirs in zip(*(x for x, _ in pair), strict=True)
    )
    assert torch.equal(pair[0][1], pair[1][1])


def test_a_new_task_has_the_common_skills_and_may_have_fresh_ones_of_its_own() -> None:
    router = make(init_scale=0.01)
    new = router.for_new_tasks(5)
    assert new.allowed.tolist() == [[1] * A + [0] * (K - A)] * 5
    expected = router.logits[..., :A].mean(1, keepdim=True).sigmoid()
    expected = expected / expected.sum(-1, keepdim=True)
    torch.testing.assert_close(new.matrix()[..., :A], expected.expand(-1, 5, -1, -1))
    assert not new.matrix()[..., A:].any()
    new = router.for_new_tasks(2, private=True)
    assert torch.equal(new.allowed, router.allowed[:2])
    for task in range(2):
        own = usable(task)[A:]
        torch.testing.assert_close(
            new.logits[:, task, :, :A], router.logits[..., :A].mean(1).detach()
        )
        assert new.logits[:, task][..., own].abs().max() <= 0.01
    with pytest.raises(ValueError, match=r"n_tasks \(4\) must be at most 3"):
        router.for_new_tasks(4, private=True)
