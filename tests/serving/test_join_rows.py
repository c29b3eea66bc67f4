"""Tasks of models that differ in their rows only are answered by one model, and as before."""

from pathlib import Path

import pytest
import torch

import mttl
from helpers.new_tasks import train_source
from mttl.build.load_tasks import load_tasks
from mttl.serving.join_rows import join_rows
from mttl.serving.share_weights import share_weights

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
    with torch.no_grad():
        for name, shift in (("new", 3.0), ("copy", -3.0)):  # rows that answer otherwise
            for parameter in models[name].model.router.parameters():
                parameter[..., 0] += shift
        for parameter in (
            models["skills"].model.skilled_layers().popitem()[1].inventory.parameters()
        ):
            parameter += 0.1
    expected = {name: model.predict(name, WORDS) for name, model in models.items()}
    assert len(set(map(id, models.values()))) == 4
    assert share_weights([model.model for model in models.values()]) > 0
    joined = join_rows(models)
    assert {name: id(model) for name, model in joined.items()}.keys() == models.keys()
    assert len(set(map(id, joined.values()))) == 2
    assert joined["skills"] is models["skills"]
    assert set(joined["new"].tasks) == {"copy", "reverse", "number", "new"}
    names = [name for name in joined["new"].tasks for _ in WORDS]
    texts = WORDS * len(joined["new"].tasks)
    found = joined["new"].predict(names, texts)
    assert found == [answer for name in joined["new"].tasks for answer in expected[name]]
    assert joined["skills"].predict("skills", WORDS) == expected["skills"]


def test_models_without_common_weights_stay_apart(run: Path) -> None:
    one, other = mttl.load(run), mttl.load(run)
    models = {"copy": one, "reverse": other}
    assert join_rows(models) == models
