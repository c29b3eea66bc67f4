"""Tasks of models that differ in their rows only are answered by one model, and as before."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

import mttl
from helpers.new_tasks import train_source
from mttl.assembly.load_tasks import load_tasks
from mttl.routing import TaskRouter
from mttl.serving.run_server import share_backbone

WORDS = ["ab", "c", "abca", "bb", "ca", "a"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_source(tmp_path_factory.mktemp("join"))


@pytest.fixture(scope="module")
def kept(run: Path) -> list[str]:
    """Two tasks of which a row was trained, one of them known to the run; one of all skills."""
    folders = []
    for task, mode in (("new", "router_only"), ("copy", "router_only"), ("skills", "all")):
        pairs = [(word, "b") for word in WORDS]
        adapted = mttl.adapt_to(run, pairs, task=task, mode=mode, max_steps=2)
        adapted.save(run / "models" / task)
        folders.append(str(run / "models" / task))
    return folders


def test_rows_are_joined_and_answers_stay(run: Path, kept: list[str]) -> None:
    models, _ = load_tasks(str(run), kept, None)
    places = [{t.data_ptr() for t in m.model.parameters()} for m in models.values()]
    assert all(one & places[0] for one in places)  # the backbone is held once
    with torch.no_grad():
        for name, shift in (("new", 3.0), ("copy", -3.0)):  # rows that answer otherwise
            for parameter in models[name].model.router.parameters():
                parameter.data = parameter.clone()
                parameter[..., 0] += shift
        for parameter in (
            models["skills"].model.skilled_layers().popitem()[1].inventory.parameters()
        ):
            parameter.data = parameter + 0.1
    expected = {name: model.predict(name, WORDS) for name, model in models.items()}
    assert len(set(map(id, models.values()))) == 4
    joined = share_backbone(models)
    assert {name: id(model) for name, model in joined.items()}.keys() == models.keys()
    assert len(set(map(id, joined.values()))) == 2
    assert joined["skills"] is models["skills"]
    assert set(joined["new"].tasks) == {"copy", "reverse", "number", "new"}
    names = [name for name in joined["new"].tasks for _ in WORDS]
    texts = WORDS * len(joined["new"].tasks)
    found = joined["new"].predict(names, texts)
    assert found == [answer for name in joined["new"].tasks for answer in expected[name]]
    assert joined["skills"].predict("skills", WORDS) == expected["skills"]


class Described(TaskRouter):
    """A router that sees the descriptions of tasks, and no prompt."""

    def forward(self, task_ids: Tensor, descriptions: Tensor) -> Tensor:
        weights = descriptions[None, :, None, : self.n_skills].softmax(-1)
        return weights.expand(self.n_groups, -1, self.n_heads, -1)

    def for_new_tasks(self, n_tasks: int, *, init: str = "mean") -> "Described":
        raise NotImplementedError


def test_routers_that_see_descriptions_are_joined(run: Path, kept: list[str]) -> None:
    models, _ = load_tasks(str(run), kept[:2], None)
    for place, model in enumerate({id(model): model for model in models.values()}.values()):
        old = model.model.router
        router = Described(old.n_groups, old.n_tasks, old.n_heads, old.n_skills)
        router.show("descriptions", torch.randn(old.n_tasks, 8) + place)
        model.model.router = router.eval()
    expected = {name: model.predict(name, WORDS) for name, model in models.items()}
    joined = share_backbone(models)
    assert len(set(map(id, joined.values()))) == 1
    assert {name: model.predict(name, WORDS) for name, model in joined.items()} == expected


def test_models_without_common_weights_stay_apart(run: Path) -> None:
    one, other = mttl.load(run), mttl.load(run)
    models = {"copy": one, "reverse": other}
    assert share_backbone(models) == models
