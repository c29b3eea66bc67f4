"""A run's task as a task vector, against folding it into the run's own backbone."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from helpers.command import note_again, train
from helpers.gyms import TINY_T5, write_config, write_gym
from helpers.stored_forms import store
from mttl.assembly.model import load_run
from mttl.io.errors import CheckpointError
from mttl.merging.fold import fold, task_mixing
from mttl.merging.recipe import Recipe
from mttl.merging.run import merge_models
from mttl.merging.weights_folder import LoadedNames, Weights
from mttl.models.backbone import build_random

TASK = "reverse"
KINDS = {
    "lora": {"kind": "lora", "n_skills": 3, "n_heads": 2, "rank": 2, "targets": ["all"]},
    "ia3": {"kind": "ia3", "n_skills": 3, "targets": ["attention"]},
    "dense": {"kind": "dense", "n_skills": 3, "targets": ["attention"]},
    "intrinsic": {"kind": "intrinsic", "n_skills": 3, "dimension": 30, "targets": ["attention"]},
    "sparse": {"kind": "sparse", "n_skills": 3, "sparsity": 0.9, "targets": ["attention"]},
}


def save_base(folder: Path, seed: int) -> Path:
    torch.manual_seed(seed)
    build_random("t5", TINY_T5["config"]).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base(tmp_path_factory.mktemp("base") / "model", 0)


def make_run(folder: Path, backbone: dict[str, object], skills: dict[str, object]) -> Path:
    """Train a few large steps, so that skills are far from where they started."""
    gym = write_gym(folder / "gym")
    config = write_config(folder / "tiny.yaml", gym, optim={"lr": 0.1})
    # A later file that names another kind replaces the section.
    sections = {"backbone": backbone, "skills": skills}
    (folder / "own.yaml").write_text(json.dumps(sections))
    overrides = ("trainer.max_steps=3", "trainer.val_check_interval=3", "data.evaluate=[]")
    return train(f"{config}+{folder / 'own.yaml'}", "run", *overrides).path


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Path:
    folder = tmp_path_factory.mktemp("frozen")
    return make_run(folder, pretrained(base), KINDS["lora"])


def pretrained(base: Path) -> dict[str, object]:
    return {"kind": "pretrained", "name": str(base), "tokenizer": "byte"}


def recipe(base: Path, run: Path, weight: float = 1.0, task: str = TASK) -> Recipe:
    return Recipe.model_validate(
        {
            "base": {"model": str(base)},
            "models": [{"run": str(run), "task": task, "weight": weight}],
            "method": {"kind": "arithmetic"},
        }
    )


def check(base: Path, run: Path, out: Path) -> None:
    merge_models(recipe(base, run), out)
    built = load_run(run)
    start = Weights(base, LoadedNames(base))
    folded = fold(built.model, task_mixing(built.model.router, built.tasks.index(TASK))).backbone
    found = Weights(out, start.loaded)
    changed = 0
    for name, expected in folded.named_parameters():
        # θ0 + τ in float32, once rounded on either side.
        torch.testing.assert_close(found[name], expected.detach(), rtol=1e-5, atol=1e-6)
        changed += not torch.equal(start[name], expected)
    assert changed > 3


@pytest.mark.every(2)
@pytest.mark.parametrize("kind", ["ia3", "dense", "sparse", "intrinsic"])
def test_skills_on_a_frozen_backbone(kind: str, base: Path, tmp_path: Path) -> None:
    check(base, make_run(tmp_path, pretrained(base), KINDS[kind]), tmp_path / "out")


def test_a_trained_backbone_is_part_of_the_change(tmp_path: Path) -> None:
    run = make_run(tmp_path, {**TINY_T5, "train": True}, KINDS["lora"])
    check(save_base(tmp_path / "start", 7), run, tmp_path / "out")


GPT2 = {"vocab_size": 384, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 512}
IDS = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}


@pytest.mark.parametrize(("family", "config"), [("t5", TINY_T5["config"]), ("gpt2", GPT2 | IDS)])
def test_a_base_as_hubs_store_it(family: str, config: dict[str, object], tmp_path: Path) -> None:
    torch.manual_seed(0)
    build_random(family, config).save_pretrained(tmp_path / "base")
    store(tmp_path / "base", family)
    run = make_run(tmp_path, pretrained(tmp_path / "base"), KINDS["lora"])
    check(tmp_path / "base", run, tmp_path / "out")


def test_a_task_and_half_of_it(frozen: Path, base: Path, tmp_path: Path) -> None:
    """Of low-rank skills with several heads."""
    check(base, frozen, tmp_path / "whole")
    merge_models(recipe(base, frozen, 0.5), tmp_path / "half")
    half, whole, start = (Weights(path) for path in (tmp_path / "half", tmp_path / "whole", base))
    for name in start:
        torch.testing.assert_close(
            2 * (half[name] - start[name]), whole[name] - start[name], rtol=1e-4, atol=1e-6
        )


def test_what_does_not_fit_is_refused(frozen: Path, base: Path, tmp_path: Path) -> None:
    other = save_base(tmp_path / "other", 5)
    shutil.copytree(base, tmp_path / "bare")
    (tmp_path / "bare" / "config.json").unlink()
    shutil.copytree(base, tmp_path / "wrong")
    config = (base / "config.json").read_text()
    (tmp_path / "wrong" / "config.json").write_text(config.replace('"d_ff": 32', '"d_ff": 16'))

    def with_settings(name: str, section: str, **changed: object) -> Path:
        meta = Path(shutil.copytree(frozen, tmp_path / name)) / "skills" / "meta.json"
        content = json.loads(meta.read_text())
        content["settings"][section] = content["settings"][section] | changed
        meta.write_text(json.dumps(content))
        note_again(meta.parent)
        return tmp_path / name

    for start, run, task, message in (
        (base, frozen, "revers", "has no task 'revers'. Did you mean 'reverse'"),
        (other, frozen, TASK, "was trained on the backbone"),
        (tmp_path / "bare", frozen, TASK, "is not a language model"),
        (tmp_path / "wrong", frozen, TASK, "does not fit the model"),
        (base, tmp_path, TASK, "has no trained skills"),
        (
            base,
            with_settings("fused", "aggregation", kind="fusion", source="runs/x"),
            TASK,
            "does not work with aggregation.kind 'fusion'",
        ),
        (base, with_settings("gated", "skills", gate=True), TASK, "not work with skills.gate"),
        (base, with_settings("larger", "skills", rank=5), TASK, "does not fit the model"),
        (base, with_settings("none", "skills", targets=["nothing"]), TASK, "does not fit"),
        (base, with_settings("other_key", "skills", n_skill=3), TASK, "has settings that this"),
    ):
        with pytest.raises(CheckpointError, match=message):
            merge_models(recipe(start, run, task=task), tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_skills_that_are_no_weights_are_refused(base: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path, pretrained(base), {"kind": "bitfit", "targets": ["mlp"]})
    with pytest.raises(CheckpointError, match="the layer has no bias; use mttl export"):
        merge_models(recipe(base, run), tmp_path / "out")
