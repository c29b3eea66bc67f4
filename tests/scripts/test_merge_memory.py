"""The benchmark of merging compares like with like, and memory is bounded."""

import argparse
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file

from helpers.command import ROOT, load_recipe

FOLDER = ROOT / "scripts" / "benchmarks"
MIB = 160
MEASURE = """
import re, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import merge_memory
from mttl.merging.run import merge_models
folder = Path(sys.argv[1])
def high():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
before = high()
folders = [folder / name for name in ("base", "model0")]
for name in sys.argv[3].split(";"):
    recipe = merge_memory.make_recipe(merge_memory.METHODS[name], folders)
    merge_models(recipe, folder / name)
print(high() - before)
"""


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(FOLDER)
    yield load_recipe(FOLDER / "merge_memory.py")
    sys.modules.pop("_common", None)


def test_both_ways_give_the_same_weights(benchmark: ModuleType, tmp_path: Path) -> None:
    names = ["base", "model0", "model1"]
    for seed, name in enumerate(names):
        benchmark.write_model(tmp_path / name, 1, seed)
    settings = argparse.Namespace(folder=tmp_path, names=names)
    for variant in (benchmark.FLOOR, "arithmetic"):
        benchmark.build(variant, settings)[0]()
    expected = load_file(tmp_path / "whole_models" / "model.safetensors")
    found: dict[str, torch.Tensor] = {}
    for path in (tmp_path / "arithmetic").glob("*.safetensors"):
        found |= load_file(path)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value)


@pytest.mark.slow
@pytest.mark.parametrize("methods", ["arithmetic;elastic", "ties;ties, over all", "dare"])
def test_memory_does_not_grow_with_the_models(
    benchmark: ModuleType, tmp_path: Path, methods: str
) -> None:
    for seed, name in enumerate(("base", "model0")):
        benchmark.write_model(tmp_path / name, MIB, seed)
    ended = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path), str(FOLDER), methods],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    # A range is 4 MiB, of which some twenty are held; either model has 160, its largest tensor 80.
    assert int(ended.stdout) < 1024 * 140, ended.stdout
