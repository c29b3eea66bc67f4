"""A task trained on top of the skills of another run, which may be exchanged for others."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import mttl
from helpers.backbones import fill
from helpers.command import arguments, load_recipe, note_again, train
from helpers.gyms import TASKS, store_backbone, write_config, write_gym
from mttl.assembly.model import build_model, inventory_settings
from mttl.assembly.planning.memory_plan import fake_model
from mttl.checkpoints.model_tensors import head_tensors
from mttl.checkpoints.saved_inventory import read_inventory
from mttl.commands import train_tasks
from mttl.commands.predict import main as predict
from mttl.config.load import load_config
from mttl.io import yaml12
from mttl.io.errors import CheckpointError, ConfigError, TaskError
from mttl.library.member_sources import Found
from mttl.models.headed import headed_states
from mttl.skills.skilled_layer import layers_of
from mttl.tasks.head_form import HeadForm

SHORT = ("trainer.max_steps=3", "trainer.val_check_interval=3", "data.evaluate=[]", "optim.lr=0.2")
SHORT += ("backbone.train=false",)
ADAPTER = {"kind": "adapter", "hidden_features": 3, "activation": "relu", "parallel": False}
MADX = {
    "kind": "several",
    "kinds": [ADAPTER | {"targets": ["mlp"]}, {"kind": "invertible", "targets": ["input"]}],
}
TEXTS = ["abc", "cab", "b"]


@pytest.fixture(scope="module", params=["random", "pretrained"])
def folder(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose tasks are languages, and one on top of the first language."""
    folder = tmp_path_factory.mktemp(request.param)
    backbone = {} if request.param == "random" else store_backbone(folder / "t5")
    own = {"backbone": backbone, "router": {"kind": "private"}, "skills": {"n_skills": "per_task"}}
    config = write_config(folder / "tiny.yaml", write_gym(folder / "gym"), **own)
    madx = yaml12.parse(config.read_text()) | {"skills": MADX | {"n_skills": "per_task"}}
    (folder / "madx.yaml").write_text(yaml12.dump(madx))
    train(folder / "madx.yaml", "madx", *SHORT)
    train(config, "task", *SHORT, f"skills.on=['{folder}/runs/madx:copy']")
    return folder / "runs"


def logits(built: Any, task: str = "copy") -> torch.Tensor:
    ids = built.tokenizer(TEXTS, padding=True, return_tensors="pt").input_ids
    with torch.no_grad():
        return built.model(built.task_ids([task] * 3), input_ids=ids, labels=ids).logits


def test_the_run_has_only_its_own_skills_and_answers_as_when_it_was_saved(folder: Path) -> None:
    saved, below = read_inventory(folder / "task"), read_inventory(folder / "madx")
    names = {name.rpartition(".")[2] for name in saved.skills}
    assert names == {"down", "up"}  # of LoRA
    for name, value in (below.backbone or {}).items():
        assert torch.equal((saved.backbone or {})[name], value)
    built = mttl.load(folder / "task")
    (other,) = built.others
    for path, layer in layers_of(built.model.backbone, other.slot).items():
        for name, value in layer.inventory.state_dict().items():
            assert torch.equal(value, below.skills[f"{path}.{name}"])
    assert built.predict("copy", TEXTS) == mttl.load(folder / "task").predict("copy", TEXTS)


def test_an_exchanged_language_is_that_of_a_run_built_with_it(folder: Path, tmp_path: Path) -> None:
    names = {
        task: logits(mttl.load(folder / "task", on=[f"{folder}/madx:{task}"])) for task in TASKS
    }
    assert torch.equal(names["copy"], logits(mttl.load(folder / "task")))
    assert not torch.allclose(names["copy"], names["reverse"], atol=1e-3)
    other = Path(shutil.copytree(folder / "task", tmp_path / "other"))
    meta = other / "skills" / "meta.json"
    meta.write_text(meta.read_text().replace('"task": "copy"', '"task": "reverse"'))
    note_again(meta.parent)
    assert torch.equal(logits(mttl.load(other)), names["reverse"])
    without = logits(mttl.load(folder / "task", on=[]))
    twice = logits(mttl.load(folder / "task", on=[f"{folder}/madx:copy"] * 2))
    assert not torch.allclose(without, names["copy"], atol=1e-3)
    assert not torch.allclose(twice, names["copy"], atol=1e-3)


