"""The benchmark of layers of experts measures what it says."""

import argparse
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from helpers.command import ROOT, load_recipe

FOLDER = ROOT / "scripts" / "benchmarks"


@pytest.fixture
def moe_speed(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(FOLDER)
    yield load_recipe(FOLDER / "moe_speed.py")
    sys.modules.pop("_common", None)


def test_every_variant_steps(moe_speed: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", True)  # and restored afterwards
    tiny = argparse.Namespace(d=8, h=8, e=3, n=5, threads=1, device="cpu", dtype="float32")
    for variant in moe_speed.VARIANTS:
        if variant == moe_speed.ST_MOE:
            continue  # an optional peer
        step, _ = moe_speed.build(variant, tiny)
        step()
        step()


def test_the_layers_are_of_one_size(moe_speed: ModuleType) -> None:
    def size(variant: str) -> int:
        layer = moe_speed.make_layer(variant, 6, 4, 3)
        return sum(parameter.numel() for parameter in layer.parameters())

    assert size("dense") == size("one expert") == 3 * 6 * 2 * 4
    with_router = 3 * (3 * 6 * 4) + 3 * 6
    assert size("ours") == size("Mixtral eager") == size("naive loop") == with_router


def test_the_naive_loop_computes_the_same(moe_speed: ModuleType) -> None:
    ours, naive = (moe_speed.make_layer(name, 6, 4, 3) for name in ("ours", "naive loop"))
    with torch.no_grad():
        naive.router.weight.copy_(ours.router.weight)
        naive.up.copy_(ours.experts.up)
        naive.down.copy_(ours.experts.down)
    x = torch.randn(1, 7, 6)
    found, expected = moe_speed.forward("ours", ours, x), moe_speed.forward("naive loop", naive, x)
    torch.testing.assert_close(found, expected)


def test_a_missing_peer_is_left_out_with_the_reason(moe_speed, capsys, monkeypatch) -> None:
    monkeypatch.setattr(moe_speed, "find_spec", lambda name: None)
    measured = []
    monkeypatch.setattr(
        moe_speed, "run", lambda build, settings, clock: measured.extend(settings.only) or []
    )
    assert moe_speed.main(["--experts", "8", "--tokens", "64"]) == 0
    assert "st-moe-pytorch is left out: it is not installed" in capsys.readouterr().err
    assert measured == [name for name in moe_speed.VARIANTS if name != moe_speed.ST_MOE]


def test_too_few_experts_are_refused(moe_speed, capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        moe_speed.main(["--experts", "1"])
    assert stopped.value.code == 2
    assert "--experts (1) must be at least 2" in capsys.readouterr().err
