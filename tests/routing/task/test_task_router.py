"""What every kind of task router promises."""

import pytest
import torch

from helpers.skills import LEARNED, ROUTERS, spread
from mttl.routing import RetrievalRouter, TaskMoERouter
from mttl.routing.task.fixed import FixedRouter, SharedRouter
from mttl.routing.task.polytropon import PolytroponRouter
from mttl.routing.task.task_router import initial_rows

G, T, H, K = 2, 5, 3, 4
NORMALISED = [name for name in ROUTERS if name not in ("hyperformer", "coefficients")]
TASK_IDS = torch.tensor([4, 0, 0, 2])


def make(name, n_groups=G, n_tasks=T, n_heads=H, n_skills=K):
    return spread(ROUTERS[name](n_groups, n_tasks, n_heads, n_skills))


@pytest.mark.parametrize("name", ROUTERS)
def test_evaluation_reads_rows_of_the_matrix_and_draws_nothing(name):
    router, before = make(name).train(), torch.get_rng_state()
    matrix = router.matrix()
    assert router.training
    sizes = f"n_groups=2, n_tasks=5, n_heads={router.n_heads}, n_skills=4"
    assert sizes + ", relaxed=True" * (name == "polytropon") in repr(router)
    torch.testing.assert_close(router.eval()(TASK_IDS), matrix[:, TASK_IDS])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", NORMALISED)
def test_rows_sum_to_one(name, training):
    weights = make(name).train(training)(TASK_IDS)
    expected = torch.ones(weights.shape[:-1])
    if name.startswith("polytropon-hard"):  # a row of which every choice is 0 stays 0
        expected = weights.any(-1).float()
    torch.testing.assert_close(weights.sum(-1), expected)
    assert (weights >= 0).all()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", LEARNED)
def test_the_gradient_reaches_every_parameter(name, training):
    # Data-parallel training waits for the gradient of every parameter on every process.
    router = make(name).train(training)
    target = torch.randn(G, T, router.n_heads, K)
    (router(torch.arange(T)) * target).sum().backward()
    for label, parameter in router.named_parameters():
        assert parameter.grad is not None, label
        assert parameter.grad.any(), label
        assert parameter.grad.isfinite().all(), label


@pytest.mark.parametrize("name", ["polytropon", "polytropon-hard", "task_moe"])
def test_training_draws_anew(name):
    router = make(name).train()
    assert not torch.equal(router(TASK_IDS), router(TASK_IDS))
    # Two examples of one task draw apart.
    repeated = router(torch.zeros(2, dtype=torch.long))
    if name != "polytropon-hard":  # may round to the same
        assert not torch.equal(repeated[:, 0], repeated[:, 1])


@pytest.mark.parametrize("init", ["mean", "fresh"])
@pytest.mark.parametrize("name", ROUTERS)
def test_a_router_for_new_tasks_is_a_new_object_of_the_same_kind(name, init):
    router = make(name)
    before = {label: tensor.clone() for label, tensor in router.state_dict().items()}
    grown = router.for_new_tasks(7, init=init)
    # A task of metadata that is composed has a row of its own from then on.
    other = {"metadata": PolytroponRouter, "average": FixedRouter, "expert": FixedRouter}
    assert type(grown) is other.get(name, type(router))
    sizes = (grown.n_groups, grown.n_tasks, grown.n_heads, grown.n_skills)
    assert sizes == (G, 7, router.n_heads, K)
    matrix = grown.matrix()
    assert matrix.shape == (G, 7, router.n_heads, K)
    assert init == "fresh" or torch.equal(matrix, matrix[:, :1].expand_as(matrix))
    owned = {tensor.data_ptr() for tensor in router.state_dict().values()}
    assert not owned & {tensor.data_ptr() for tensor in grown.state_dict().values()}
    with torch.no_grad():
        for tensor in grown.state_dict().values():
            tensor.add_(1)
    for label, tensor in router.state_dict().items():
        assert torch.equal(tensor, before[label])


@pytest.mark.parametrize("init", ["mean", "fresh"])
@pytest.mark.parametrize("name", LEARNED)
def test_a_router_for_new_tasks_goes_on_learning(name, init):
    grown = make(name).for_new_tasks(2, init=init).train()
    optimizer = torch.optim.SGD(grown.parameters(), lr=1.0)
    before = grown.matrix().detach().clone()
    target = torch.randn(G, 2, grown.n_heads, K)
    (grown(torch.arange(2)) * target).sum().backward()
    optimizer.step()
    assert not torch.allclose(grown.matrix(), before)


def test_initial_rows():
    rows = torch.arange(12.0).view(2, 3, 2).requires_grad_()
    mean = initial_rows(rows, 4, "mean", 0.1)
    assert not mean.requires_grad
    assert mean.tolist() == [[[2.0, 3.0]] * 4, [[8.0, 9.0]] * 4]
    fresh = initial_rows(rows, 500, "fresh", 0.1)
    assert fresh.shape == (2, 500, 2)
    assert fresh.abs().max() <= 0.1
    assert fresh.abs().mean().item() == pytest.approx(0.05, rel=0.1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: PolytroponRouter(-1, 2, 1, 2), r"n_groups \(-1\) must not be negative"),
        (lambda: PolytroponRouter(2, 0, 1, 2), r"n_tasks \(0\) must be at least 1"),
        (lambda: PolytroponRouter(2, 2, 0, 2), r"n_heads \(0\) must be at least 1"),
        (lambda: PolytroponRouter(2, 2, 1, 0), r"n_skills \(0\) must be at least 1"),
        (lambda: PolytroponRouter(1, 2, 1, 1, shared_skill=True), r"\(1\) to be at least 2"),
        (lambda: TaskMoERouter(1, 2, 1, 4, top_k=5), r"top_k \(5\) must be at most n_skills \(4\)"),
        (lambda: RetrievalRouter(1, 5, 1, 5, 8, top_k=6), r"top_k \(6\) must be at most n_skills"),
        *(
            (lambda n=name: make(n).for_new_tasks(2, init="zero"), "init .'zero'. must be one of")
            for name in ("polytropon", "task_moe", "expert", "c_poly")
        ),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_router_may_route_nothing():
    router = SharedRouter(0, 3)
    assert router(torch.tensor([2, 0])).shape == (0, 2, 1, 1)
    assert router.matrix().shape == (0, 3, 1, 1)
    assert router.prior_loss() == 0
    assert router.for_new_tasks(4).matrix().shape == (0, 4, 1, 1)
