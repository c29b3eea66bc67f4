"""Recipes and Fisher information from the command line."""

import copy
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM

from helpers.cards import QUESTIONS, run_card
from helpers.chat_templates import save_tokenizer
from helpers.gyms import TINY_LLAMA, TINY_T5, make_run, store_backbone, write_gym
from mttl.aggregation.fisher import elastic_removal
from mttl.assembly.model import load_run
from mttl.commands import extract_lora as EXTRACT
from mttl.commands import fisher as ESTIMATE
from mttl.commands import merge as MERGE
from mttl.io import yaml12
from mttl.io.errors import CheckpointError
from mttl.models.backbone import build_random


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gym, and two models with Fisher information on one of its tasks."""
    folder = tmp_path_factory.mktemp("merge")
    write_gym(folder / "gym")
    for seed, name in enumerate(("base", "bad")):
        torch.manual_seed(seed)
        build_random("t5", TINY_T5["config"]).save_pretrained(folder / name)
        assert ESTIMATE.main(fisher(folder, name, f"{name}.safetensors")) == 0
    return folder


def fisher(folder: Path, model: str, out: str, *more: str) -> list[str]:
    return [
        *("--model", str(folder / model), "--tokenizer", "byte", "--gym", str(folder / "gym")),
        *("--tasks", "copy", "--out", str(folder / out), "--max-output-length", "6", *more),
    ]


def recipe(folder: Path, **changes: object) -> Path:
    tree: dict[str, object] = {
        "base": {"model": str(folder / "base"), "fisher": str(folder / "base.safetensors")},
        "models": [
            {
                "model": str(folder / "bad"),
                "role": "anti_expert",
                "weight": 0.15,
                "fisher": str(folder / "bad.safetensors"),
            }
        ],
        "method": {"kind": "elastic"},
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml12.dump(tree | changes))
    return path


def test_a_difference_becomes_an_adapter(folder: Path, tmp_path: Path, capsys) -> None:
    """PEFT's model with the adapter answers as the tuned model; the rank holds every change."""
    peft = pytest.importorskip("peft")
    base = AutoModelForSeq2SeqLM.from_pretrained(folder / "base").eval()
    tuned, generator = copy.deepcopy(base), torch.Generator().manual_seed(3)
    linear = [one for one in tuned.modules() if isinstance(one, torch.nn.Linear)]
    changed = [one for one in linear if one is not tuned.lm_head]
    with torch.no_grad():
        for layer in changed[::2]:
            out, into = layer.weight.shape
            factors = [torch.randn(n, 2, generator=generator) for n in (out, into)]
            layer.weight += 0.1 * factors[0] @ factors[1].t()
    tuned.save_pretrained(tmp_path / "tuned")
    given = ["--base", str(folder / "base"), "--model", str(tmp_path / "tuned")]
    assert EXTRACT.main([*given, "--rank", "2", "--out", str(tmp_path / "adapter")]) == 0
    assert f"{len(changed[::2])} layers, relative error" in " ".join(
        capsys.readouterr().out.split()
    )
    found = peft.PeftModel.from_pretrained(base, str(tmp_path / "adapter")).eval()
    ids = torch.arange(3, 11)[None]
    expected = tuned(input_ids=ids, decoder_input_ids=ids).logits
    answer = found(input_ids=ids, decoder_input_ids=ids).logits
    torch.testing.assert_close(answer, expected, rtol=1e-4, atol=1e-4)  # an SVD in each layer
    same = ["--base", str(folder / "base"), "--model", str(folder / "base")]
    with pytest.raises(CheckpointError, match="no linear layer of"):
        EXTRACT.main([*same, "--out", str(tmp_path / "none")])


