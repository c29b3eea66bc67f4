"""Runs go to PEFT and come back, or become plain models."""

import json
import re
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from helpers.backbones import fill
from helpers.cards import QUESTIONS, run_card, train_asked
from helpers.command import note_again, train
from helpers.compare import relative_error
from helpers.gyms import TINY_LLAMA, store_backbone, write_config, write_gym
from helpers.peft_adapters import peft, save_lora, write_base
from mttl.adaptation.modes import apply_mode
from mttl.analysis.routing_record import read_record
from mttl.assembly.model import load_run
from mttl.commands import export as EXPORT
from mttl.commands import import_peft as IMPORT
from mttl.commands import merge_task as MERGE
from mttl.inference.model_card import scores_of
from mttl.io import yaml12
from mttl.models.backbone import build_random

ROUNDING = 1e-5  # float32 arithmetic in another order


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    config = write_config(folder / "tiny.yaml", write_gym(folder / "gym"))
    overrides = ("trainer.max_steps=4", "trainer.val_check_interval=4", "data.evaluate=[]")
    return train(config, "source", *overrides).path


@pytest.fixture(scope="module")
def inputs(run: Path) -> dict[str, torch.Tensor]:
    tokenizer = load_run(run).tokenizer
    given = tokenizer(["[reverse] abc", "[copy] b"], padding=True, return_tensors="pt")
    labels = tokenizer(["cba", "b"], padding=True, return_tensors="pt").input_ids
    return {**given, "labels": labels}


