"""What every router promises, and what each kind computes."""

import pytest
import torch
from torch.distributions import RelaxedBernoulli

from mttl.routing import (
    FixedRouter,
    HyperFormerRouter,
    PolytroponRouter,
    RoutingPrior,
    TaskMoERouter,
    average_router,
    expert_router,
    private_router,
    shared_router,
)
from mttl.routing.relaxations import relaxed_bernoulli, straight_through
from mttl.routing.task_router import initial_rows

G, T, K = 3, 5, 4
KINDS = {
    "polytropon": lambda: PolytroponRouter(G, T, 1, K),
    "multi-head": lambda: PolytroponRouter(G, T, 2, K),
    "hard": lambda: PolytroponRouter(G, T, 1, K, hard=True, init_scale=2.0),
    "shared skill": lambda: PolytroponRouter(G, T, 1, K, shared_skill=True),
    "task moe": lambda: TaskMoERouter(G, T, 2, K, top_k=2),
    "hyperformer": lambda: HyperFormerRouter(G, T, 1, K),
    "shared": lambda: shared_router(G, T, 2),
    "private": lambda: private_router(G, T),
    "average": lambda: average_router(G, T, K, 2),
    "expert": lambda: expert_router(torch.rand(T, K) + 0.1, G),
}
LEARNED = ("polytropon", "multi-head", "shared skill", "task moe", "hyperformer")
IDS = torch.tensor([4, 0, 0, 2])


@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_reads_the_matrix_and_is_deterministic(kind):
    router = KINDS[kind]().eval()
    matrix = router.matrix()
    assert matrix.shape == (G, T, router.n_heads, router.n_skills)
    assert torch.equal(router(IDS), matrix[:, IDS])
    assert torch.equal(router(IDS), router(IDS))
    assert router.prior_loss() == 0


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "hyperformer"])
def test_rows_sum_to_one(kind):
    router = KINDS[kind]()
    for rows in (router.matrix(), router.train()(IDS)):
        sums = rows.sum(-1)
        # A hard draw may leave a row without a skill: then it is all zero.
        whole = sums[sums > 0.5] if kind == "hard" else sums
        torch.testing.assert_close(whole, torch.ones_like(whole))


@pytest.mark.parametrize("kind", LEARNED)
def test_every_parameter_gets_a_gradient(kind):
    router = KINDS[kind]().train()
    out = router(torch.arange(T))
    (out * torch.randn_like(out)).sum().backward()
    for name, parameter in router.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("init", ["mean", "fresh"])
def test_new_tasks_get_a_new_router(kind, init):
    router = KINDS[kind]()
    before = router.matrix().clone()
    new = router.for_new_tasks(2, init=init)
    assert type(new) is type(router)
    assert new is not router
    assert new.matrix().shape == (G, 2, router.n_heads, router.n_skills)
    assert torch.equal(router.matrix(), before)
    assert router.n_tasks == T
    assert all(p.requires_grad for p in new.parameters())
    if init == "mean" and not isinstance(router, FixedRouter):
        rows = {name: value for name, value in router.named_parameters() if value.shape[1] == T}
        for name, value in rows.items():
            mean = value.mean(dim=1)
            for row in dict(new.named_parameters())[name].unbind(1):
                torch.testing.assert_close(row, mean)


@pytest.mark.parametrize("kind", ["polytropon", "task moe", "hyperformer", "average"])
def test_unknown_init_for_new_tasks(kind):
    with pytest.raises(ValueError, match=r"init \('old'\) must be 'mean' or 'fresh'"):
        KINDS[kind]().for_new_tasks(2, init="old")


