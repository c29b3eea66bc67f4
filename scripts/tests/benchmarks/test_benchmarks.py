"""The benchmarks measure what they say."""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from helpers.command import ROOT, load_recipe

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
def test_generation_makes_the_number_of_tokens_it_counts(generation, variant) -> None:
    call, _ = generation.build(variant, TINY)
    answers = call()
    assert answers.shape == (16, 1 + TINY.tokens)  # the decoder's start, then the new ones
    assert isinstance(answers, torch.Tensor)


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
