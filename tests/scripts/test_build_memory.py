"""The benchmark of building compares like with like, and memory is bounded."""

import argparse
import subprocess
import sys
from types import ModuleType

import pytest

from helpers.command import ROOT, load_recipe

FOLDER = ROOT / "scripts" / "benchmarks"
MEASURE = """
import re, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import build_memory
folder = Path(sys.argv[1])
for case in build_memory.CASES.values():
    outcome = build_memory.build_gym.build_task(case, folder / "out", raw=folder)
    assert outcome.status == "built", outcome
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(FOLDER)
    yield load_recipe(FOLDER / "build_memory.py")
    sys.modules.pop("_common", None)


@pytest.mark.parametrize("case", ["topics", "summaries", "filtered", "stars"])
def test_every_variant_writes_the_same_files(benchmark: ModuleType, tmp_path, monkeypatch, case):
    """The floor is a program of its own, so this tests the builder too, above its threshold."""
    monkeypatch.setattr(benchmark.build_gym, "make_lines", benchmark.make_lines)
    benchmark.write_source(tmp_path, 21_000)
    written = {}
    for variant in ("build", "plain loop", "stored"):  # the last one replaces `make_lines`
        settings = argparse.Namespace(case=case, folder=tmp_path, rows=21_000)
        step, _ = benchmark.build(variant, settings)
        step()
        files = (tmp_path / variant.replace(" ", "_")).rglob("*.jsonl")
        written[variant] = {path.name: path.read_bytes() for path in files}
    assert len(written["build"]) == 15
    assert written["build"] == written["stored"] == written["plain loop"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_million_rows_fit_in_a_quarter_of_a_gigabyte(benchmark: ModuleType, tmp_path):
    """All four kinds of tasks in one process; about 130 MB, numpy and Python included."""
    if not sys.platform.startswith("linux"):
        pytest.skip("the peak of a process's memory is read from /proc")
    benchmark.write_source(tmp_path, 1_000_000)
    command = [sys.executable, "-c", MEASURE, str(tmp_path), str(FOLDER)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(found.stdout) < 256 * 1024