def test_settings_survive_new_tasks():
    prior = RoutingPrior(sparsity=1.0)
    router = PolytroponRouter(
        G,
        T,
        2,
        K,
        relaxed=False,
        hard=True,
        temperature=0.5,
        init_scale=0.1,
        normalisation="average_correction",
        shared_skill=True,
        logit_dropout=0.2,
        prior=prior,
    )
    new = router.for_new_tasks(1)
    for name in ("relaxed", "hard", "init_scale", "normalisation", "shared_skill", "logit_dropout"):
        assert getattr(new, name) == getattr(router, name), name
    assert new.prior is prior
    assert new.temperature == 0.5
    moe = TaskMoERouter(G, T, 1, K, top_k=3, noise=False, init_scale=0.2).for_new_tasks(1)
    assert (moe.top_k, moe.noise, moe.init_scale) == (3, False, 0.2)


def test_polytropon_probabilities_and_normalisation():
    router = PolytroponRouter(G, T, 2, K, init_scale=1.0)
    p = router.logits.sigmoid()
    torch.testing.assert_close(router.probabilities(), p)
    torch.testing.assert_close(router.matrix(), p / p.sum(-1, keepdim=True))


def test_average_correction():
    router = PolytroponRouter(G, T, 2, 8, normalisation="average_correction")
    expected = router.logits.sigmoid() * (2 / 8) ** 0.5
    torch.testing.assert_close(router.matrix(), expected)


def test_shared_skill_is_always_on():
    router = PolytroponRouter(G, T, 1, K, shared_skill=True, hard=True, init_scale=5.0)
    assert router.logits.shape[-1] == K - 1
    assert bool((router.probabilities()[..., -1] == 1).all())
    drawn = router.train()(IDS)
    torch.testing.assert_close(drawn[..., -1], drawn.max(-1).values)


def test_logit_dropout_is_for_training_only():
    router = PolytroponRouter(G, T, 1, K, relaxed=False, logit_dropout=0.9, init_scale=3.0)
    assert not torch.equal(router.train()(IDS), router.matrix()[:, IDS])
    assert torch.equal(router.eval()(IDS), router.matrix()[:, IDS])


def test_training_is_random_only_when_relaxed():
    router = PolytroponRouter(G, T, 1, K).train()
    assert not torch.equal(router(IDS), router(IDS))
    # Two examples of one task draw apart.
    drawn = router(torch.tensor([0, 0]))
    assert not torch.equal(drawn[:, 0], drawn[:, 1])
    router.relaxed = False
    assert torch.equal(router(IDS), router.matrix()[:, IDS])


def test_a_low_temperature_is_nearly_binary():
    router = PolytroponRouter(1, 1, 1, 200, temperature=0.01).train()
    active = router(torch.zeros(1, dtype=torch.long)) * 200
    largest = active.max()
    near = (active < 0.02 * largest) | (active > 0.98 * largest)
    # At temperature 0.01 a draw is undecided only if its noise is within 0.04 of 0: about 2 %.
    assert near.float().mean() > 0.9


def test_prior_loss_reads_the_probabilities():
    router = PolytroponRouter(G, T, 2, K, init_scale=1.0, prior=RoutingPrior(sparsity=2.0))
    torch.testing.assert_close(router.prior_loss(), 2 * router.logits.sigmoid().mean())


def test_relaxed_bernoulli_has_the_distribution_of_pytorch():
    torch.manual_seed(0)
    logits = torch.full((100_000,), 0.7)
    ours = relaxed_bernoulli(logits, 0.6)
    reference = RelaxedBernoulli(torch.tensor(0.6), logits=logits).sample()
    quantiles = torch.linspace(0.05, 0.95, 10)
    # 100,000 draws: quantiles are known to about 0.005.
    torch.testing.assert_close(
        ours.quantile(quantiles), reference.quantile(quantiles), atol=0.01, rtol=0
    )
    assert (ours > 0.5).float().mean().item() == pytest.approx(
        torch.tensor(0.7).sigmoid().item(), abs=0.01
    )