def auto(folder: Path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return peft.AutoPeftModelForSeq2SeqLM.from_pretrained(folder).eval()


@pytest.fixture(scope="module", params=["t5", "chat", "joined"])
def asked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_asked(tmp_path_factory.mktemp("asked"), request.param)


@pytest.mark.parametrize("asked", ["t5", "chat"], indirect=True)
def test_cards_ask_as_the_run(asked: Path, tmp_path: Path) -> None:
    """The lines of each card, run as they stand, give the answers of `run.predict`."""
    run, out = load_run(asked), tmp_path / "poly"
    assert EXPORT.main([str(asked), "--inventory", "--out", str(out)]) == 0
    greedy = (
        " PEFT's Poly has no beam search, which the run used; this is greedy."
        in (out / "README.md").read_text()
    )
    assert greedy == (run.search["num_beams"] > 1)
    search = {"num_beams": 1} if greedy else {}
    assert run_card(out, QUESTIONS) == run.predict("copy", QUESTIONS, **search)


def test_cards_of_prompts_and_adapters(tmp_path: Path) -> None:
    gym = write_gym(tmp_path / "gym")
    backbone = {**TINY_LLAMA, "initial_scale": {"*": 3.0}}
    steps = ("trainer.max_steps=1", "data.validation=none")
    for kind, skills in (
        ("prompt", {"kind": "prompt", "n_skills": 3, "length": 4}),
        ("adapter", {"kind": "adapter", "n_skills": 3, "targets": ["mlp"]}),
    ):
        config = write_config(tmp_path / f"{kind}.yaml", gym, backbone=backbone)
        section = re.compile(r"skills:\n(  .*\n)+")
        config.write_text(section.sub(yaml12.dump({"skills": skills}), config.read_text()))
        run, out = train(config, kind, *steps).path, tmp_path / f"{kind}-out"
        given = ["--task", "copy"] if kind == "prompt" else ["--all"]
        assert EXPORT.main([str(run), *given, "--out", str(out)]) == 0
        if kind == "prompt":
            assert run_card(out, QUESTIONS) == load_run(run).predict("copy", QUESTIONS)
        else:  # the library asks for an older transformers than ours
            assert (out / "copy" / "adapter.safetensors").is_file()
            line = f'model.load_adapter("{out}/copy", set_active=True, use_safetensors=True)'
            assert line in (out / "README.md").read_text()


@pytest.mark.every(2)
@pytest.mark.parametrize("asked", ["t5", "chat"], indirect=True)
def test_the_adapters_of_all_tasks_share_one_base(asked: Path, tmp_path: Path) -> None:
    out, back = tmp_path / "adapters", tmp_path / "back"
    assert EXPORT.main([str(asked), "--all", "--out", str(out)]) == 0
    names = ["base_model", "copy", "number", "reverse"]
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == names
    assert {path.parent.name for path in out.rglob("model.safetensors")} == {"base_model"}
    run = load_run(asked)
    expected = {task: run.predict(task, QUESTIONS) for task in run.tasks}
    assert expected["copy"] != expected["reverse"]
    assert run_card(out, QUESTIONS) == expected["copy"]
    assert run_card(out / "reverse", QUESTIONS) == expected["reverse"]
    # Two of them on one base: the adapter that is set answers.
    switched = "question = "
    for task in ("reverse", "copy"):
        code = f'model.set_adapter("{task}")\n{switched}'
        other = tmp_path / task
        other.mkdir()
        card = (out / "README.md").read_text().replace(switched, code)
        assert ', task="copy"' in card
        (other / "README.md").write_text(card.replace(', task="copy"', f', task="{task}"'))
        assert run_card(other, QUESTIONS) == expected[task]
    # Together they become a run again.
    form = ["--prefix", "--max-output-length", "6"]
    if run.form.template == "chat":
        form += ["--template", "chat", "--system", "Answer."]
    assert IMPORT.main([str(out), *form, "--out", str(back)]) == 0
    again = load_run(back)
    assert again.tasks == ("copy", "number", "reverse")
    search = {"num_beams": run.search["num_beams"], "length_penalty": 0.5}
    if not run.form.descriptions:
        for task, answers in expected.items():
            assert again.predict(task, QUESTIONS, **search) == answers


def test_cards_show_scores_of_what_was_scored(run: Path, tmp_path: Path) -> None:
    """The mixtures of tasks, at full rank; an average or one skill has no scores."""
    scored = tmp_path / "scored"
    shutil.copytree(run, scored)
    tasks = load_run(run).tasks
    rows = [f"{task},test,EM,0.25,8" for task in (*tasks, "mean")]
    (scored / "results.csv").write_text("\n".join(["task,split,metric,score,n", *rows]))
    without, at_full = (
        " Truncated to rank 1.",
        "Truncated to rank 1; the scores are those of the run at full",
    )
    for chosen, rank, names, told in (
        ("--task copy", "--rank 1", ["copy"], at_full),
        ("--all", "--rank 1", [*tasks, "mean"], at_full),
        ("--inventory", "", tasks, ""),
        ("--average", "--rank 1", [], without),
        ("--skill 1", "", [], ""),
    ):
        out = tmp_path / f"{chosen}{rank}".replace(" ", "")
        given = [*chosen.split(), *rank.split(), "--out", str(out)]
        assert EXPORT.main([str(scored), *given]) == 0
        parts = [out / "copy", out] if chosen == "--all" else [out]
        cards = [(part / "README.md").read_text() for part in parts]
        for card in cards:
            assert told in card
            assert ("Truncated" in card) == bool(told)
        assert sorted(re.findall(r"\| (\w+) \| test \|", cards[-1])) == sorted(names)


def test_an_inventory_goes_out_as_poly_and_comes_back(run: Path, inputs, tmp_path: Path) -> None:
    out, back = tmp_path / "poly", tmp_path / "back"
    assert EXPORT.main([str(run), "--inventory", "--out", str(out)]) == 0
    built = load_run(run)
    ids = built.task_ids(["reverse", "copy"])
    expected = built.model(ids, **inputs).logits
    assert relative_error(auto(out)(task_ids=ids, **inputs).logits, expected) < ROUNDING
    names = ",".join(built.tasks)
    assert IMPORT.main([str(out), "--tasks", names, "--prefix", "--out", str(back)]) == 0
    again = load_run(back)
    assert again.tasks == built.tasks
    assert relative_error(again.model(ids, **inputs).logits, expected) < ROUNDING
    assert torch.equal(again.model.router.logits, built.model.router.logits)
    # mttl plot reads it as that of any other run.
    assert read_record(back).weights.shape == (built.model.router.n_groups, 3, 3)


def test_adapters_become_a_run(tmp_path: Path) -> None:
    """Two LoRA adapters that PEFT made, of different ranks and layers."""
    base = write_base(tmp_path)
    ids = {"input_ids": torch.arange(10).view(2, 5) + 5}
    expected = {}
    for name, rank, targets in (("past", 2, ["q_proj"]), ("plural", 3, ["q_proj", "up_proj"])):
        settings = {"r": rank, "lora_alpha": 5, "target_modules": targets}
        expected[name] = save_lora(tmp_path / "base", tmp_path / name, rank, **settings)(
            **ids
        ).logits
    out = tmp_path / "run"
    given = [str(tmp_path / name) for name in expected]
    chosen = ["--router", "polytropon", "--tokenizer", "byte", "--out", str(out)]
    assert IMPORT.main([*given, *chosen]) == 0
    built = load_run(out)
    assert built.tasks == ("past", "plural")
    for task, logits in expected.items():
        found = built.model(built.task_ids([task] * 2), **ids).logits
        assert relative_error(found, logits) < ROUNDING
    # One of them goes out again, at its own rank.
    again = tmp_path / "again"
    assert EXPORT.main([str(out), "--skill", "1", "--out", str(again)]) == 0
    found = peft.PeftModel.from_pretrained(
        type(base).from_pretrained(tmp_path / "base"), again
    ).eval()(**ids)
    assert relative_error(found.logits, expected["plural"]) < ROUNDING


@pytest.mark.parametrize("tied", [False, True])
def test_adapters_of_the_head_come_in(tmp_path: Path, refused, tied: bool) -> None:
    """PEFT stores the head's own weight beside its adapter: it must be the base's."""
    base = build_random("llama", TINY_LLAMA["config"] | {"tie_word_embeddings": tied})
    fill(base)
    base.save_pretrained(tmp_path / "base")
    out = tmp_path / "run"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        targets = ["q_proj", "lm_head"]
        model = save_lora(tmp_path / "base", tmp_path / "head", 0, r=2, target_modules=targets)
        model.save_pretrained(tmp_path / "head", save_embedding_layers=True)
    stored = load_file(tmp_path / "head" / "adapter_model.safetensors")
    name = "base_model.model.lm_head.base_layer.weight"
    stored[name] = base.lm_head.weight.detach().clone()
    save_file(stored, tmp_path / "head" / "adapter_model.safetensors")
    given = ["--tokenizer", "byte", "--backbone", str(tmp_path / "base")]
    assert IMPORT.main([str(tmp_path / "head"), *given, "--out", str(out)]) == 0
    built, ids = load_run(out), {"input_ids": torch.arange(10).view(2, 5) + 5}
    found = built.model(built.task_ids(["head"] * 2), **ids).logits
    assert relative_error(found, model.eval()(**ids).logits) < ROUNDING
    stored[name][0, 0] += 1
    save_file(stored, tmp_path / "head" / "adapter_model.safetensors")
    told = refused(IMPORT.main, tmp_path / "head", *given, "--out", tmp_path / "new")
    assert "stores 'lm_head.base_layer.weight' with other values than its base model" in told


def test_a_run_is_not_put_on_another_backbone(tmp_path: Path, refused) -> None:
    base = write_base(tmp_path)
    fill(base, seed=3)
    base.save_pretrained(tmp_path / "other")
    build_random("llama", TINY_LLAMA["config"] | {"intermediate_size": 32}).save_pretrained(
        tmp_path / "wide"
    )
    targets = ["q_proj", "up_proj"]
    save_lora(tmp_path / "base", tmp_path / "past", 0, r=2, target_modules=targets)
    adapter, out = str(tmp_path / "past"), ["--out", str(tmp_path / "new")]
    assert IMPORT.main([adapter, "--tokenizer", "byte", "--out", str(tmp_path / "run")]) == 0
    before = sorted(tmp_path.iterdir())
    on = {name: ["--backbone", str(tmp_path / name), *out] for name in ("other", "wide")}
    run = str(tmp_path / "run")
    up = "of other sizes: model.layers.0.mlp.up_proj"
    for script, given, message in (
        (IMPORT, [adapter, "--tokenizer", "byte", *on["wide"]], up),
        (EXPORT, [run, "--task", "past", *on["other"]], "but this one has the fingerprint"),
        (EXPORT, [run, "--inventory", *on["wide"]], "but this one has the fingerprint"),
        (MERGE, [run, "--task", "past", *on["other"]], "but this one has the fingerprint"),
    ):
        assert message in refused(script.main, *given)
    assert sorted(tmp_path.iterdir()) == before


def test_a_base_that_is_a_folder_is_found_from_anywhere(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    below = store_backbone(Path("base")) | {"train": False}
    config = write_config(tmp_path / "tiny.yaml", write_gym(tmp_path / "gym"), backbone=below)
    source = train(config, "source", "trainer.max_steps=1", "data.evaluate=[]").path
    assert EXPORT.main([str(source), "--task", "copy", "--out", "adapter"]) == 0
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    auto(tmp_path / "adapter")
    assert str(tmp_path / "base") in (tmp_path / "adapter" / "README.md").read_text()


def test_mistakes_end_in_a_message_and_no_folder(run, tmp_path, refused) -> None:
    adapter, poly, there = (tmp_path / name for name in ("adapter", "poly", "there"))
    EXPORT.main([str(run), "--task", "copy", "--out", str(adapter)])
    EXPORT.main([str(run), "--inventory", "--out", str(poly)])
    there.mkdir()
    settings = json.loads((adapter / "adapter_config.json").read_text())
    for name, base in (("other", "elsewhere"), ("nameless", None)):
        (tmp_path / name).mkdir()
        data = (adapter / "adapter_model.safetensors").read_bytes()
        (tmp_path / name / "adapter_model.safetensors").write_bytes(data)
        changed = settings | {"base_model_name_or_path": base}
        (tmp_path / name / "adapter_config.json").write_text(json.dumps(changed))
    # A task is named after the folder of the base; and there is no backbone.
    named, policies = (shutil.copytree(run / "skills", tmp_path / x) for x in ("named", "policies"))
    (named / "tasks.json").write_text(json.dumps(["copy", "base_model", "number"]))
    meta = json.loads((policies / "meta.json").read_text())
    del meta["settings"]["backbone"]
    (policies / "meta.json").write_text(json.dumps(meta))
    for folder in (named, policies):
        note_again(folder)
    other_base = tmp_path / "llama"
    build_random("llama", TINY_LLAMA["config"]).save_pretrained(other_base)
    before = sorted(tmp_path.iterdir())
    out = ["--out", str(tmp_path / "new")]
    for script, given, message in (
        (EXPORT, [str(run), "--inventory", "--rank", "2", *out], "--rank does not work with"),
        (EXPORT, [str(run), "--average", "--out", str(there)], "already exists"),
        (
            MERGE,
            [str(run), "--average", "--backbone", "t5-small", *out],
            "' includes its backbone; name no other backbone",
        ),
        (MERGE, [str(policies), "--average", *out], "' has policies and no language model"),
        (IMPORT, [str(there), *out], "is not a PEFT folder"),
        (IMPORT, [str(adapter), "--out", str(there)], "already exists"),
        (IMPORT, [str(adapter), str(tmp_path / "other"), *out], "name different base models"),
        (IMPORT, [str(tmp_path / "nameless"), *out], "does not name its base model"),
        (IMPORT, [str(adapter), str(adapter), *out], "task names must be distinct, not adapter,"),
        (IMPORT, [str(adapter), "--tasks", "a,b", *out], "--tasks has 2 names for 1 tasks"),
        (IMPORT, [str(poly), str(poly), *out], "it must be imported without others"),
        (IMPORT, [str(adapter), "--system", "x", *out], "--system needs --template chat; add it"),
        (IMPORT, [str(adapter), "--template", "chat", *out], "needs a decoder-only backbone, but"),
        (EXPORT, [str(named), "--all", *out], "the task 'base_model' cannot be the name of a"),
        (
            IMPORT,
            [str(poly), "--mix", "deltas", *out],
            "own: --mix does not work with it",
        ),
        (IMPORT, [str(adapter), str(poly), "--backbone", "x", *out], "is a POLY adapter, not LORA"),
        (
            IMPORT,
            [str(adapter), "--backbone", str(other_base), "--tokenizer", "byte", *out],
            "missing layers: decoder.block.0.layer.0.",
        ),
    ):
        assert message in refused(script.main, *given)
    assert sorted(tmp_path.iterdir()) == before


# Merged into plain weights.


@pytest.mark.parametrize("which", ["reverse", "average"])
def test_transformers_loads_a_merge_and_answers_alike(run, inputs, tmp_path, which) -> None:
    chosen = ["--average"] if which == "average" else ["--task", which]
    out = tmp_path / "plain"
    assert MERGE.main([str(run), *chosen, "--out", str(out)]) == 0
    model = AutoModelForSeq2SeqLM.from_pretrained(out).eval()
    tokenizer = AutoTokenizer.from_pretrained(out)
    found = model(**inputs).logits
    built, texts = load_run(run), ["[reverse] abc", "[copy] b"]
    assert tokenizer(texts, padding=True).input_ids == inputs["input_ids"].tolist()
    if which == "average":
        ids = torch.zeros(2, dtype=torch.long)
        skilled = apply_mode(built.model, "average", 1).eval()
    else:
        skilled, ids = built.model, built.task_ids([which, which])
    expected = skilled(ids, **inputs).logits
    assert relative_error(found, expected) < ROUNDING


def test_the_card_of_a_merge_asks_as_the_run(asked: Path, tmp_path: Path) -> None:
    """The lines of the card, run as they stand, give the answers of `run.predict`."""
    run = load_run(asked)
    for chosen in (["--task", "reverse"], ["--average"]):
        out = tmp_path / chosen[0]
        assert MERGE.main([str(asked), *chosen, "--out", str(out)]) == 0
        if chosen == ["--average"]:
            task, predictor = "copy", replace(run, model=apply_mode(run.model, "average", 3))
        else:
            task, predictor = "reverse", run
        answers = run_card(out, QUESTIONS)
        assert answers == predictor.predict(task, QUESTIONS)
        assert len({*answers}) > 1
    card = (tmp_path / "--task" / "README.md").read_text()
    scored = {(row["task"], row["split"]) for row in scores_of(asked, ["reverse"])}
    assert scored == {("reverse", "test")}
    assert "| reverse | test | ACC | " in card
    assert ("chat template formats" in card) == ("torch.tensor" not in card)
    assert f"The task `reverse` of `{asked}`" in card
