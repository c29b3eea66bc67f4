"""The benchmarks measure what they say, and compare the same work."""

import argparse
import importlib.util
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from helpers.command import ROOT, python
from helpers.gym_fixtures import GymMaker
from helpers.gym_fixtures import make_gym as make_gym

FOLDER = ROOT / "scripts" / "benchmarks"
TINY = argparse.Namespace(size="tiny", tokens=2, n_beams=2, rows=16, device="cpu", dtype="float32")
Load = Callable[[str], ModuleType]


@pytest.fixture
def step_time(load: Load) -> ModuleType:
    return load("step_time")


@pytest.fixture
def moe_speed(load: Load) -> ModuleType:
    return load("moe_speed")


@pytest.fixture
def end_to_end(load: Load) -> ModuleType:
    return load("end_to_end")


@pytest.fixture
def settings(end_to_end: ModuleType, make_gym: GymMaker, tmp_path: Path) -> argparse.Namespace:
    gym = make_gym({"one": 9, "two": 9})
    end_to_end.learn_tokenizer(gym.directory, tmp_path)
    small = {"size": "tiny", "batches": 2, "batch_size": 4}
    return argparse.Namespace(data=gym.directory, folder=tmp_path, **small)


def test_ratios_are_paired_within_a_round(step_time: ModuleType) -> None:
    """A machine that gets twice as slow in the middle changes the times and not the ratios."""
    import _common  # type: ignore[import-not-found]

    found = _common.summarise([3.0, 6.0, 6.6], [2.0, 4.0, 4.0])
    assert found == pytest.approx(
        {"median": 6.0, "min": 3.0, "max": 6.6, "ratio": 1.5, "ratio_min": 1.5, "ratio_max": 1.65}
    )


@pytest.mark.parametrize("variant", ["frozen", "ours H=4"])
def test_every_variant_steps(step_time: ModuleType, variant: str) -> None:
    """Adapters have parameters; the floor has none and still computes gradients."""
    step, facts = step_time.build(variant, TINY)
    step()
    assert (facts["trainable"] == 0) == (variant == "frozen")


def test_peers_are_as_large_as_they_claim(step_time: ModuleType) -> None:
    """One LoRA; eight skills and as many logits as ours."""
    pytest.importorskip("peft")
    sizes = {
        name: step_time.build(name, TINY)[1]["trainable"]
        for name in ("PEFT LoRA", "PEFT Poly H=1", "ours H=1")
    }
    n_layers = 2 * (4 + 2) + 2 * (4 + 4 + 2)  # attention, cross-attention and feed-forward
    n_logits = 16 * 8 * n_layers / 1e6
    assert sizes["ours H=1"] == pytest.approx(8 * sizes["PEFT LoRA"] + n_logits)
    assert sizes["PEFT Poly H=1"] == pytest.approx(sizes["ours H=1"])


@pytest.mark.parametrize("variant", ["ours H=1", "ours, one task H=1"])
def test_generation_makes_the_number_of_tokens_it_counts(load: Load, variant: str) -> None:
    call, _ = load("generation").build(variant, TINY)
    answers = call()
    assert answers.shape == (16, 1 + TINY.tokens)  # the decoder's start, then the new ones


@pytest.mark.slow
def test_the_command_prints_and_writes_its_table(tmp_path) -> None:
    figures = tmp_path / "figures.json"
    arguments = ["--size", "tiny", "--rounds", "1", "--warmup", "1", "--json", str(figures)]
    ended = python(FOLDER / "step_time.py", *arguments, "--only", "ours H=1")
    assert ended.returncode == 0, ended.stderr
    assert "ours H=1" in ended.stdout
    rows = json.loads(figures.read_text())["rows"]
    assert [row["name"] for row in rows] == ["frozen", "ours H=1"]
    assert rows[0]["ratio"] == 1.0
    assert all(row["median"] > 0 and row["peak_mib"] > 0 for row in rows)