def test_an_anti_expert_is_removed(folder: Path, tmp_path: Path) -> None:
    assert MERGE.main([str(recipe(folder, out=str(tmp_path / "out")))]) == 0
    found, base, bad = (
        dict(AutoModelForSeq2SeqLM.from_pretrained(path).named_parameters())
        for path in (tmp_path / "out", folder / "base", folder / "bad")
    )
    f0, f = (load_file(folder / f"{name}.safetensors") for name in ("base", "bad"))
    assert f.keys() == found.keys()
    for name, value in found.items():
        vector = (bad[name] - base[name]).detach()
        expected = elastic_removal(base[name].detach(), f0[name], [vector], [f[name]], [-0.15])
        torch.testing.assert_close(value.detach(), expected, rtol=1e-5, atol=1e-6)


def test_tasks_of_runs_say_how_they_are_asked(tmp_path: Path) -> None:
    """The base plus a task of a run answers as the run does, by the lines of the card."""
    base = tmp_path / "base"
    backbone = store_backbone(base, {**TINY_LLAMA, "initial_scale": {"*": 8.0}})
    save_tokenizer(base)
    backbone |= {"tokenizer": None, "train": False}
    form = {"template": "chat", "system": "Answer.", "max_input_length": 160}
    made = make_run(tmp_path, "generation.num_beams=2", backbone=backbone, data=form)
    run, ingredient = load_run(made), {"run": str(made), "task": "reverse"}
    path = tmp_path / "recipe.yaml"
    for models in ([ingredient], [ingredient, {**ingredient, "task": "copy", "weight": 1e-9}]):
        tree = {"base": {"model": str(base)}, "models": models, "method": {"kind": "arithmetic"}}
        path.write_text(yaml12.dump(tree))
        out = tmp_path / f"merged{len(models)}"
        assert MERGE.main([str(path), "--out", str(out)]) == 0
        assert run_card(out, QUESTIONS) == run.predict("reverse", QUESTIONS)
        assert ("| 1 | `copy` |" in (out / "README.md").read_text()) == (len(models) > 1)
    # Without a tokenizer the merge is made all the same.
    for file in base.glob("*token*"):
        file.unlink()
    assert MERGE.main([str(path), "--out", str(tmp_path / "silent")]) == 0
    assert not (tmp_path / "silent" / "README.md").exists()


def test_mistakes_end_in_a_message_and_no_folder(folder, tmp_path, refused) -> None:
    (tmp_path / "there").mkdir()
    gone = {"model": str(folder / "gone"), "fisher": "gone"}
    for changes, given, message in (
        ({}, [], ": set the key out in the recipe, or use --out DIR"),
        ({"base": gone}, ["--out", tmp_path / "x"], "does not exist"),
    ):
        assert message in refused(MERGE.main, recipe(folder, **changes), *given)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_the_kinds_of_information_differ_and_are_written_down(folder: Path) -> None:
    found = [load_file(folder / "base.safetensors")]
    for out, more in (
        ("sampled.safetensors", ("--labels", "sampled")),
        ("batch.safetensors", ("--gradients", "batch")),
        ("single.safetensors", ("--at-once", "1")),
    ):
        assert ESTIMATE.main(fisher(folder, "base", out, *more)) == 0
        found.append(load_file(folder / out))
    name = "shared.weight"
    plain, sampled, batch, single = (tensors[name] for tensors in found)
    torch.testing.assert_close(single, plain)  # float32 sums in another order
    assert not torch.allclose(sampled, plain)
    assert not torch.allclose(batch, plain)
    with safe_open(folder / "sampled.safetensors", framework="pt") as file:
        metadata = file.metadata()
    assert (metadata["labels"], metadata["gradients"]) == ("sampled", "example")
    assert (metadata["tasks"], metadata["n_rows"]) == ("copy", "16")


def test_fisher_mistakes_are_named(folder, refused) -> None:
    for model, out, more, message in (
        ("base", "base.safetensors", (), "already exists"),
        ("base", "x.bin", (), "must end in .safetensors"),
        ("gone", "x.safetensors", (), "nor a valid name of a model"),
    ):
        assert message in refused(ESTIMATE.main, *fisher(folder, model, out, *more))
    assert not (folder / "x.safetensors").exists()
