"""Runs that are given away: folders that need nothing else, here and on the hub."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer
from transformers.utils import logging as bars

import mttl
from helpers.cards import ASKED, QUESTIONS, run_card, train_asked
from helpers.command import train
from helpers.fake_repositories import FakeRepositories
from helpers.gyms import make_run, store_backbone, write_config, write_gym
from mttl.assembly.model import build_model
from mttl.commands import add_tasks as ADD
from mttl.commands import merge_task as MERGE
from mttl.config.load import load_config
from mttl.io import yaml12
from mttl.io.errors import CheckpointError, ConfigError
from mttl.models.backbone import load_tokenizer

PAIRS = [("ab", "aba"), ("c", "cc"), ("b", "bb"), ("ca", "cac")]
SHORT = {"max_steps": 1, "eval_every": 1, "batch_size": 2}


def train_frozen(folder: Path) -> Path:
    """Train above a folder that holds a backbone and its tokenizer, both named by their paths."""
    backbone = store_backbone(folder / "base", ASKED["llama"]["backbone"])
    load_tokenizer("byte").save_pretrained(folder / "base")
    backbone |= {"tokenizer": None, "train": False}
    return make_run(folder, "data.evaluate=[test]", backbone=backbone)


@pytest.fixture(params=["t5", "chat", "frozen"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / "training"
    folder.mkdir()
    return train_frozen(folder) if request.param == "frozen" else train_asked(folder, request.param)


@pytest.mark.every(3)
def test_a_folder_needs_nothing_else(source, tmp_path, monkeypatch) -> None:
    run = mttl.load(source)
    settings = {"mode": "router_only", **SHORT}
    described = {"description": "new"} if run.form.descriptions else {}
    adapted = mttl.adapt_to(source, PAIRS, task="new", **described, **settings)
    adapted.save(tmp_path / "adapted")
    expected = run.predict("reverse", QUESTIONS), adapted(QUESTIONS)
    run.save_pretrained(tmp_path / "first")
    assert run_card(tmp_path / "first", QUESTIONS[:2]) == run.predict("copy", QUESTIONS[:2])
    card = (tmp_path / "first" / "README.md").read_text()
    assert "| mean | test |" in card
    assert "Tasks: `copy`, `reverse`, `number`." in card
    with pytest.raises(FileExistsError):
        run.save_pretrained(tmp_path / "first")
    mttl.load(tmp_path / "adapted").save_pretrained(tmp_path / "first adapted")
    # Elsewhere, when all that they came from is gone.
    for name in ("", " adapted"):
        shutil.move(tmp_path / f"first{name}", tmp_path / f"given{name}")
    shutil.rmtree(tmp_path / "training")
    shutil.rmtree(tmp_path / "adapted")
    monkeypatch.chdir(tmp_path)
    again = mttl.from_pretrained("given")
    assert again.predict("reverse", QUESTIONS) == expected[0]
    assert again.tasks == run.tasks
    assert again.form == run.form
    assert mttl.from_pretrained("given adapted").predict("new", QUESTIONS) == expected[1]
    own = AutoTokenizer.from_pretrained("given")
    assert own("abc").input_ids == run.tokenizer("abc").input_ids
    # What was given away can be given away again, and adapted as the run.
    again.save_pretrained("again")
    assert mttl.from_pretrained("again").predict("reverse", QUESTIONS) == expected[0]
    if not described:
        later = mttl.adapt_to("again", PAIRS, task="new", **settings)
        assert later(QUESTIONS) == expected[1]
        later.save("later")
        monkeypatch.chdir("/")
        assert mttl.load(tmp_path / "later").predict("new", QUESTIONS) == expected[1]
        added = [str(tmp_path / name) for name in ("again", "later", "more")]
        assert ADD.main([added[0], "--adapted", added[1], "--out", added[2]]) == 0
        assert mttl.load(added[2]).predict("new", QUESTIONS) == expected[1]


def test_the_network_of_a_prefix_is_for_training_alone(tmp_path: Path) -> None:
    """Without it answers and skills of tasks are the same, and the run can be adapted."""
    config = write_config(tmp_path / "tiny.yaml", write_gym(tmp_path / "gym"), **ASKED["llama"])
    prefix = "{kind: prefix, bottleneck: 5, gate: true}"
    more = "{kind: lora, rank: 2, targets: [mlp]}"
    (tmp_path / "prefix.yaml").write_text(f"skills: [{prefix}, {more}]\n")
    given = f"{config}+{tmp_path / 'prefix.yaml'}"
    run = mttl.load(train(given, "source", "trainer.max_steps=2", "data.validation=none").path)
    run.without_networks().save_pretrained(tmp_path / "plain")
    plain = mttl.load(tmp_path / "plain")
    names = dict(plain.model.named_parameters())
    assert any("keys" in name for name in names)
    assert not any("seeds" in name for name in names)
    assert any("seeds" in name for name, _ in run.model.named_parameters())
    ids = torch.tensor([0, 1])
    inputs = {"input_ids": torch.tensor([[3, 4, 5], [6, 7, 8]])}
    with torch.no_grad():
        found = plain.model(ids, **inputs).logits
        torch.testing.assert_close(found, run.model(ids, **inputs).logits, rtol=0, atol=0)
    assert plain.predict("reverse", QUESTIONS) == run.predict("reverse", QUESTIONS)
    assert "bottleneck: 5" not in (tmp_path / "plain" / "config.yaml").read_text()
    assert mttl.adapt_to(tmp_path / "plain", PAIRS, task="new", mode="all", **SHORT)(QUESTIONS)


def test_what_is_given_away_names_no_folder_of_a_backbone(tmp_path, monkeypatch) -> None:
    (tmp_path / "training").mkdir()
    source = train_frozen(tmp_path / "training")
    monkeypatch.chdir(tmp_path)
    mttl.load(source).save_pretrained("given")
    card = Path("given/README.md").read_text()
    assert "Base model: `backbone/`" in card
    assert "base_model:" not in card  # which would be a name on the hub
    facts = json.loads(Path("given/skills/meta.json").read_text())["backbone"]
    assert (facts["name"], facts["places"]) == ("backbone", {"name": "backbone"})
    assert yaml12.read_yaml("given/config.yaml", ConfigError)["backbone"]["name"] == "backbone"
    here = str(tmp_path).encode()
    files = [path for path in Path("given").rglob("*") if path.is_file()]
    named = [path.name for path in files if here in path.read_bytes()]
    assert named == ["config.yaml"]  # data and results
    # Another folder of that name is not taken for it, nor is that of an adapted task.
    Path("backbone").mkdir()
    adapted = mttl.adapt_to("given", PAIRS, task="new", mode="router_only", **SHORT)
    adapted.save("adapted")
    assert mttl.load("adapted").predict("new", QUESTIONS) == adapted(QUESTIONS)
    assert ADD.main(["given", "--adapted", "adapted", "--out", "more"]) == 0
    # Exports name where it is.
    assert MERGE.main(["given", "--task", "copy", "--out", "merged"]) == 0
    assert "Base model: `given/backbone`" in Path("merged/README.md").read_text()


def test_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRepositories.used(monkeypatch, tmp_path / "hub")
    run = mttl.load(train_asked(tmp_path, "llama"))
    address = run.push_to_hub("skills", private=True, token="secret", message="First")
    assert address == "https://hub/me/skills/commit/1?First"
    assert fake.asked == ["secret", (True, True), "secret"]
    again = mttl.from_pretrained("me/skills", revision="main", token="secret")
    assert fake.asked[-1] == ("main", "secret")
    assert again.predict("copy", QUESTIONS) == run.predict("copy", QUESTIONS)
    assert run_card(tmp_path / "hub/me/skills", QUESTIONS[:1]) == run.predict("copy", ["ab"])
    found = [path for path in (tmp_path / "hub/me/skills").rglob("*") if path.is_file()]
    assert not any("secret" in path.read_text(errors="ignore") for path in found)
    with pytest.raises(ConfigError, match=r"'others/x' could not be written .* 403 Forbidden Log"):
        run.push_to_hub("others/x")
    with pytest.raises(ConfigError, match="the folder 'me/none' does not exist, and loading it"):
        mttl.from_pretrained("me/none")


def test_only_what_was_loaded_is_saved(tmp_path: Path) -> None:
    config = write_config(tmp_path / "tiny.yaml", write_gym(tmp_path / "gym"))
    built = build_model(load_config([str(config)]), ["copy"])
    with pytest.raises(CheckpointError, match="only a loaded run can be saved; train it with mttl"):
        built.save_pretrained(tmp_path / "given")
    assert not (tmp_path / "given").exists()


def test_a_run_shows_what_it_is(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = write_config(
        tmp_path / "tiny.yaml",
        write_gym(tmp_path / "gym", samples=(13, 100)),
        backbone=store_backbone(tmp_path / "base"),
    )
    path = train(config, "source", "data.samples=[13,100]").path
    capfd.readouterr()
    run = mttl.load(path)
    assert capfd.readouterr() == ("", "")
    assert bars.is_progress_bar_enabled()
    lines = repr(run).splitlines()
    assert len(lines) == 6
    wanted = ["source'", "3: copy, ", "base", "3 on ", "Poly", "dev "]
    for line, shown in zip(lines, wanted, strict=True):
        assert shown in line
    table = [line.split(",") for line in (path / "results.csv").read_text().splitlines()[1:]]
    assert run.scores.keys() == {*run.tasks, "mean"}
    for task, splits in run.scores.items():
        for split in ("dev", "test"):
            found = [float(row[5]) for row in table if row[:2] == [task, split]]
            assert len(found) == (1 if task == "mean" else 2)  # samples
            assert splits[split] == pytest.approx(sum(found) / len(found), nan_ok=True)
    matrix = run.model.router.matrix().detach()
    for place, (task, weights) in enumerate(run.routing.items()):
        assert (task, weights.tolist()) == (run.tasks[place], matrix[:, place].tolist())
    steps, values = run.history["val/score"]
    assert (steps.tolist(), len(values)) == ([3, 7, 11], 3)
    run.save_pretrained(tmp_path / "given")
    given = mttl.load(tmp_path / "given")
    assert (repr(given.scores), given.history) == (repr(run.scores), {})  # NaN is not equal to NaN
    pairs = mttl.adapt_to(path, PAIRS, task="new", mode="router_only", **SHORT)
    pairs.save(tmp_path / "new")
    adapted = mttl.load(tmp_path / "new")
    assert list(adapted.scores) == list(adapted.routing) == ["new"]
    assert len(repr(adapted).splitlines()) == 6
