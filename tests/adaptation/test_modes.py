"""Adaptation to new tasks trains what it names and nothing else."""

import copy
from collections.abc import Iterator
from typing import Any, get_args

import pytest
import torch

from helpers.adapted import changed, mixed_by, role_of, snapshot, train
from helpers.backbones import batch, tiny_t5
from helpers.experts import N_EXPERTS, token_model
from helpers.fragments import fragments, frozen_config, logits, trained
from helpers.modes import adapted
from helpers.skills import LEARNED, ROUTERS, skilled, spread
from mttl.adaptation.modes import TRAINED_ROLES, apply_mode, count_trained
from mttl.assembly.model import Built
from mttl.config.section import AdaptMode, RowInit
from mttl.io.errors import ConfigError
from mttl.routing import ArrowRouter, CoefficientRouter, PolytroponRouter

MODES = get_args(AdaptMode)
TASK_IDS = torch.tensor([0, 1, 1])
FIRST = torch.zeros_like(TASK_IDS)
INPUTS = {
    "input_ids": torch.arange(15).view(3, 5) % 11 + 2,
    "labels": torch.arange(9).view(3, 3) % 7 + 2,
}


@pytest.mark.parametrize(
    ("mode", "init"), [("from_scratch", "mean"), ("skills_only", "private_skill")]
)
def test_members_are_not_drawn_anew(mode: AdaptMode, init: RowInit) -> None:
    model = token_model(tiny_t5(), router=lambda place: ArrowRouter(place.in_features, N_EXPERTS))
    with pytest.raises(ConfigError, match="' would re-initialise the members whose weights route"):
        apply_mode(model, mode, init=init)
    with pytest.raises(ConfigError, match=r"does not have. Use 'skills_only', or a run with a"):
        apply_mode(model, "router_only")


def test_fresh_skills_that_begin_alike_do_so_again() -> None:
    model = skilled(tiny_t5())
    inventories: list[Any] = [layer.inventory for layer in model.skilled_layers().values()]
    for inventory in inventories:
        inventory.make_identical()
    before = [inventory.down.clone() for inventory in inventories]
    apply_mode(model, "from_scratch")
    for inventory, down in zip(inventories, before, strict=True):
        assert not torch.equal(inventory.down, down)
        assert torch.equal(inventory.down, inventory.down[:1].expand_as(down))


@pytest.mark.parametrize("mode", ["skills_only", "all", "full"])
def test_routers_of_tokens_are_brought_back_where_experts_were_drawn_anew(mode: AdaptMode) -> None:
    model = token_model(tiny_t5())
    before = snapshot(model)
    routers = tuple(f"{name}.router." for name in model.token_layers())
    assert routers
    with adapted(model, mode, init="private_skill"):
        reinitialised = [name for name in changed(model, before) if any(r in name for r in routers)]
        assert bool(reinitialised) == (mode != "skills_only")  # which leaves them as they are
    assert changed(model, before) == set()


@pytest.mark.parametrize("mode", ["zero_shot", "skills_only", "all", "full"])
def test_rows_that_are_fixed_do_not_begin_fresh(mode: AdaptMode) -> None:
    """They would keep equal weights of all skills."""
    model = skilled(tiny_t5(), router="expert")
    with pytest.raises(ConfigError, match="init 'fresh' needs learned routing weights, and those"):
        apply_mode(model, mode, init="fresh")
    apply_mode(model, "from_scratch", init="fresh")


def test_parts_of_the_backbone_that_were_trained_are_those_that_full_trains() -> None:
    model = skilled(tiny_t5())
    own = {name: value for name, value in model.named_parameters() if role_of(name) == "backbone"}
    parts = {name for name in own if "decoder.block.1." in name}
    for name in parts:
        own[name].requires_grad_(True)

    def trained() -> set[str]:
        return {name for name, value in own.items() if value.requires_grad}

    with adapted(model, "all"):
        assert trained() == set()
    with adapted(model, "full"):
        assert trained() == parts
    assert trained() == parts
    for name in parts:
        own[name].requires_grad_(False)
    with adapted(model, "full"):
        assert trained() == set(own)


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("mode", "router"),
    [
        (mode, router)
        for number, router in enumerate(LEARNED)
        for turn, mode in enumerate(mode for mode in MODES if TRAINED_ROLES[mode])
        if (number + turn) % 2
    ],
)
def test_exactly_the_named_tensors_change(mode: AdaptMode, router: str) -> None:
    model = apply_mode(skilled(tiny_t5(), router=router), mode, 2)
    if isinstance(model.router, PolytroponRouter):  # a rounded row may use no skill, and train none
        model.router.logits.data.abs_()
    before = snapshot(model)
    # Decay moves what a router leaves without a gradient: a skill that is not drawn, and queries
    # where large weights of skills saturate attention.
    train(model, TASK_IDS, INPUTS, n_steps=2, weight_decay=0.01)
    parameters = dict(model.named_parameters(remove_duplicate=False))  # tied ones by every name
    named = {name for name in parameters if role_of(name) in TRAINED_ROLES[mode]}
    assert changed(model, before) == named


