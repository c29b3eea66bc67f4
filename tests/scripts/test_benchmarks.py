"""The benchmarks measure what they say."""

import argparse
import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from helpers.command import ROOT, load_recipe
from helpers.quantised import require

FOLDER = ROOT / "scripts" / "benchmarks"
TINY = argparse.Namespace(size="tiny", tokens=2, n_beams=2, rows=16, device="cpu", dtype="float32")


@pytest.fixture
def step_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(FOLDER)
    yield load_recipe(FOLDER / "step_time.py")
    for name in ("_common", "_models"):
        sys.modules.pop(name, None)


@pytest.fixture
def generation(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(FOLDER)
    yield load_recipe(FOLDER / "generation.py")
    for name in ("_common", "_models"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("step_time")
def test_paths_among_the_settings_are_written_as_text(tmp_path: Path) -> None:
    import _common  # type: ignore[import-not-found]

    figures = tmp_path / "figures.json"
    settings = argparse.Namespace(only=["ours"], data=tmp_path, json=figures)
    _common.report([], settings, title="nothing", unit="ms", columns={})
    assert json.loads(figures.read_text())["settings"]["data"] == str(tmp_path)


def test_ratios_are_paired_within_a_round(step_time: ModuleType) -> None:
    """A machine that gets twice as slow in the middle changes the times and not the ratios."""
    import _common  # type: ignore[import-not-found]

    found = _common.summarise([3.0, 6.0, 6.6], [2.0, 4.0, 4.0])
    assert found == pytest.approx(
        {"median": 6.0, "min": 3.0, "max": 6.6, "ratio": 1.5, "ratio_min": 1.5, "ratio_max": 1.65}
    )


@pytest.mark.parametrize("variant", ["frozen", "ours H=1", "ours H=4", "full fine-tuning"])
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


@pytest.mark.parametrize("variant", ["bare", "ours H=1", "ours, one task H=1"])
def test_generation_makes_the_number_of_tokens_it_counts(
    generation: ModuleType, variant: str
) -> None:
    call, _ = generation.build(variant, TINY)
    answers = call()
    assert answers.shape == (16, 1 + TINY.tokens)  # the decoder's start, then the new ones
    assert isinstance(answers, torch.Tensor)


def test_speeds_turn_around_with_their_spread(generation: ModuleType) -> None:
    row = {"name": "x", "median": 100.0, "min": 50.0, "max": 200.0}
    ratios = {"ratio": 2.0, "ratio_min": 1.0, "ratio_max": 4.0}
    speed = generation.as_speed(row | ratios, 10)
    assert (speed["min"], speed["median"], speed["max"]) == (50.0, 100.0, 200.0)
    assert (speed["ratio_min"], speed["ratio"], speed["ratio_max"]) == (0.25, 0.5, 1.0)


@pytest.mark.slow
def test_the_command_prints_and_writes_its_table(tmp_path) -> None:
    figures = tmp_path / "figures.json"
    arguments = ["--size", "tiny", "--rounds", "1", "--warmup", "1", "--json", str(figures)]
    ended = subprocess.run(
        [sys.executable, FOLDER / "step_time.py", *arguments, "--only", "ours H=1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "ours H=1" in ended.stdout
    rows = json.loads(figures.read_text())["rows"]
    assert [row["name"] for row in rows] == ["frozen", "ours H=1"]
    assert rows[0]["ratio"] == 1.0
    assert all(row["median"] > 0 and row["peak_mib"] > 0 for row in rows)


def test_an_unknown_variant_is_refused(
    step_time: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        step_time.main(["--only", "adapters"])
    assert stopped.value.code == 2
    assert "'PEFT LoRA'" in capsys.readouterr().err


def test_steps_of_answer_logits_do_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    script = load_recipe(FOLDER / "answer_logits.py")
    settings = argparse.Namespace(size="tiny", n_tokens=50, dtype="float32")
    gradients = []
    for variant in script.VARIANTS:
        step, _ = script.build(variant, settings)
        torch.manual_seed(1)  # of the router's draws
        step()
        model = inspect.getclosurevars(step).nonlocals["model"]
        layers = model.skilled_layers().values()
        gradients.append(torch.cat([layer.inventory.up.grad.flatten() for layer in layers]))
    assert gradients[0].abs().max() > 0
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0])


def test_every_kind_of_batch_trains_on_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    script = load_recipe(FOLDER / "packing.py")
    settings = argparse.Namespace(size="tiny", rows=40, longest=64, gym=None)
    losses, padding = {}, {}
    for variant in script.VARIANTS:
        step, facts = script.build(variant, settings)
        losses[variant], padding[variant] = step(), facts["padding"]
    # Weights do not move: the sum over all rows is the same however they are cut.
    assert losses == pytest.approx(dict.fromkeys(losses, losses["rows"]), rel=1e-5)
    assert padding["rows"] > padding["window"] > padding["budget"]
    assert padding["rows"] > padding["packed"]


def test_lists_and_disk_read_the_same_batches(tmp_path) -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("memory is read from /proc")
    script = load_recipe(FOLDER / "streaming.py")
    script.write_gym(tmp_path / "gym", 300, 3)
    threads = torch.get_num_threads()
    found = [script.measure(variant, tmp_path) for variant in script.VARIANTS]
    torch.set_num_threads(threads)
    assert found[0][-1]["sum"] == found[1][-1]["sum"]
    assert all(phase["most"] >= phase["end"] > 0 for phases in found for phase in phases)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_plans_are_near_the_measured_peaks(tmp_path: Path) -> None:
    names = ("t5, checkpointing", "llama, answers of 4 beams")
    run = [sys.executable, FOLDER / "planned_memory.py", "--json", tmp_path / "found.json"]
    subprocess.run([*run, "--only", *names], cwd=ROOT, check=True)
    for row in json.loads((tmp_path / "found.json").read_text()):
        assert row["planned"] == pytest.approx(row["measured"], rel=0.15), row["setting"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_processes_are_compared_with_one(tmp_path: Path) -> None:
    run = [sys.executable, FOLDER / "two_processes.py", "--json", tmp_path / "found.json"]
    subprocess.run([*run, "--steps", "4", "--rounds", "1"], cwd=ROOT, check=True)
    rows = json.loads((tmp_path / "found.json").read_text())
    assert [row["processes"] for row in rows] == [1, 2]


def test_bases_in_fewer_bits_are_smaller(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    script = load_recipe(FOLDER / "quantised.py")
    script.write_base(tmp_path, "tiny")
    settings = argparse.Namespace(size="tiny", folder=str(tmp_path), rows=2, tokens=16)
    sizes = {}
    for variant, given in script.VARIANTS.items():
        if "quantize" in given:
            require(given["quantize"])
        step, facts = script.build(variant, settings)
        step()
        sizes[variant] = facts["base_mib"]
    assert sizes["float32"] == 2 * sizes["bfloat16"]
    assert sizes["nf4, bfloat16"] < sizes["nf4"] < sizes["int4"] < sizes["int8"] < sizes["float32"]
