"""The commands of the README, those that its numbers come from, and those of all figures run."""

import json
import re
from pathlib import Path

import pytest

from helpers.printed import DOCS, Command, commands, figures, text
from helpers.small import PARTITION, TABLE, run_small

README = text("README.md")
MAIN_JOB = "scripts/studies/main_job/README.md"
SOURCES = re.findall(r"\((scripts/[\w/]+/README\.md)", README)


def wanted() -> list[Command]:
    """Return the commands, in an order in which a reader may type them.

    Settings files of studies are not run here, but read by the tests of the scripts.
    """
    order = [text(MAIN_JOB), README, *(text(page) for page in SOURCES)]
    found = [command for part in order for command in commands(part)]
    found += [command for page in DOCS for _, made_by in figures(page) for command in made_by]
    found = [one for one in found if one.script != "scripts/studies/run.py"]
    return list(dict.fromkeys(one for one in found if "RUN" not in one.words))  # a reader's own


def test_what_runs_is_what_figures_and_numbers_come_from() -> None:
    names = {Path(command.script).stem for command in wanted()}
    assert names >= {"train", "adapt", "ablate", "plot", "compare", "babyai_record", "babyai_film"}
    assert names >= {"step_time", "generation", "serving"}
    assert MAIN_JOB in SOURCES


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_they_run_at_a_small_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "small.json").write_text(json.dumps(PARTITION))
    (tmp_path / "words.tsv").write_text(TABLE)
    monkeypatch.chdir(tmp_path)
    for command in wanted():
        run_small(command)
    assert (tmp_path / "levels.gif").stat().st_size > 0
    assert (tmp_path / "runs" / "seed13" / "plots" / "dendrogram.svg").is_file()
