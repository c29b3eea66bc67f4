"""Every shipped kind of skill is adapted: a mode trains what it names, and is undone."""

from collections.abc import Iterator
from typing import get_args

import pytest
import torch
from torch import Tensor

from helpers.adapted import changed, mixed_by, role_of, snapshot, train
from helpers.backbones import batch
from helpers.fragments import fragments, frozen_config, logits, trained
from helpers.skills import spread
from mttl.adaptation.modes import TRAINED_ROLES, adapted
from mttl.assembly.model import Built
from mttl.config.section import AdaptMode

MODES = get_args(AdaptMode)
KINDS = fragments("skills")
TASK_IDS = torch.tensor([0, 1, 1, 0])
INPUTS = batch(len(TASK_IDS))


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
def run(request: pytest.FixtureRequest) -> tuple[Built, Tensor]:
    """A model with skills of a kind, and the logits that it had before they changed anything.

    All modes are tried on one model, since each must leave it as it was.
    """
    built, bare = trained(frozen_config(request.param))
    spread(built.model.router)
    # Of a frozen backbone a part was trained: flags to bring back are of both sorts.
    built.model.backbone.get_input_embeddings().requires_grad_(True)
    return built, bare


@pytest.fixture
def built(run: tuple[Built, Tensor]) -> Iterator[Built]:
    """The same model, which must afterwards be what it was, bit for bit."""
    model = run[0].model.eval()
    before, router = snapshot(model), model.router
    flags = {name: value.requires_grad for name, value in model.named_parameters()}
    yield run[0]
    assert model.router is router
    assert not model.training
    assert model.state_dict().keys() == before.keys()
    assert changed(model, before) == set()
    assert {name: value.requires_grad for name, value in model.named_parameters()} == flags
    assert all(value.grad is None for value in model.parameters())


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
        named = {
            name
            for name, value in parameters.items()
            if roles[name] in TRAINED_ROLES[mode]
            and (roles[name] != "backbone" or value is embeddings)
        }
        assert {name for name, value in parameters.items() if value.requires_grad} == named
        begun = snapshot(model)
        if named:
            # What a fresh skill multiplies by 0 has no gradient before the second step.
            train(model, TASK_IDS, INPUTS, n_steps=2 if mode == "from_scratch" else 1)
        assert changed(model, begun) == named


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
    expected = mixed_by(built.model, row, INPUTS)
    assert not torch.allclose(logits(built), expected)  # those of trained tasks are others
    with adapted(built.model, mode, 2) as model:
        # Rounding: several rows are mixed by another kernel than one.
        torch.testing.assert_close(model(TASK_IDS, **INPUTS).logits, expected)


# Every layer sees a prompt, so that no fresh one changes nothing.
@pytest.mark.parametrize(
    ("run", "mode", "init"),
    [
        row
        for row in drawn(("from_scratch", "mean"), ("full", "private_skill"))
        if "prompt" not in row[0]
    ],
    indirect=["run"],
    scope="module",
)
@torch.no_grad()
def test_fresh_skills_are_the_bare_backbone_at_first(mode, init, built, run) -> None:
    with adapted(built.model, mode, 2, init=init) as model:
        assert torch.equal(model(TASK_IDS, **INPUTS).logits, run[1])