def test_straight_through():
    soft = torch.tensor([0.2, 0.5, 0.7], requires_grad=True)
    hard = straight_through(soft)
    assert hard.tolist() == [0.0, 0.0, 1.0]
    (hard * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert soft.grad.tolist() == [1.0, 2.0, 3.0]


def test_task_moe_renormalises_its_best_over_the_skills():
    router = TaskMoERouter(1, 2, 2, K, top_k=2, init_scale=1.0)
    matrix = router.matrix()
    probabilities = router.logits.softmax(-1)
    for t in range(2):
        for h in range(2):
            row = probabilities[0, t, h]
            best = row.topk(2).indices
            expected = torch.zeros(K)
            expected[best] = row[best] / row[best].sum()
            torch.testing.assert_close(matrix[0, t, h], expected)


def test_task_moe_noise_is_for_training_only():
    router = TaskMoERouter(G, T, 1, K)
    assert not torch.equal(router.train()(IDS), router.matrix()[:, IDS])
    router.noise = False
    assert torch.equal(router(IDS), router.matrix()[:, IDS])


def test_hyperformer_generates_the_factors_of_a_hyper_network():
    from mttl.aggregation import mix_factors

    router = HyperFormerRouter(1, T, 1, K)
    down, up = torch.randn(K, 6, 2), torch.randn(K, 8, 2)
    e = router.embeddings[0]
    hidden = torch.relu(e @ router.hidden.weight[0] + router.hidden.bias[0])
    generated = hidden @ router.output.weight[0] + router.output.bias[0]
    a, b = mix_factors(down, up, router(torch.arange(T))[0])
    # The last layers of the network, W2: linear maps without bias from K values to all factors.
    torch.testing.assert_close(a, (generated @ down.flatten(1)).view(T, 6, 2))
    torch.testing.assert_close(b, (generated @ up.flatten(1)).view(T, 8, 2))


def test_baselines():
    assert torch.equal(shared_router(1, 3).matrix()[0, :, 0], torch.ones(3, 1))
    assert torch.equal(private_router(1, 3).matrix()[0, :, 0], torch.eye(3))
    assert torch.equal(average_router(1, 3, 4).matrix()[0, :, 0], torch.full((3, 4), 0.25))
    given = torch.tensor([[1.0, 1.0, 0.0], [0.0, 3.0, 0.0]])
    expected = torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]])
    assert torch.equal(expert_router(given, 1).matrix()[0, :, 0], expected)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PolytroponRouter(0, T, 1, K), r"n_groups \(0\) must be at least 1"),
        (lambda: PolytroponRouter(1, 0, 1, K), r"n_tasks \(0\) must be at least 1"),
        (lambda: PolytroponRouter(1, T, 0, K), r"n_heads \(0\) must be at least 1"),
        (lambda: PolytroponRouter(1, T, 1, 0), r"n_skills \(0\) must be at least 1"),
        (lambda: PolytroponRouter(1, T, 1, K, temperature=0.0), r"temperature \(0.0\) must be"),
        (lambda: PolytroponRouter(1, T, 1, K, logit_dropout=1.0), r"logit_dropout \(1.0\) must"),
        (
            lambda: PolytroponRouter(1, T, 1, K, normalisation="max"),
            r"normalisation \('max'\) must be 'sum' or 'average_correction'",
        ),
        (
            lambda: PolytroponRouter(1, T, 1, 1, shared_skill=True),
            r"shared_skill needs n_skills \(1\) to be at least 2",
        ),
        (
            lambda: TaskMoERouter(1, T, 1, K, top_k=5),
            r"top_k \(5\) must lie between 1 and n_skills",
        ),
        (lambda: HyperFormerRouter(1, T, 2, K), r"n_heads \(2\) must be 1 for a HyperFormer"),
        (lambda: expert_router(torch.tensor([[1.0, -1.0]]), 1), "finite weights of at least 0"),
        (
            lambda: expert_router(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), 1),
            r"gives no skill to the tasks with ids \[1\]",
        ),
        (
            lambda: initial_rows(torch.zeros(1, 2, 3), 1, "old", 1.0),
            r"init \('old'\) must be 'mean' or 'fresh'",
        ),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_printed_form_names_the_sizes():
    assert "n_groups=3, n_tasks=5, n_heads=1, n_skills=4" in repr(KINDS["polytropon"]())
