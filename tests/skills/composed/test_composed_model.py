"""Composed models, against plain modules one after another."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from helpers.backbones import fill
from helpers.compare import relative_error
from helpers.skills import gradients, spread
from mttl.babyai.policy import Policy
from mttl.routing import (
    IBP,
    AverageRouter,
    ExpertRouter,
    HyperFormerRouter,
    PolytroponRouter,
    PrivateRouter,
    RoutingPrior,
    SharedRouter,
    TaskMoERouter,
)
from mttl.skills.composed.composed_model import ComposedModel, ModuleInventory
from mttl.training.optim import parameter_roles

T, S, N, E, M = 3, 2, 2, 2, 3
KINDS = ["dense", "sparse", "lora", "residual"]
# The number of skills, and how to make the router for n_groups.
ROUTERS = {
    "shared": (1, lambda g: SharedRouter(g, T)),
    "private": (T, lambda g: PrivateRouter(g, T)),
    "polytropon": (4, lambda g: PolytroponRouter(g, T, 1, 4)),
    "ibp": (4, lambda g: PolytroponRouter(g, T, 1, 4, prior=RoutingPrior(ibp=IBP(weight=1.0)))),
    "expert": (4, lambda g: ExpertRouter(g, T, 1, 4, matrix=torch.ones(T, 4).tril())),
    "task_moe": (4, lambda g: TaskMoERouter(g, T, 1, 4)),
    "hyperformer": (4, lambda g: HyperFormerRouter(g, T, 1, 4)),
    "average": (4, lambda g: AverageRouter(g, T, 1, 4)),
}
IDS = torch.tensor([2, 0, 1])
# Every router, with the kinds in turn; every kind with one that learns.
PAIRS = pytest.mark.parametrize(
    ("kind", "router"), [(KINDS[place % 4], router) for place, router in enumerate(ROUTERS)]
)


def policy():
    base = Policy(9, n_channels=4, memory_size=3, instruction_size=3, word_size=3, hidden_size=4)
    fill(base)
    return base


def composed(base=None, kind="dense", router="polytropon", granularity="layer", over_tasks="auto"):
    """A model in float64 whose parts are far from their initialisation, in evaluation mode."""
    base = policy() if base is None else base
    n_skills, make_router = ROUTERS[router]
    inventory = ModuleInventory(base, n_skills, kind=kind, granularity=granularity)
    fill(inventory, seed=1)
    task_router = spread(make_router(inventory.n_groups))
    model = ComposedModel(base, inventory, task_router).double().eval()
    model.over_tasks = over_tasks
    return model


def observations(n_tasks=T):
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 147, (n_tasks, S, N, 7, 7, 3), generator=draw, dtype=torch.uint8)
    missions = torch.randint(1, 9, (n_tasks, E, M), generator=draw)
    index = torch.randint(0, E, (n_tasks, S, N), generator=draw)
    memory = torch.randn(n_tasks, N, 6, generator=draw, dtype=torch.float64)
    return images, missions, index, memory, torch.rand(n_tasks, S, N, generator=draw) < 0.3


def loss_of(outputs):
    return sum(output.square().sum() for output in outputs)


def by_hand(model, arguments):
    """Outputs and gradients from one plain module per task, and the chain rule."""
    parameters = model.task_parameters(IDS)
    outputs, slopes = [], {name: [] for name in parameters}
    for row, task in enumerate(IDS.tolist()):
        module = model.task_module(task)
        found = module(*(argument[row] for argument in arguments))
        loss_of(found).backward()
        outputs.append([output.detach() for output in found])
        for name, parameter in module.named_parameters():
            slopes[name].append(parameter.grad)
    model.zero_grad()
    torch.autograd.backward(
        [parameters[name] for name in slopes], [torch.stack(slope) for slope in slopes.values()]
    )
    return [torch.stack(parts) for parts in zip(*outputs, strict=True)], gradients(model)


@PAIRS
def test_equals_plain_modules_one_after_another(kind, router):
    arguments = observations()
    model = composed(kind=kind, router=router)
    expected, expected_gradients = by_hand(model, arguments)
    for model.over_tasks in ("loop", "vmap"):
        model.zero_grad()
        found = model(IDS, *arguments)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)
        loss_of(found).backward()
        own = gradients(model)
        assert own.keys() == expected_gradients.keys()
        for name, expected_gradient in expected_gradients.items():
            # Float64, sums in another order; the smallest gradients are sums that cancel.
            torch.testing.assert_close(own[name], expected_gradient, atol=1e-10, rtol=1e-7)
    roles = parameter_roles(model)
    assert roles.keys() == own.keys()
    for name, role in roles.items():
        part = name.split(".")[0]
        assert role == {"inventory": "skills", "router": "router", "base": "backbone"}[part]


@pytest.mark.parametrize("over_tasks", ["auto", "loop", "vmap"])
def test_the_router_is_asked_once_and_its_noise_is_shared_by_all_of_a_task(over_tasks):
    model = composed(over_tasks=over_tasks).train()
    calls = []
    model.router.register_forward_hook(lambda *_: calls.append(1))
    images, missions, index, memory, _ = observations()
    begins = torch.zeros(T, S, N, dtype=torch.bool)
    equal = [value[:, :, :1].expand_as(value) for value in (images, index)]
    memory = memory[:, :1].expand_as(memory)
    logits, _, _ = model(IDS, equal[0], missions, equal[1], memory, begins)
    assert len(calls) == 1
    torch.testing.assert_close(logits[:, :, 0], logits[:, :, 1])
    again, _, _ = model(IDS, equal[0], missions, equal[1], memory, begins)
    assert not torch.isclose(logits, again).any()


@given(ids=st.lists(st.integers(0, T - 1), min_size=1, max_size=5))
def test_tasks_may_come_in_any_order_and_number(ids):
    model = composed(nn.Linear(3, 2))
    x = torch.randn(len(ids), 5, 3).double()
    for model.over_tasks in ("loop", "vmap"):
        found = model(torch.tensor(ids), x)
        assert isinstance(found, torch.Tensor)
        for row, task in enumerate(ids):
            torch.testing.assert_close(found[row], model.task_module(task)(x[row]))


def test_a_tied_parameter_is_composed_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(self.first(x))

    model = composed(Tied())
    x = torch.randn(T, 5, 3).double()
    assert "base.second.weight" not in dict(model.named_parameters())
    module = model.task_module(2)
    assert module.second.weight is module.first.weight
    for model.over_tasks in ("loop", "vmap"):
        torch.testing.assert_close(model(IDS, x)[0], module(x[0]))


def test_a_task_module_is_plain_and_apart():
    model = composed().train()
    module = model.task_module(1)
    assert type(module) is Policy
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.optim.SGD(module.parameters(), lr=1.0).step()
    fill(module)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    # Noise of a router in training has no part in it.
    again = model.task_module(1).state_dict()
    assert all(torch.equal(v, again[name]) for name, v in model.task_module(1).state_dict().items())


@pytest.mark.parametrize("kind", KINDS)
def test_copies_and_saved_states_are_the_same_model(kind):
    model, arguments = composed(kind=kind), observations()
    other = composed(kind=kind)  # sparse skills change other entries here
    for parameter in other.parameters():
        nn.init.normal_(parameter)
    other.load_state_dict(model.state_dict())
    expected = model(IDS, *arguments)
    for twin in (copy.deepcopy(model), other):
        found = twin(IDS, *arguments)
        assert all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))
    loss_of(copy.deepcopy(model)(IDS, *arguments)).backward()
    assert gradients(model) == {}


@pytest.mark.parametrize("over_tasks", ["loop", "vmap"])
def test_each_task_draws_noise_of_its_own(over_tasks):
    base = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    model = composed(base, router="shared", over_tasks=over_tasks).train()
    x = torch.randn(1, 20, 3).double().expand(T, -1, -1)
    found = model(IDS, x) == 0
    assert not torch.equal(found[0], found[1])


def test_half_precision_does_not_reach_the_composition():
    model = composed().float()
    *inputs, memory, begins = observations()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        parameters = model.task_parameters(IDS)
        half = model.run(parameters, *inputs, memory.float(), begins)[0]
    exact = model.task_parameters(IDS)
    assert all(torch.equal(value, exact[name]) for name, value in parameters.items())
    full = model.run(exact, *inputs, memory.float(), begins)[0]
    # bfloat16 keeps 8 bits: 0.4 % in each of some twenty layers.
    assert relative_error(half.float(), full) < 0.1


def test_the_default_is_a_loop_only_where_it_learns_on_a_cpu(monkeypatch):
    model, x = composed(nn.Linear(3, 2)), torch.randn(T, 5, 3).double()
    together, own = [], torch.func.vmap
    place = "mttl.skills.composed.composed_model.vmap"
    monkeypatch.setattr(place, lambda *args, **how: together.append(1) or own(*args, **how))
    model(IDS, x)
    assert not together
    with torch.no_grad():
        model(IDS, x)
        model(IDS[:1], x[:1])  # a single task needs no batching
    assert len(together) == 1


def test_parts_that_do_not_fit_are_errors():
    base = nn.Linear(3, 2)
    inventory = ModuleInventory(base, 4, kind="dense")
    router = PolytroponRouter(1, T, 1, 4)
    with pytest.raises(ValueError, match=r"n_heads \(2\) must be 1 for skills of whole modules"):
        ComposedModel(base, inventory, PolytroponRouter(1, T, 2, 4))
    network = nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2))
    with pytest.raises(ValueError, match="'1' keeps running statistics, which tasks"):
        ComposedModel(network, ModuleInventory(network, 4, kind="dense"), router)


@pytest.mark.parametrize("over_tasks", ["loop", "vmap"])
def test_arguments_and_ids_are_checked(over_tasks):
    model = composed(nn.Linear(3, 2), over_tasks=over_tasks)
    for shape in ((T + 1, 5, 3), ()):
        with pytest.raises(ValueError, match=r"argument 0 of shape .*must have 3 rows"):
            model(IDS, torch.zeros(shape).double())
    with pytest.raises(ValueError, match="task id 3 is out of range"):
        model(torch.tensor([3]), torch.zeros(1, 5, 3).double())
    with pytest.raises(ValueError, match="task id -1 is out of range"):
        model.task_module(-1)


class Tower(nn.Module):
    """Layers at two depths, one that holds parameters beside its children, and a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, 4))
        self.first = nn.Linear(4, 4)
        self.block = nn.Sequential(nn.Conv1d(2, 3, 2), nn.LayerNorm(3))
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.first.weight


