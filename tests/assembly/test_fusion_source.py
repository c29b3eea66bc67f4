"""The second stage takes skills and backbone of the first, and nothing that differs."""

from pathlib import Path

import pytest
import torch

from helpers.checksums import note_again
from helpers.command import train
from helpers.gyms import write_config, write_gym
from mttl.assembly.model import build_model, load_run
from mttl.checkpoints.saved_inventory import load_into, read_inventory
from mttl.config.load import load_config
from mttl.io.errors import CheckpointError, ConfigError


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A first stage with private skills, whose number is that of its tasks."""
    folder = tmp_path_factory.mktemp("first")
    config = write_config(
        folder / "tiny.yaml",
        write_gym(folder / "gym"),
        skills={"n_skills": "per_task"},
        router={"kind": "private"},
    )
    overrides = ("trainer.max_steps=2", "trainer.val_check_interval=2", "data.evaluate=[]")
    return train(config, "first", *overrides).path


def second(first: Path, *overrides: str):
    files = [str(first / "config.yaml"), "aggregation/fusion.yaml"]
    return load_config("+".join(files), [f"aggregation.source={first}", *overrides])


def test_skills_and_backbone_are_those_of_the_source(first: Path) -> None:
    config = second(first, "skills.n_skills=3")
    built = build_model(config, ["copy", "reverse"])  # two tasks may use three skills
    saved = read_inventory(first)
    layers = built.model.skilled_layers()
    for path, layer in layers.items():
        assert torch.equal(layer.inventory.skills.down, saved.skills[f"{path}.down"])
        assert torch.equal(layer.inventory.skills.up, saved.skills[f"{path}.up"])
    parameters = dict(load_run(first).model.backbone.named_parameters())
    assert torch.equal(built.model.backbone.shared.weight, parameters["shared.weight"])
    trained = {name for name, value in built.model.named_parameters() if value.requires_grad}
    assert trained
    assert all(".inventory.attention." in name for name in trained)


def test_what_differs_is_listed(first: Path) -> None:
    config = second(first, "skills.rank=3", "skills.n_skills=5", "backbone.config.d_ff=48")
    with pytest.raises(CheckpointError) as error:
        build_model(config, ["copy"])
    text = str(error.value)
    assert "skills.rank: 2 there, 3 here" in text
    assert "skills.n_skills: 3 there, 5 here" in text
    assert "backbone.config: {" in text
    assert "aggregation/fusion.yaml" in text


def test_inputs_look_as_skills_know_them(first: Path) -> None:
    with pytest.raises(CheckpointError, match=r"data\.prefix: 'name' there, 'none' here"):
        build_model(second(first, "skills.n_skills=3", "data.prefix=none"), ["copy"])


def test_no_run_and_a_fusion_are_refused(first: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no trained inventory"):
        build_model(second(first, f"aggregation.source={tmp_path}"), ["copy"])
    meta = first / "skills" / "meta.json"
    text = meta.read_text()
    try:
        meta.write_text(text.replace('"kind": "mixture"', '"kind": "fusion", "source": "x"'))
        note_again(first / "skills")
        with pytest.raises(CheckpointError, match="is a fusion itself; name the run of its skills"):
            build_model(second(first, "skills.n_skills=3"), ["copy"])
    finally:
        meta.write_text(text)


def test_a_fusion_is_not_loaded_from_plain_skills(first: Path) -> None:
    built = build_model(second(first, "skills.n_skills=3"), ["copy"])
    with pytest.raises(CheckpointError, match=r"skills, missing: .*attention"):
        load_into(built.model, read_inventory(first))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("router.kind=shared", r"router\.kind \(shared\) must be average for aggregation fusion"),
        ("skills.n_heads=2", r"skills\.n_heads \(2\) must be 1 for aggregation fusion"),
        (
            "skills.identical_init=true",
            r"skills\.identical_init \(True\) must be False for aggregation fusion",
        ),
        ("backbone.train=true", r"backbone\.train \(True\) must be False for aggregation fusion"),
    ],
)
def test_sections_that_do_not_go_with_it(first: Path, override: str, message: str) -> None:
    extra = ["skills.n_skills=1"] if "shared" in override else []
    with pytest.raises(ConfigError, match=message):
        second(first, override, *extra)
