"""The benchmark of composed policies measures what it says."""

import argparse
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from helpers.command import ROOT, load_recipe
from mttl.babyai.policy import Policy

FOLDER = ROOT / "scripts" / "benchmarks"


@pytest.fixture
def composition(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(FOLDER)
    yield load_recipe(FOLDER / "composition.py")
    sys.modules.pop("_common", None)


@pytest.mark.parametrize("use", ["acting", "learning"])
def test_every_variant_steps(composition: ModuleType, use: str) -> None:
    tiny = argparse.Namespace(use=use, n_channels=4, n_tasks=2, slots=2)
    sizes = {}
    for variant in composition.VARIANTS:
        step, facts = composition.build(variant, tiny)
        step()
        sizes[variant] = round(1e6 * facts["trainable"])
    n_logits = 2 * composition.N_SKILLS
    dense = (1 + composition.N_SKILLS) * sizes[composition.FLOOR] + n_logits
    assert sizes["loop, dense"] == sizes["vmap, dense"] == dense
    assert sizes["loop, sparse"] < dense / 3


def test_the_floor_sees_the_same_frames(composition: ModuleType) -> None:
    policy = Policy(composition.N_TOKENS, n_channels=4, memory_size=3)
    inputs = composition.make_inputs(3, 4, 2, 3)
    logits, values, memory = policy(*composition.join_tasks(*inputs))
    for task in range(3):
        own = [tensor[task] for tensor in inputs]
        found = policy(*own)
        slots = slice(2 * task, 2 * task + 2)
        # Float32, with other sizes of matrices.
        torch.testing.assert_close(found[0], logits[:, slots], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(found[1], values[:, slots], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(found[2], memory[slots], atol=1e-5, rtol=1e-4)


def test_an_unknown_use_is_refused(
    composition: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        composition.main(["--uses", "resting"])
    assert stopped.value.code == 2
    assert "'acting'" in capsys.readouterr().err
