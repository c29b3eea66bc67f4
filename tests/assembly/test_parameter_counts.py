"""How many parameters every shipped kind of skill has: built, planned, reported and trained."""

import pytest
from torch import Tensor

from helpers.fragments import TASKS, fragments, frozen_config
from helpers.modes import adapted
from mttl.adaptation.modes import TRAINED_ROLES, count_trained
from mttl.assembly.model import build_model
from mttl.assembly.planning.memory_plan import fake_model
from mttl.config.schema import Config
from mttl.skills import SkilledModel
from mttl.training.report import attachment_table

KINDS = fragments("skills")


def own_parameters(model: SkilledModel) -> dict[str, Tensor]:
    """Return the parameters of skills by name, what layers share once."""
    return {name: p for name, p in model.named_parameters() if ".inventory." in name}


def size(parameters: dict[str, Tensor]) -> int:
    return sum(value.numel() for value in parameters.values())


def of_size(kind: str, n_skills: int) -> Config:
    """Return the configuration of a kind with some skills; where they are stacked, one below."""
    settings = [f"skills.stages={[1, n_skills - 1]}"] if "stacked" in kind else []
    return frozen_config(kind, f"skills.n_skills={n_skills}", *settings)


@pytest.mark.every(2)
@pytest.mark.parametrize("kind", KINDS)
def test_each_skill_has_as_many_parameters_as_any_other(kind: str) -> None:
    two, three = (own_parameters(fake_model(of_size(kind, k), TASKS)) for k in (2, 3))
    assert two.keys() == three.keys()
    # What does not grow with the skills is common to them.
    stacks = [name for name, value in two.items() if value.shape != three[name].shape]
    slices = [(value.shape[0], value[0].shape) for value in map(three.__getitem__, stacks)]
    assert slices == [(3, two[name][0].shape) for name in stacks]
    one_skill = sum(shape.numel() for _, shape in slices)
    assert size(three) - size(two) == one_skill > 0


@pytest.mark.every(3)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_planned_told_and_trained_is_what_is_built(kind: str) -> None:
    config = of_size(kind, 3)
    built = build_model(config, TASKS)
    model, planned = built.model, fake_model(config, TASKS)
    shapes = [
        {name: (value.shape, value.dtype, value.requires_grad) for name, value in parameters}
        for parameters in (model.named_parameters(), planned.named_parameters())
    ]
    assert shapes[0] == shapes[1]
    skills, router = own_parameters(model), dict(model.router.named_parameters())
    assert sum(layer.n_parameters for layer in built.attachment.layers) == size(skills)
    n_trained, n_all = size(skills) + size(router), size(dict(model.named_parameters()))
    told = attachment_table(built.attachment, model).caption
    assert f" {n_trained:,} of {n_all:,} parameters are trained." in str(told)

    for mode in TRAINED_ROLES:
        with adapted(model, mode):
            trained = (value for value in model.parameters() if value.requires_grad)
            assert count_trained(model) == sum(value.numel() for value in trained), mode
    with adapted(model, "skills_only", init="private_skill"):  # it has one skill
        trained = {name: value for name, value in skills.items() if value.requires_grad}
        assert 3 * count_trained(model) == size(trained) > 0
