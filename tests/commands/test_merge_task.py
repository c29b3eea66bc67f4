"""A run's task as a plain model on disk."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from helpers.cards import QUESTIONS, run_card, train_asked
from helpers.checksums import note_again
from helpers.command import train
from helpers.compare import relative_error
from helpers.gyms import write_config, write_gym
from mttl.adaptation.modes import apply_mode
from mttl.assembly.model import load_run
from mttl.commands import merge_task as SCRIPT
from mttl.inference.model_card import scores_of

ROUNDING = 1e-5  # four blocks of float32 arithmetic


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("merge")
    config = write_config(folder / "tiny.yaml", write_gym(folder / "gym"))
    overrides = ("trainer.max_steps=4", "trainer.val_check_interval=4", "data.evaluate=[]")
    return train(config, "source", *overrides).path


@pytest.fixture(scope="module", params=["t5", "chat", "joined"])
def asked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_asked(tmp_path_factory.mktemp("asked"), request.param)


@pytest.mark.parametrize("which", ["reverse", "average"])
def test_transformers_loads_it_and_answers_alike(run: Path, tmp_path: Path, which: str) -> None:
    chosen = ["--average"] if which == "average" else ["--task", which]
    out = tmp_path / "plain"
    assert SCRIPT.main([str(run), *chosen, "--out", str(out)]) == 0
    model = AutoModelForSeq2SeqLM.from_pretrained(out).eval()
    tokenizer = AutoTokenizer.from_pretrained(out)
    inputs = tokenizer(["[reverse] abc", "[reverse] b"], padding=True, return_tensors="pt")
    labels = tokenizer(["cba", "b"], padding=True, return_tensors="pt").input_ids
    found = model(**inputs, labels=labels).logits
    built = load_run(run)
    assert (
        inputs["input_ids"].tolist()
        == built.tokenizer(["[reverse] abc", "[reverse] b"], padding=True).input_ids
    )
    if which == "average":
        ids = torch.zeros(2, dtype=torch.long)
        skilled = apply_mode(built.model, "average", 1).eval()
    else:
        skilled, ids = built.model, built.task_ids([which, which])
    expected = skilled(ids, **inputs, labels=labels).logits
    assert relative_error(found, expected) < ROUNDING


def test_the_card_asks_as_the_run(asked: Path, tmp_path: Path) -> None:
    """The lines of the card, run as they stand, give the answers of `run.predict`."""
    run = load_run(asked)
    for chosen in (["--task", "reverse"], ["--average"]):
        out = tmp_path / chosen[0]
        assert SCRIPT.main([str(asked), *chosen, "--out", str(out)]) == 0
        if chosen == ["--average"]:
            task, predictor = "copy", replace(run, model=apply_mode(run.model, "average", 3))
        else:
            task, predictor = "reverse", run
        answers = run_card(out, QUESTIONS)
        assert answers == predictor.predict(task, QUESTIONS)
        assert len({*answers}) > 1
    card = (tmp_path / "--task" / "README.md").read_text()
    scored = {(row["task"], row["split"]) for row in scores_of(asked, ["reverse"])}
    assert scored == {("reverse", "dev"), ("reverse", "test")}
    assert "| reverse | dev | EM | " in card
    assert ("chat template" in card) == ("torch.tensor" not in card)
    assert f"The task `reverse` of `{asked}`" in card


def test_mistakes_end_in_a_message_and_no_folder(run, tmp_path, refused) -> None:
    (tmp_path / "there").mkdir()
    shutil.copytree(run / "skills", tmp_path / "policies")
    meta = json.loads((tmp_path / "policies" / "meta.json").read_text())
    del meta["settings"]["backbone"]
    (tmp_path / "policies" / "meta.json").write_text(json.dumps(meta))
    note_again(tmp_path / "policies")
    backbone, x, there = ["--backbone", "t5-small"], tmp_path / "x", tmp_path / "there"
    for given, out, message in (
        ([run, "--average", *backbone], x, "holds its own backbone: name no other"),
        ([run, "--task", "revers"], x, "has no task 'revers'. Did you mean"),
        ([tmp_path / "policies", "--average"], x, "holds policies, which have no"),
        ([tmp_path, "--average"], x, "holds no trained inventory"),
        ([run, "--average"], there, "exists already; name a new one"),
    ):
        assert message in refused(SCRIPT.main, *given, "--out", out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policies", "there"]