def test_router_only_equals_a_loop_over_the_same_logits() -> None:
    """By hand: one tensor of logits, plain gradient descent, sigmoid and row sums."""
    model = apply_mode(skilled(tiny_t5(), router="polytropon-plain"), "router_only", 2)
    model.train()
    logits = model.router.logits.detach().clone().requires_grad_()
    reference = copy.deepcopy(model)
    for _ in range(3):
        active = logits[:, TASK_IDS].sigmoid()
        routing = reference.route(TASK_IDS)
        routing.weights = (active / active.sum(-1, keepdim=True)).unbind(0)
        with reference.slot.use(routing):
            expected = reference.backbone(**INPUTS).loss
        (gradient,) = torch.autograd.grad(expected, [logits])
        with torch.no_grad():
            logits -= 0.5 * gradient
        model.zero_grad()
        loss = model(TASK_IDS, **INPUTS).loss
        loss.backward()
        with torch.no_grad():
            model.router.logits -= 0.5 * model.router.logits.grad
        torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(model.router.logits.detach(), logits.detach())


# How the published baselines treat a new task.


def test_the_average_needs_no_training() -> None:
    """MHR-μ before its first step: one mean skill for any task."""
    model = skilled(tiny_t5()).eval()
    row = torch.full((1, model.router.n_skills), 1 / model.router.n_skills)
    expected = mixed_by(model, row, INPUTS)
    apply_mode(model, "zero_shot", init="average")
    torch.testing.assert_close(model(FIRST, **INPUTS).logits, expected)
    assert not any(value.requires_grad for value in model.parameters())
    with pytest.raises(ConfigError, match=r"does not have. Use 'skills_only', or a run with a"):
        apply_mode(skilled(tiny_t5()), "router_only", init="average")


@pytest.mark.every(2)
@pytest.mark.parametrize("mode", ["zero_shot", "skills_only", "all", "full"])
def test_a_new_task_of_expert_has_the_row_that_its_matrix_gives(mode: AdaptMode) -> None:
    model = skilled(tiny_t5(), router="expert").eval()
    given = torch.eye(model.router.n_skills)[1:2] * 3
    expected = mixed_by(model, given / 3, INPUTS)
    apply_mode(model, mode, init="expert_row", rows=given)
    # Rounding: gradients of the backbone choose another kernel.
    torch.testing.assert_close(model(FIRST, **INPUTS).logits, expected)
    if mode != "zero_shot":
        before = snapshot(model)
        train(model, FIRST, INPUTS)
        after = model.state_dict()
        stacks = [name for name in after if ".inventory." in name and "support" not in name]
        for name in stacks:
            moved = [
                not torch.equal(old, new)
                for old, new in zip(before[name], after[name], strict=True)
            ]
            assert moved == [n == 1 for n in range(model.router.n_skills)], name


@pytest.mark.every(2)
@pytest.mark.parametrize("mode", ["skills_only", "all", "from_scratch", "full"])
def test_a_new_task_of_private_learns_with_a_fresh_skill_as_if_it_were_alone(mode) -> None:
    """Against a model of a single skill on the same backbone, with identical initialisation."""
    many, one = (skilled(tiny_t5(), router="expert", n_skills=k) for k in (3, 1))
    before = snapshot(many)
    losses, counts = [], []
    for model in (many, one):
        with adapted(model, mode, init="private_skill") as own:
            stacks = [
                value
                for layer in own.skilled_layers().values()
                for value in layer.inventory.parameters()
            ]
            for value in stacks:
                drawn = torch.linspace(-0.1, 0.1, value[0].numel()).view_as(value[0])
                value.data.copy_(drawn.expand_as(value))
            train(own, FIRST, INPUTS, n_steps=2)
            losses.append(own.eval()(FIRST, **INPUTS).loss)
            counts.append(count_trained(own))
    torch.testing.assert_close(losses[0], losses[1])
    backbone = sum(x.numel() for n, x in one.named_parameters() if role_of(n) == "backbone")
    assert counts[0] == counts[1]
    assert counts[1] == sum(x.numel() for x in stacks) + (mode == "full") * backbone
    assert all(torch.equal(many.state_dict()[name], value) for name, value in before.items())