def merged(inventory, base, weights):
    return inventory.merge(dict(base.named_parameters()), weights)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "residual"])
def test_a_parameter_reads_the_row_of_its_layer_or_of_the_model(kind):
    base = Tower()
    whole = ModuleInventory(base, 3, kind=kind)
    assert (whole.groups, whole.n_groups) == (("model",), 1)
    inventory = ModuleInventory(base, 3, kind=kind, granularity="layer")
    norm = [] if kind == "lora" else ["block.1"]  # it has vectors only
    assert list(inventory.groups) == ["", "first", "block.0", *norm]
    fill(inventory)
    weights = torch.rand(inventory.n_groups, 2, 1, 3)
    before = merged(inventory, base, weights)
    weights[1] += 1.0
    after = merged(inventory, base, weights)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"first.weight"} | ({"first.bias"} if kind != "lora" else set())


def test_low_rank_skills_leave_vectors_alone():
    base = Tower()
    inventory = ModuleInventory(base, 3, kind="lora", rank=2, init="kaiming")
    found = merged(inventory, base, torch.rand(1, 2, 1, 3))
    for name, parameter in base.named_parameters():
        unchanged = torch.equal(found[name][0], parameter)
        assert unchanged == (parameter.ndim < 2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_tensors_are_saved_under_the_paths_and_in_the_dtype_of_the_parameters(dtype):
    base = Tower().to(dtype)
    saved = ModuleInventory(base, 3, kind="sparse", sparsity=0.5).state_dict()
    paths = {f"skills.{name}" for name, _ in base.named_parameters()}
    assert {name.rpartition(".")[0] for name in saved} == paths
    for part, kept in (("values", dtype), ("indices", torch.int64)):
        assert saved[f"skills.first.weight.{part}"].shape == (3, 8)
        assert {tensor.dtype for name, tensor in saved.items() if name.endswith(part)} == {kept}


def test_mistakes_of_an_inventory_are_named():
    with pytest.raises(ValueError, match=r"granularity \('block'\) must be one of model, layer"):
        ModuleInventory(Tower(), 3, kind="dense", granularity="block")
    expected = "LayerNorm has no parameter that skills of kind 'lora' can change"
    with pytest.raises(ValueError, match=expected):
        ModuleInventory(nn.LayerNorm(3), 3, kind="lora")
    with pytest.raises(ValueError, match=r"kind \('ia3'\) cannot be composed over all param"):
        ModuleInventory(Tower(), 3, kind="ia3")
    with pytest.raises(TypeError, match="unexpected keyword argument 'rank'"):
        ModuleInventory(Tower(), 3, kind="dense", rank=2)