def test_training_leaves_the_language_as_it_is_and_resumes_exactly(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[Any] = []

    def build(*args: Any) -> Any:
        trained.append(build_model(*args))
        return trained[-1]

    monkeypatch.setattr(train_tasks, "build_model", build)
    config, saved = folder / "task" / "config.yaml", read_inventory(folder / "madx")
    same = f"run.dir={folder}", "trainer.val_check_interval=1", "optim.schedule=constant"
    on = f"skills.on=['{folder}/madx:copy']"
    for name, n_steps, resume in (("whole", 3, False), ("parts", 2, False), ("parts", 3, True)):
        recipe = arguments(config, name, (*same, on, f"trainer.max_steps={n_steps}"), resume)
        assert load_recipe().main(recipe) == 0
    for built in trained:
        (other,) = built.others
        for path, layer in layers_of(built.model.backbone, other.slot).items():
            for key, value in layer.inventory.state_dict().items():
                assert torch.equal(value, saved.skills[f"{path}.{key}"])
    state = torch.load(folder / "parts" / "checkpoints" / "last.ckpt", weights_only=True)
    language = {name for name in state["state_dict"] if ".inventory.blocks" in name}
    assert not language  # the adapters
    whole, parts = (read_inventory(folder / name) for name in ("whole", "parts"))
    assert whole.skills.keys() == parts.skills.keys()
    assert all(torch.equal(value, parts.skills[name]) for name, value in whole.skills.items())
    recipe = arguments(config, "parts", (*same, on.replace("copy", "reverse")), True)
    with pytest.raises(ConfigError, match=r"skills.on.0.task \(copy before, reverse now\)"):
        load_recipe().main(recipe)


def test_runs_are_found_where_both_were_moved(folder: Path, tmp_path: Path) -> None:
    expected = logits(mttl.load(folder / "task"))
    moved = Path(shutil.copytree(folder, tmp_path / "a" / "runs"))
    meta = moved / "task" / "skills" / "meta.json"
    meta.write_text(meta.read_text().replace(f"{folder}/madx", f"{tmp_path}/gone/madx"))
    note_again(meta.parent)
    assert torch.equal(logits(mttl.load(moved / "task")), expected)


def test_a_plan_counts_the_language(folder: Path) -> None:
    config = load_config(str(folder / "task" / "config.yaml"))
    built, planned = build_model(config, TASKS), fake_model(config, TASKS)
    sizes = [
        [(value.shape, value.requires_grad) for value in model.parameters()]
        for model in (built.model, planned)
    ]
    assert sizes[0] == sizes[1]


def test_predict_exchanges_the_language(folder: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.tsv"
    rows.write_text("input\n" + "".join(f"{text}\n" for text in TEXTS))
    out = tmp_path / "answers.tsv"
    given = ["--from", str(folder / "task"), "--task", "copy", "--in", str(rows), "--out", str(out)]
    assert predict([*given, "--on", f"{folder}/madx:reverse"]) == 0
    found = [line.split("\t")[-1] for line in out.read_text().splitlines()[1:]]
    language = {"from": str(folder / "madx"), "task": "reverse"}
    expected = mttl.load(folder / "task", on=[language])
    assert found == expected.predict("copy", TEXTS)


def test_a_new_task_is_adapted_on_top_of_the_language(folder: Path, tmp_path: Path) -> None:
    pairs = [(text, text[::-1]) for text in ("ab", "ca", "cb", "abc", "bc", "ac", "cc", "ba")]
    model = mttl.adapt_to(folder / "task", pairs, task="mirror", max_steps=2, eval_every=2, lr=0.1)
    model.save(tmp_path / "mirror")
    again = mttl.load(tmp_path / "mirror")
    assert again.predict("mirror", TEXTS) == model(TEXTS)
    torch.testing.assert_close(logits(again, "mirror"), logits(model, "mirror"))
    spanish = mttl.load(tmp_path / "mirror", on=[f"{folder}/madx:reverse"])
    assert not torch.allclose(logits(spanish, "mirror"), logits(again, "mirror"), atol=1e-3)
    # An adapted task may be the lower one; it has one task.
    assert mttl.load(tmp_path / "mirror", on=[]).others == ()


def test_heads_stay_when_the_language_changes(folder: Path, tmp_path: Path) -> None:
    heads = {"tags": HeadForm(kind="tokens", labels=["x", "y"])}
    config = load_config(str(folder / "task" / "config.yaml"))
    built = build_model(config, ["tags"], heads)
    with torch.no_grad():
        for layer in built.model.skilled_layers().values():
            fill(layer.inventory)
    built.save_skills(tmp_path / "skills", inventory_settings(config, heads=heads))
    found, tensors = [], []
    for task in TASKS:
        run = mttl.load(tmp_path, on=[f"{folder}/madx:{task}"])
        assert all(set(answer.split()) <= {"x", "y"} for answer in run.predict("tags", ["ab c"]))
        ids = torch.arange(60, 72).view(2, 6)
        with torch.no_grad():
            states, _ = headed_states(
                run.model, torch.zeros(2, dtype=torch.long), {"input_ids": ids}
            )
        found.append(states)
        tensors.append(head_tensors(run.model))
    assert not torch.allclose(found[0], found[1], atol=1e-3)
    for name, value in head_tensors(built.model).items():
        assert all(torch.equal(value, one[name]) for one in tensors)


def test_what_does_not_fit_is_one_message(folder: Path, tmp_path: Path) -> None:
    files = str(folder / "task" / "config.yaml")
    other = store_backbone(tmp_path / "other")["name"]
    wrong = {"random": ["backbone.config.d_ff=48"], "pretrained": [f"backbone.name={other}"]}
    differs = {"random": "backbone, of another shape: .* instead of"}

    def build(*overrides: str) -> None:
        build_model(load_config(files, [*overrides]), ["copy"])

    changed = Path(shutil.copytree(folder / "madx", tmp_path / "changed"))
    meta = changed / "skills" / "meta.json"
    meta.write_text(meta.read_text().replace('"relu"', '"gelu"'))
    note_again(meta.parent)
    for overrides, error, message in (
        ([f"skills.on=[{tmp_path}]"], CheckpointError, "' has no trained skills"),
        ([f"skills.on=[{folder}/madx]"], TaskError, "name a task of '.*/madx', as '.*/madx:TASK'"),
        ([f"skills.on=['{folder}/madx:cop']"], TaskError, "no task 'cop' .*Did you mean 'copy'"),
        ([f"skills.on=['{folder}/task:copy']"], CheckpointError, "name a run without"),
        (["backbone.train=true"], ConfigError, r"backbone.train \(true\) does not work with"),
        (["adapt.mode=full"], ConfigError, r"adapt.mode \(full\) does not work with section"),
        (["trainer.strategy=fsdp2"], ConfigError, r"strategy \(fsdp2\) does not work with"),
    ):
        with pytest.raises(error, match=message):
            build(*overrides)
    kind = "random" if folder.parent.name.startswith("random") else "pretrained"
    message = differs.get(kind, r"\(skills.on\) belong to other weights of the backbone")
    with pytest.raises(CheckpointError, match=message):
        build(*wrong[kind])
    moved = Path(shutil.copytree(folder / "task", tmp_path / "task"))
    meta = moved / "skills" / "meta.json"
    meta.write_text(meta.read_text().replace(f"{folder}/madx", str(changed)))
    note_again(meta.parent)
    with pytest.raises(CheckpointError, match="have changed since this run was trained on top"):
        mttl.load(moved)
    logits(mttl.load(moved, on=[f"{changed}:copy"]))
    shutil.rmtree(changed)
    with pytest.raises(CheckpointError, match=r"has no trained skills .*--on \(on= in Python\)"):
        mttl.load(moved)
    for feature, command in (("merges", "merge-task"), ("exports_lora", "export")):
        with pytest.raises(CheckpointError, match=f"{command} does not work with .*skills.on"):
            mttl.load(folder / "task").require(**{feature: command})
    with pytest.raises(CheckpointError, match="save_pretrained does not work with section"):
        mttl.load(folder / "task").save_pretrained(tmp_path / "one")
    members = Found()
    members.read([str(folder / "task")])
    assert "/task' does not work with section skills: its skills need" in members.problems[0]
    with pytest.raises(ConfigError, match=r"section 'skills.on.0' has no setting 'run'"):
        mttl.load(folder / "task", on=[{"run": "x"}])