def test_a_row_of_polytropon_is_learned_over_skills_of_any_router() -> None:
    model = skilled(tiny_t5(), router="expert")
    before = snapshot(model)
    with adapted(model, "router_only", init="learned") as rows:
        assert isinstance(rows.router, PolytroponRouter)
        assert count_trained(rows) == rows.router.logits.numel()
        train(rows, FIRST, INPUTS)
        assert rows.router.logits.grad is not None
    after = model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


# C-Poly: a new task has the common skills, and where skills are trained fresh ones of its own.


@pytest.mark.every(3)
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "average"])
def test_a_new_task_of_c_poly_has_skills_of_its_own_where_skills_are_trained(mode) -> None:
    model = skilled(tiny_t5(), router="c_poly", n_skills=5)
    own, trained = [3], "skills" in TRAINED_ROLES[mode]  # where the first task had its own
    before = snapshot(model)
    with adapted(model, mode) as new:
        assert new.router.allowed.tolist() == [[1, 1, 1, float(trained), 0]]
        fresh = snapshot(new)
        for name, value in fresh.items():
            if role_of(name) != "skills" or mode == "from_scratch":
                continue
            for skill, (now, then) in enumerate(zip(value, before[name], strict=True)):
                assert torch.equal(now, then) == (not trained or skill not in own)
        stacks = [value for name, value in new.named_parameters() if role_of(name) == "skills"]
        assert {len(value) for value in stacks} == {5}
        # It adds nothing at first: what is mixed is the common part, with the weight that is left.
        assert all(not value[3].any() for name, value in fresh.items() if trained and "up" in name)
        n_logits = new.router.n_groups * (3 + trained)
        router = n_logits * ("router" in TRAINED_ROLES[mode])
        backbone = sum(x.numel() for n, x in new.named_parameters() if role_of(n) == "backbone")
        skills = sum(value[:4].numel() for value in stacks) * trained
        assert count_trained(new) == skills + router + (mode == "full") * backbone
        if TRAINED_ROLES[mode]:
            train(new, FIRST, INPUTS)
            for name, value in snapshot(new).items():
                if role_of(name) == "skills" and "up" in name:
                    moved = [
                        not torch.equal(*pair) for pair in zip(value, fresh[name], strict=True)
                    ]
                    assert moved == [*[trained] * 4, False]
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())


def test_a_new_task_of_c_poly_without_own_skills_is_polytropons() -> None:
    """The same common skills under the same rows, whatever else the run has."""
    model = skilled(tiny_t5(), router="c_poly", n_skills=5).eval()
    row = model.router.logits[..., :3].mean(1).sigmoid()
    row = torch.cat([row / row.sum(-1, keepdim=True), torch.zeros(*row.shape[:-1], 2)], -1)
    expected = mixed_by(model, row.detach().unsqueeze(1), INPUTS)
    for mode in ("zero_shot", "router_only"):
        with adapted(model, mode) as new:
            logits = new.eval()(FIRST, **INPUTS).logits
            torch.testing.assert_close(logits, expected)


@pytest.mark.every(3)
@pytest.mark.parametrize("init", ["nearest_task", "best_coefficients"])
@pytest.mark.parametrize("router", ROUTERS)
def test_a_new_task_begins_as_a_trained_one(router: str, init: RowInit) -> None:
    model = skilled(tiny_t5(), router=router).eval()
    known, digest = model.router, snapshot(model)
    mode: AdaptMode = "router_only" if init == "best_coefficients" else "zero_shot"
    for task in range(known.n_tasks):
        with adapted(model, mode, 2, init=init, rows=torch.tensor([[float(task)]])):
            if init == "best_coefficients":
                assert type(model.router) is CoefficientRouter
                assert [p.requires_grad for p in model.router.parameters()] == [True]
            found, expected = model.router.matrix(), known.matrix()[:, [task, task]]
            # Rounding: one row alone may be normalised by another kernel.
            torch.testing.assert_close(found, expected)
    assert changed(model, digest) == set()


