"""The tutorials run, at small sizes: each notebook after the other, as a reader does."""

import json
import re
from pathlib import Path

import pytest

from helpers.command import ROOT
from helpers.printed import commands
from helpers.small import PARTITION, run_small

NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "small.json").write_text(json.dumps(PARTITION))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_lines(block: str) -> None:
    """Run lines of the shell, ``mttl train …``."""
    for command in commands(f"```\n{block.rstrip()}\n```"):
        run_small(command)


@pytest.mark.parametrize("n", [1, pytest.param(len(NOTEBOOKS), marks=pytest.mark.slow)])
def test_the_tutorials_run(place: Path, n: int) -> None:
    for notebook in NOTEBOOKS[:n]:
        names: dict = {"run_lines": run_lines}
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
            source = "".join(cell["source"])
            if cell["cell_type"] == "markdown":
                for block in re.findall(r"```\n(.*?)^```$", source, re.DOTALL | re.MULTILINE):
                    run_lines(block)
            if cell["cell_type"] == "code":
                code = source.replace("max_steps=60", "max_steps=1")
                exec(
                    re.sub(r"(?m)^!(mttl .*)$", lambda line: f"run_lines({line[1]!r})", code), names
                )
