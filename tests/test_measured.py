"""Tables of the results that come from kept scores are what their command prints."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from helpers.command import ROOT, load_recipe
from mttl.config.load import dump_config, load_config
from mttl.training.run_folder import changed_settings

sys.path.insert(0, str(ROOT / "scripts"))
RESULTS = (ROOT / "docs" / "results.md").read_text()
MEASURED = sorted(path for path in (ROOT / "docs" / "measured").iterdir() if path.is_dir())


@pytest.mark.parametrize("folder", MEASURED, ids=lambda folder: folder.name)
def test_results_have_the_tables_of_kept_scores(folder: Path, tmp_path: Path) -> None:
    named = rf"^python scripts/join_scores\.py (.*docs/measured/{folder.name}( .*)?)$"
    printed = re.search(named, RESULTS, flags=re.MULTILINE)
    assert printed, "no section says how to make the table of these scores"
    script = load_recipe(ROOT / "scripts" / "join_scores.py")
    assert script.main([*shlex.split(printed[1]), "--out", str(tmp_path)]) == 0
    # Scores of single tasks are in the file.
    (table,) = (
        path for name in ("table", "examples") if (path := tmp_path / f"{name}.md").is_file()
    )
    tables, _, _ = table.read_text().partition("\nUnseen tasks:\n")
    if (costs := tmp_path / "kinds.md").is_file():
        tables += costs.read_text()
    missing = [line for line in tables.splitlines() if line.startswith("|") and line not in RESULTS]
    assert not missing, "docs/results.md has other lines: " + "\n".join(missing)


@pytest.mark.parametrize("folder", MEASURED, ids=lambda folder: folder.name)
def test_further_scores_can_join_those_of_earlier_versions(folder: Path) -> None:
    path = folder / "config.yaml"
    now = dump_config(load_config(str(path), as_written=True))
    changed = changed_settings(path.read_text(), now, ignore=())
    assert not changed, "give these the value they had in LATER_SETTINGS: " + ", ".join(changed)