@pytest.mark.parametrize("init", ["nearest_task", "best_coefficients", "expert_row", "factors"])
def test_given_rows_must_be_given(init: RowInit) -> None:
    with pytest.raises(ValueError, match=f"init '{init}' needs rows"):
        apply_mode(skilled(tiny_t5()), "zero_shot", init=init)


# Every shipped kind of skill: a mode trains what it names, and is undone.

KINDS = fragments("skills")
FOUR_IDS = torch.tensor([0, 1, 1, 0])
FOUR_INPUTS = batch(len(FOUR_IDS))


def drawn(*values: object, each: int = 1) -> list[tuple[object, ...]]:
    """Return every kind with some of the values in turn."""
    turns = [
        (kind, (number + 3 * more) % len(values))
        for number, kind in enumerate(KINDS)
        for more in range(each)
    ]
    return [
        (kind, *(value if isinstance(value := values[turn], tuple) else (value,)))
        for kind, turn in turns
    ]


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest) -> Built:
    """A model with skills of a kind.

    All modes are tried on one model, since each must leave it as it was.
    """
    built, _ = trained(frozen_config(request.param))
    spread(built.model.router)
    # Of a frozen backbone a part was trained: flags to bring back are of both sorts.
    built.model.backbone.get_input_embeddings().requires_grad_(True)
    return built


@pytest.fixture
def built(run: Built) -> Iterator[Built]:
    """The same model, which must afterwards be what it was, bit for bit."""
    model = run.model.eval()
    before, router = snapshot(model), model.router
    flags = {name: value.requires_grad for name, value in model.named_parameters()}
    yield run
    assert model.router is router
    assert not model.training
    assert model.state_dict().keys() == before.keys()
    assert changed(model, before) == set()
    assert {name: value.requires_grad for name, value in model.named_parameters()} == flags
    assert all(value.grad is None for value in model.parameters())


@pytest.mark.every(3)
@pytest.mark.parametrize(("run", "mode"), drawn(*MODES, each=2), indirect=["run"], scope="module")
def test_exactly_the_named_parameters_are_trained(mode: AdaptMode, built: Built) -> None:
    torch.manual_seed(0)  # routers and masks draw
    known = snapshot(built.model)
    with adapted(built.model, mode, 2) as model:
        parameters = dict(model.named_parameters(remove_duplicate=False))  # under every name
        roles = {name: role_of(name) for name in model.state_dict()}
        renewed = {name for name in changed(model, known) if roles[name] != "router"}
        skills = {name for name in parameters if roles[name] == "skills"}
        assert renewed == (skills if mode == "from_scratch" else set())
        embeddings = model.backbone.get_input_embeddings().weight  # the part that was trained
        layers = model.skilled_layers().values() if mode not in ("from_scratch", "full") else ()
        kept = {one for layer in layers for one in layer.inventory.common_parameters}
        named = {
            name
            for name, value in parameters.items()
            if roles[name] in TRAINED_ROLES[mode]
            and (roles[name] != "backbone" or value is embeddings)
            and name.rpartition(".")[2] not in kept
        }
        assert {name for name, value in parameters.items() if value.requires_grad} == named
        begun = snapshot(model)
        if named:
            # What a fresh skill multiplies by 0 has no gradient before the second step.
            train(model, FOUR_IDS, FOUR_INPUTS, n_steps=2 if mode == "from_scratch" else 1)
        assert changed(model, begun) == named


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("run", "mode"), drawn("zero_shot", "average"), indirect=["run"], scope="module"
)
@torch.no_grad()
def test_a_new_task_mixes_by_the_row_that_the_mode_gives(mode: AdaptMode, built: Built) -> None:
    known = built.model.router.logits
    row = torch.full_like(known[:1, :1], 1 / built.model.router.n_skills)
    if mode == "zero_shot":
        row = known.mean(1, keepdim=True).sigmoid()
        row /= row.sum(-1, keepdim=True)
    expected = mixed_by(built.model, row, FOUR_INPUTS)
    assert not torch.allclose(logits(built), expected)  # those of trained tasks are others
    with adapted(built.model, mode, 2) as model:
        # Rounding: several rows are mixed by another kernel than one.
        torch.testing.assert_close(model(FOUR_IDS, **FOUR_INPUTS).logits, expected)
