"""The page of settings is that of the schemas."""

from pathlib import Path

import pytest

from helpers.command import ROOT, load_recipe

SCRIPT = load_recipe(ROOT / "scripts" / "write_reference.py")


def test_the_page_is_current() -> None:
    assert SCRIPT.main(["--check"]) == 0, "run python scripts/write_reference.py"


def test_a_page_that_is_not_current(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--page", str(tmp_path / "page.md")]
    assert SCRIPT.main([*given, "--check"]) == 1
    assert "is not current; run python scripts/write_reference.py" in capsys.readouterr().err
    assert SCRIPT.main(given) == 0
    assert SCRIPT.main([*given, "--check"]) == 0
