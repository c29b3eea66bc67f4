"""The command for a GPU: its rows, what becomes of those that fail, and going on."""

import argparse
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from helpers.command import ROOT, load_recipe

FOLDER = ROOT / "scripts" / "benchmarks"
MACHINE = {"device": "a device", "torch": "1"}


@pytest.fixture
def gpu() -> ModuleType:
    return load_recipe(FOLDER / "gpu.py")


def fake(gpu: ModuleType, name: str, code: str, limit: float = 60) -> Any:
    command = ("-c", f"import sys; out, runs = sys.argv[1:]\n{code}", "{out}", "{runs}")
    return gpu.BenchmarkRow(
        name, command, ("-c", "raise SystemExit(9)"), limit, lambda found: found["says"]
    )


def call(gpu: ModuleType, rows: list[Any], out: Path, minutes: float = 1) -> tuple[int, Any]:
    settings = argparse.Namespace(out=out, minutes=minutes, dry_run=False)
    status = gpu.run_rows(rows, settings, MACHINE)
    return status, json.loads((out / "rows.json").read_text())["rows"]


def test_a_row_that_fails_stops_no_other_and_a_second_call_goes_on(gpu, tmp_path, capsys) -> None:
    count = tmp_path / "count"
    note = f"open({str(count)!r}, 'a').write('x'); open(out, 'w').write('{{\"says\": \"1 | 2\"}}')"
    rows = [
        fake(gpu, "breaks", "print('one'); raise ValueError('[no] good')"),
        fake(gpu, "refuses", "print('error: no peft'); print('tip'); sys.exit(2)"),
        fake(gpu, "writes nothing", ""),
        fake(gpu, "works", note),
    ]
    status, found = call(gpu, rows, tmp_path)
    assert status == 1
    assert {name: row["state"] for name, row in found.items()} == {
        "breaks": "failed", "refuses": "refused", "writes nothing": "failed", "works": "done"
    }  # fmt: skip
    assert found["breaks"]["says"] == "status 1: ValueError: [no] good"
    assert found["refuses"]["says"] == "status 2: error: no peft"
    assert found["writes nothing"]["says"] == "status 0: no output"
    table = (tmp_path / "table.md").read_text()
    assert "- device: a device\n- torch: 1\n" in table
    assert "| works | done |" in table
    assert "| 1 / 2 |" in table
    assert "[no] good" in capsys.readouterr().out

    fixed = [fake(gpu, name, note) for name in found]
    status, found = call(gpu, fixed, tmp_path)
    assert status == 0
    assert {row["state"] for row in found.values()} == {"done"}
    assert len(count.read_text()) == 4  # one of the first call, three of the second

    (tmp_path / "rows.json").write_text(json.dumps({"machine": {}, "rows": {"works": {}}}))
    _, found = call(gpu, fixed[:1], tmp_path)
    assert list(found) == ["breaks"]  # figures of another machine are not kept
    assert "of another machine" in capsys.readouterr().out


@pytest.mark.slow
def test_a_dry_run_fills_every_row(gpu: ModuleType, tmp_path: Path) -> None:
    assert gpu.main(["--dry-run", "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert list(rows) == [row.name for row in gpu.ROWS]
    assert {row["state"] for row in rows.values()} <= {"done", "refused"}
    optional = {"llama-nf4", "llama-int8"}  # need libraries that quantise
    assert {name for name, row in rows.items() if row["state"] != "done"} <= optional
