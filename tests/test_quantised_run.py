"""A run over a quantised backbone, from training to what is given away."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from helpers.command import read_csv, start, train
from helpers.compare import relative_error
from helpers.gyms import write_config, write_gym
from helpers.nodes import train_on_two
from helpers.quantised import require, save_backbone
from helpers.tiny_run import losses
from mttl.adaptation.modes import apply_mode
from mttl.aggregation.packed_weights import packed_layers, parts
from mttl.assembly.load_tasks import share_weights
from mttl.assembly.model import load_run
from mttl.checkpoints.run_folder import RunFolder
from mttl.commands import adapt, export, merge_task
from mttl.io.errors import ConfigError
from mttl.merging.fold import dequantise
from mttl.models.backbone import load_pretrained
from mttl.runtime.command import USER_MISTAKE, run_command

QUESTIONS = ["ab", "cb a", "aab"]
# Merged products are rounded once more, and summed in another order.
ROUNDING = 1e-4
STEPS = ("trainer.max_steps=4", "trainer.val_check_interval=2")
AUTO = {"t5": AutoModelForSeq2SeqLM, "llama": AutoModelForCausalLM}


@pytest.fixture(
    scope="module",
    params=[
        ("t5", "nf4"),
        ("llama", "int8"),
        *(
            pytest.param(pair, marks=pytest.mark.slow)
            for pair in [("t5", "int8"), ("llama", "nf4"), ("t5", "int4"), ("llama", "int4")]
        ),
    ],
    ids="-".join,
)
def case(request, tmp_path_factory) -> tuple[str, str, Path]:
    family, kind = request.param
    require(kind)
    folder = tmp_path_factory.mktemp("quantised")
    base = save_backbone(folder / "base", family)
    config = write_config(
        folder / "tiny.yaml",
        write_gym(folder / "gym"),
        backbone={"kind": "pretrained", "name": str(base), "tokenizer": "byte", "quantize": kind},
        skills={"targets": ["attention", "mlp"]},
        # The learning rate must not depend on where the run is meant to end.
        optim={"schedule": "constant", "warmup": 0},
    )
    return family, kind, config


@pytest.fixture(scope="module")
def run(case: tuple[str, str, Path]) -> RunFolder:
    return train(case[2], "source", *STEPS)


def check_answers(network: Any, built: Any) -> None:
    """Another model answers the questions as a run does."""
    given = built.tokenizer(QUESTIONS, padding=True, return_tensors="pt")
    inputs = {**given, "labels": given["input_ids"]}
    expected = built.model(built.task_ids(["copy"] * 3), **inputs).logits
    assert relative_error(network(**inputs).logits, expected) < ROUNDING


@pytest.mark.every(2)
def test_checkpoints_hold_no_base(run: RunFolder) -> None:
    for path in (run.last, run.best):
        state = torch.load(path, weights_only=False)["state_dict"]
        assert state
        assert not [name for name in state if ".base." in name or "embed" in name]
    names = {path.name for path in run.skills.iterdir()}
    assert names == {"skills.safetensors", "router.safetensors", "tasks.json", "meta.json"}


@pytest.mark.every(2)
def test_a_resumed_run_is_the_undisturbed_one(case: tuple[str, str, Path], run: RunFolder) -> None:
    """Validation in between repacks nothing, and frozen weights are built again."""
    train(case[2], "resumed", "trainer.max_steps=2", "trainer.val_check_interval=2")
    resumed = train(case[2], "resumed", *STEPS, resume=True)
    states = [torch.load(one.last, weights_only=False)["state_dict"] for one in (run, resumed)]
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name


def test_it_is_loaded_again_and_answers_as_it_was_scored(run: RunFolder) -> None:
    built = load_run(run.path)
    assert packed_layers(built.model.backbone)
    rows = [json.loads(line) for line in (run.predictions / "copy_test.jsonl").open()]
    answers = built.predict("copy", [row["input"].removeprefix("[copy] ") for row in rows])
    assert answers == [row["prediction"] for row in rows]


@pytest.mark.slow
def test_two_processes_share_a_base_in_four_bits(case: tuple[str, str, Path]) -> None:
    """They train, resume, answer and save as one process does."""
    if case[1] != "nf4":
        pytest.skip("torchao cannot shard these weights")
    plain = "router.relaxed=false"  # each draws its own noise
    run = train(case[2], "alone", plain, *STEPS)
    given = (plain, STEPS[1], "trainer.strategy=fsdp2", "trainer.devices=2", "data.batch_size=4")
    first, second = ((*given, f"trainer.max_steps={steps}") for steps in (2, 4))
    train_on_two("torchrun", case[2], ("shared", first, False), ("shared", second, True))
    shared = RunFolder(run.path.parent / "shared")
    assert losses(shared) == pytest.approx(losses(run), rel=1e-4)
    assert read_csv(shared.results) == read_csv(run.results)
    test_checkpoints_hold_no_base(shared)
    test_it_is_loaded_again_and_answers_as_it_was_scored(shared)


def test_training_moves_the_skills_as_over_the_unpacked_base(case, run, tmp_path) -> None:
    """The same losses, to rounding, as over the same weights in floating point."""
    _, kind, config = case
    base = load_pretrained(str(config.parent / "base"), quantize=kind)  # type: ignore[arg-type]
    dequantise(base)
    base.save_pretrained(tmp_path / "plain")
    plain = train(
        *(config, "plain", *STEPS),
        *(f"backbone.name={tmp_path / 'plain'}", "backbone.quantize=null"),
    )
    assert len(losses(run)) == 4
    assert losses(run) == pytest.approx(losses(plain), rel=1e-4)


def test_it_is_merged_into_a_plain_model(case, run, tmp_path, capsys) -> None:
    out = tmp_path / "merged"
    assert merge_task.main([str(run.path), "--task", "copy", "--out", str(out)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    told = f"quantised ({case[1]}) in training and is dequantised here: the relative error of its"
    assert told in printed
    assert told in " ".join((out / "README.md").read_text().split())
    plain = AUTO[case[0]].from_pretrained(out).eval()
    assert packed_layers(plain) == {}
    check_answers(plain, load_run(run.path))


def test_peft_loads_its_skills_onto_the_quantised_base(case, run, tmp_path) -> None:
    _, kind, config = case
    peft = pytest.importorskip("peft")
    if kind == "int4":
        pytest.skip("PEFT looks into weights of torchao, and not into those of a prototype")
    out = tmp_path / "adapter"
    assert export.main([str(run.path), "--task", "copy", "--out", str(out)]) == 0
    base = load_pretrained(str(config.parent / "base"), quantize=kind)  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = peft.PeftModel.from_pretrained(base, out).eval()
    check_answers(theirs, load_run(run.path))


def test_a_run_on_a_folder_in_four_bits_is_loaded_again(tmp_path: Path) -> None:
    """Its fingerprint is the same after training with evaluations in between."""
    require("nf4")
    from transformers import BitsAndBytesConfig

    base = save_backbone(tmp_path / "base", "llama")
    four = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_use_double_quant=True)
    model = AutoModelForCausalLM.from_pretrained(
        base, quantization_config=four, device_map={"": "cpu"}
    )
    model.save_pretrained(tmp_path / "four")
    below = {"kind": "pretrained", "name": str(tmp_path / "four"), "tokenizer": "byte"}
    config = write_config(tmp_path / "tiny.yaml", write_gym(tmp_path / "gym"), backbone=below)
    run = train(config, "source", "trainer.max_steps=2", "trainer.val_check_interval=1")
    built = load_run(run.path)
    assert packed_layers(built.model.backbone)
    assert len(built.predict("copy", QUESTIONS)) == len(QUESTIONS)
    out = tmp_path / "merged"
    assert merge_task.main([str(run.path), "--task", "copy", "--out", str(out)]) == 0
    card = " ".join((out / "README.md").read_text().split())
    assert "The base model is stored quantised and was dequantised; its error" in card
    assert not packed_layers(load_pretrained(str(out)))


def test_adapted_tasks_share_the_base(case, run, tmp_path) -> None:
    """What serves several tasks holds the packed weights once."""
    load_run(run.path).save_pretrained(tmp_path / "adapted")
    known: dict[str, list[torch.Tensor]] = {}
    models = [load_run(folder).model for folder in (run.path, tmp_path / "adapted")]
    saved = [share_weights(model, known) for model in models]
    size = sum(
        part.nbytes
        for layer in packed_layers(models[0].backbone).values()
        for part in parts(layer.weight)  # type: ignore[arg-type]
    )
    assert saved[0] == 0
    assert saved[1] > size > 0


@pytest.mark.slow
def test_two_processes_train_as_one(case: tuple[str, str, Path]) -> None:
    # Without draws, which are a process's own.
    short = ("trainer.max_steps=4", "data.evaluate=[]", "router.relaxed=false")
    run = train(case[2], "one", *short, "data.batch_size=8")
    two = ("trainer.devices=2", "trainer.strategy=ddp", "data.batch_size=4")
    process = start(case[2], "two", *short, *two)
    _, said = process.communicate(timeout=280)
    assert process.returncode == 0, said
    two = RunFolder(case[2].parent / "runs" / "two")
    assert losses(run) == pytest.approx(losses(two), rel=1e-4)


def test_the_backbone_cannot_be_trained(case, run, tmp_path, capsys) -> None:
    whole = tmp_path / "whole.yaml"
    whole.write_text("backbone: {quantize: null}\n")
    given = ["--from", str(run.path), "--tasks", "reverse", "--allow-seen"]
    out = ["--out", str(tmp_path / "adapted"), "-k", "adapt.mode=full"]
    # By the configuration, and by that of the run where the configuration names another backbone.
    for files, message in (
        (f"{case[2]}", "adapt.mode 'full' trains the backbone, which needs an unquantised"),
        (f"{case[2]}+{whole}", "mode 'full' trains the backbone, but a quantised backbone cannot"),
    ):
        command = ["-c", files, *given, *out]
        assert run_command(lambda command=command: adapt.main(command)) == USER_MISTAKE
        assert message in " ".join(capsys.readouterr().err.split())
    with pytest.raises(ConfigError, match="mode 'full' trains the backbone, but a quantised"):
        apply_mode(load_run(run.path).model, "full")
