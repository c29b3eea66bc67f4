"""The commands of the README, those that its numbers come from, and those of all figures run."""

import json
import re
from pathlib import Path

import pytest

from helpers.command import ROOT
from helpers.printed import PAGES, Command, commands, figures, sections, text
from helpers.small import PARTITION, TABLE, run_small

README = text("README.md")
SOURCES = re.findall(r"docs/results\.md#([\w-]+)", README)


def wanted() -> list[Command]:
    """Return the commands, in an order in which a reader may type them."""
    results = sections("docs/results.md")
    order = [results["the-main-job"], README, *(results[anchor] for anchor in SOURCES)]
    found = [command for part in order for command in commands(part)]
    found += [command for page in PAGES for _, made_by in figures(page) for command in made_by]
    return list(dict.fromkeys(one for one in found if "RUN" not in one.words))  # a reader's own


def test_what_runs_is_what_figures_and_numbers_come_from() -> None:
    scripts = {Path(command.script).stem for command in wanted()}
    assert scripts >= {"pl_train", "ablate", "film_policy", "plot_routing", "compare", "forgetting"}
    assert scripts >= {"compare_library", "member_mixing"}
    assert scripts >= {"pl_finetune", "step_time", "generation", "serving", "sample_efficiency"}
    assert set(SOURCES) <= set(sections("docs/results.md"))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_they_run_at_a_small_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "small.json").write_text(json.dumps(PARTITION))
    (tmp_path / "words.tsv").write_text(TABLE)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "measured").symlink_to(ROOT / "docs" / "measured")
    monkeypatch.chdir(tmp_path)
    for command in wanted():
        run_small(command)
    assert (tmp_path / "levels.gif").stat().st_size > 0
    drawn = ("compare/comparison.svg", "forgetting/tradeoff.svg", "seed13/plots/dendrogram.svg")
    for figure in drawn:
        assert (tmp_path / "runs" / figure).is_file(), figure
