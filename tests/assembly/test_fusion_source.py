"""Training from the skills of an earlier run, and a second stage that fuses them."""

import shutil
from pathlib import Path

import pytest
import torch

from helpers.command import note_again, train
from helpers.gyms import write_config, write_gym
from mttl.assembly.model import build_model, load_run
from mttl.checkpoints.saved_inventory import load_into, read_inventory
from mttl.config.load import load_config
from mttl.io.errors import CheckpointError
from mttl.merging.fold import average_mixing, fold, unfold

SHORT = ("trainer.max_steps=2", "trainer.val_check_interval=2", "data.evaluate=[]")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A first stage with private skills, whose number is that of its tasks."""
    folder = tmp_path_factory.mktemp("first")
    own = {"skills": {"n_skills": "per_task"}, "router": {"kind": "private"}}
    config = write_config(folder / "tiny.yaml", write_gym(folder / "gym"), **own)
    return train(config, "first", *SHORT).path


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


def test_what_does_not_fit_is_refused(first: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(first, tmp_path / "fusion"))
    meta = other / "skills" / "meta.json"
    meta.write_text(meta.read_text().replace('"mixture"', '"fusion", "source": "x"'))
    note_again(meta.parent)
    for overrides, messages in (
        (
            ["skills.rank=3", "skills.n_skills=5", "backbone.config.d_ff=48"],
            [
                *("skills.rank (2 there, 3 here)", "skills.n_skills (3 there, 5 here)"),
                *("backbone.config.d_ff (32 there, 48 here)", "aggregation/fusion.yaml"),
            ],
        ),
        (["skills.n_skills=3", "data.prefix=none"], ["data.prefix (name there, none here)"]),
        ([f"aggregation.source={tmp_path}"], ["has no trained skills"]),
        ([f"aggregation.source={other}"], ["' is a fusion; name the run whose skills it fused"]),
    ):
        with pytest.raises(CheckpointError) as error:
            build_model(second(first, *overrides), ["copy"])
        assert [part for part in messages if part not in str(error.value)] == []
    built = build_model(second(first, "skills.n_skills=3"), ["copy"])
    with pytest.raises(CheckpointError, match=r"skills, missing: .*attention"):
        load_into(built.model, read_inventory(first))


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a router that learned, whose backbone was trained jointly."""
    folder = tmp_path_factory.mktemp("learned")
    config = write_config(folder / "tiny.yaml", write_gym(folder / "gym"))
    return train(config, "first", *SHORT).path


def test_the_average_of_a_run_is_trained_further(learned, caplog) -> None:
    """It starts as the average of the run's skills, which folding computes by itself."""
    run, saved = load_run(learned), read_inventory(learned)
    given = [f"run.start={learned}", f"skills.n_skills={run.model.router.n_skills}"]
    files = f"{learned}/config.yaml+router/average.yaml"
    config = load_config(files, given)
    built = build_model(config, run.tasks)
    assert "data.prefix" not in caplog.text
    private = load_config(f"{learned}/config.yaml+router/private.yaml", given[:1])
    with pytest.raises(CheckpointError, match=r"router\.kind \(polytropon there, private here\)"):
        build_model(private, [*run.tasks, "third"])
    build_model(load_config(files, [*given, "data.prefix=code"]), run.tasks)
    told = f"were trained with data.prefix={config.data.prefix}, and training continues with code"
    assert told in caplog.text  # inputs would begin otherwise
    ids = torch.arange(len(run.tasks))
    rows = {"input_ids": torch.full((len(ids), 4), 70), "labels": torch.full((len(ids), 3), 80)}
    folded = fold(run.model, average_mixing(run.model.router))
    expected = folded.backbone(**rows).logits
    unfold(folded)
    # Another order of sums, in single precision.
    found = built.model.eval()(ids, **rows).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    settings = ["router.kind=average", f"run.start={learned}", "optim.lr=1e-3", *SHORT]
    train(learned / "config.yaml", "again", *settings)
    moved = read_inventory(learned.parent / "again")
    assert moved.skills.keys() == saved.skills.keys()
    assert not any(torch.equal(moved.skills[name], saved.skills[name]) for name in saved.skills)
    changes = [(moved.skills[name] - one).abs().max() for name, one in saved.skills.items()]
    assert max(changes) < 0.01  # two small steps from there, not a draw
