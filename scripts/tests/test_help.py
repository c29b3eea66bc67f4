"""Scripts say what they do, and what they do not know, before they import what takes seconds."""

from pathlib import Path

import pytest

from helpers.command import ROOT, python

SCRIPTS = [
    path.relative_to(ROOT).as_posix()
    for path in sorted((ROOT / "scripts").glob("*/*.py"))
    if "\ndef main(" in path.read_text(encoding="utf-8")
    and path.parent.name != "tests"
    and path.name != "fuzz.py"  # its areas, choices of --only, are the package's readers
]
ASKED = """
import runpy, sys
from pathlib import Path
_, name, option = sys.argv
sys.argv = [name, option]
sys.path.insert(0, str(Path(name).parent))
try:
    runpy.run_path(name, run_name="__main__")
finally:
    print("heavy:", *({"torch", "transformers", "pytorch_lightning", "datasets"} & {*sys.modules}))
"""


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize(("option", "status"), [("--help", 0), ("--no-such-option", 2)])
def test_a_script_answers_before_it_imports(script: str, option: str, status: int) -> None:
    ended = python("-c", ASKED, script, option)
    assert ended.returncode == status, ended.stderr
    assert ended.stdout.endswith("heavy:\n")
    assert "usage:" in ended.stdout + ended.stderr
    if not status:
        assert Path(script).name in ended.stdout
