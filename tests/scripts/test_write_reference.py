"""The generated pages are those of the code."""

import shutil
import sys
from pathlib import Path

import pytest

from helpers.command import ROOT, load_recipe

sys.path.insert(0, str(ROOT / "scripts"))  # as Python does for a script
SCRIPT = load_recipe(ROOT / "scripts" / "write_reference.py")


def test_the_pages_are_current() -> None:
    assert SCRIPT.main(["--check"]) == 0, "run python scripts/write_reference.py"


def test_pages_that_are_not_current(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for package in ("mttl", "envs"):
        shutil.copytree(
            ROOT / package,
            tmp_path / package,
            ignore=lambda folder, names: [name for name in names if "__pycache__" in name],
        )
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "architecture.md"
    page.write_text("before\n<!-- rooms: generated -->\n<!-- end -->\nafter\n", "utf-8")
    given = ["--root", str(tmp_path)]
    assert SCRIPT.main([*given, "--check"]) == 1
    assert "is not current; run python scripts/write_reference.py" in capsys.readouterr().err
    assert SCRIPT.main(given) == 0
    assert SCRIPT.main([*given, "--check"]) == 0
    text = page.read_text("utf-8")
    assert text.startswith("before\n")
    assert text.endswith("<!-- end -->\nafter\n")
    assert "| `mttl/skills/` | COMPUTATION" in text
    (tmp_path / "mttl" / "skills" / "another.py").write_text('"""Another file."""\n', "utf-8")
    assert SCRIPT.main([*given, "--check"]) == 1