def test_every_layer_of_experts_steps(moe_speed, monkeypatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", True)  # and restored afterwards
    tiny = argparse.Namespace(d=8, h=8, e=3, n=5, threads=1, device="cpu", dtype="float32")
    for variant in moe_speed.VARIANTS:
        if variant == moe_speed.ST_MOE:
            continue  # an optional peer
        step, _ = moe_speed.build(variant, tiny)
        step()
        step()


def test_the_layers_are_of_one_size_and_the_naive_loop_computes_the_same(moe_speed) -> None:
    def size(variant: str) -> int:
        layer = moe_speed.make_layer(variant, 6, 4, 3)
        return sum(parameter.numel() for parameter in layer.parameters())

    assert size("dense") == size("one expert") == 3 * 6 * 2 * 4
    with_router = 3 * (3 * 6 * 4) + 3 * 6
    assert size("ours") == size("Mixtral eager") == size("naive loop") == with_router
    ours, naive = (moe_speed.make_layer(name, 6, 4, 3) for name in ("ours", "naive loop"))
    with torch.no_grad():
        naive.router.weight.copy_(ours.router.weight)
        naive.up.copy_(ours.experts.up)
        naive.down.copy_(ours.experts.down)
    x = torch.randn(1, 7, 6)
    found, expected = moe_speed.forward("ours", ours, x), moe_speed.forward("naive loop", naive, x)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("variant", ["minigrid", "gymnasium sync", "ours", "envpool"])
def test_every_variant_plays(load: Load, variant, capsys) -> None:
    if variant == "envpool" and importlib.util.find_spec("envpool") is None:
        pytest.skip("envpool is not installed")
    small = {"level": "GoToObjS4", "levels": ["GoToObjS4"], "slots": 2, "steps": 3, "workers": 1}
    step, _ = load("env_speed").build(variant, argparse.Namespace(**small))
    step()
    assert capsys.readouterr().out == ""


def test_all_ways_of_serving_give_the_same_answers(load: Load) -> None:
    pytest.importorskip("peft")
    serving, tiny = load("serving"), argparse.Namespace(size="tiny", tokens=3, burst=40)
    answers = {name: serving.build(name, tiny)[0]() for name in serving.VARIANTS}
    expected = answers.pop(serving.QUEUE)
    assert len(set(expected)) > 8
    assert {len(text.split()) for text in expected} == {3}
    floor = answers.pop(serving.FLOOR)  # merges the first task only
    assert floor[:: serving.N_TASKS] == expected[:: serving.N_TASKS]
    assert floor != expected
    assert answers == dict.fromkeys(answers, expected)


@pytest.mark.parametrize("model", ["t5", "llama"])
def test_all_sides_train_on_the_same_rows_and_ours_again(end_to_end, settings, model) -> None:
    settings.model = model
    config = end_to_end.configuration(end_to_end.OURS, settings)
    data = end_to_end.data_of(config, 8)
    ours: Counter[tuple[int, ...]] = Counter()
    for batch in data.train_dataloader():
        rows = zip(batch["input_ids"], batch["attention_mask"].bool(), strict=True)
        ours.update(tuple(ids[mask].tolist()) for ids, mask in rows)
    peers = Counter(tuple(row["input_ids"]) for row in end_to_end.peer_rows(data, end_to_end.LOOP))
    assert ours == peers
    assert sum(peers.values()) == 8
    step, _ = end_to_end.build(end_to_end.OURS, settings)
    step()
    step()
    assert (settings.folder / "ours" / "plots" / "routing_history.npz").is_file()


@pytest.mark.parametrize("variant", ["PEFT LoRA, loop", "PEFT Poly, Trainer"])
def test_peers_train(end_to_end: ModuleType, settings: argparse.Namespace, variant: str) -> None:
    pytest.importorskip("peft")
    pytest.importorskip("accelerate")
    settings.model = "llama"
    step, _ = end_to_end.build(variant, settings)
    step()


def test_growth_is_that_of_a_training_of_the_given_size(load: Load, tmp_path: Path) -> None:
    growth = load("growth")
    growth.write_tasks(tmp_path, 2, 3)
    found = growth.work("skills", 3, tmp_path, 2)
    assert found.keys() == {*growth.FIGURES}
    assert all(value > 0 for value in found.values())
    with np.load(tmp_path / "run" / "plots" / "routing.npz") as arrays:
        assert arrays["weights"].shape[1:] == (2, 3)
