"""Every study can be prepared, and its page names what exists."""

import json
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

from helpers.command import ROOT
from mttl.config.load import load_any_config

FOLDER = ROOT / "scripts" / "studies"
sys.path.insert(0, str(FOLDER))
RUN = import_module("run")
# Of transfer.py and commands.py.
OTHERS = sorted(
    p for name in ("cross_lingual", "faithful_dialogue") for p in FOLDER.glob(f"{name}/*.yaml")
)
STUDIES = sorted({*FOLDER.glob("*/*.yaml")} - {*OTHERS})
PAGES = sorted(FOLDER.glob("*/README.md"))


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_study_can_be_prepared(path: Path, tmp_path: Path) -> None:
    study = RUN.read_study(path)
    comparison, plans = RUN.prepare(study, tmp_path, None)
    assert {plan.name for plan in plans} == set(study.methods)
    for method in comparison.methods.values():
        files = "+".join(filter(None, (study.config, method.fragment)))
        load_any_config(files, [*study.settings, *method.settings])


def test_rates_are_searched_on_tasks_that_are_set_aside(tmp_path: Path) -> None:
    study = RUN.read_study(FOLDER / "ablations" / "lexical_ablations.yaml")
    comparison, (first, *_) = RUN.prepare(
        study.model_copy(update={"rates": "search"}), tmp_path, [2]
    )
    for fold in comparison.partitions:
        assert len(fold.dev) == 4
        assert len({*fold.train, *fold.dev, *fold.test}) == 45
    (variant,) = first.variants
    assert comparison.stages(variant) == ["search-all", "adapt-all"]
    command = comparison.command(first, variant, "search-all")
    assert command[2] == "search"
    points = json.loads(command[-1].partition("=")[2])
    rates = [point["adapt.lr"] for point in points]
    assert rates == pytest.approx([rates[0], 0.3 * rates[0], 3 * rates[0]], rel=1e-2)
    folder = comparison.run_folder(first) / "search-all"
    folder.mkdir(parents=True)
    (folder / "best.yaml").write_text("adapt: {lr: 0.25, router_lr: 0.5}\n")
    command = comparison.command(first, variant, "adapt-all")
    assert command[-2:] == ["adapt.lr=0.25", "adapt.router_lr=0.5"]
    comparison.cost_file(first, "adapt-all").write_text('{"ended": true}')
    assert comparison.note([first]).endswith("`shared_rank_128: all` 0.25 / 0.5 (1).")


def test_every_folder_has_a_page_that_names_its_settings_and_is_listed() -> None:
    assert {path.parent for path in STUDIES} <= {page.parent for page in PAGES}
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    settings = [*STUDIES, *OTHERS]
    assert [path.name for path in settings if f"{path.parent.name}/{path.name}" not in text] == []
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"\((\w+)/README\.md\)", index)
    assert sorted(listed) == [page.parent.name for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_a_page_is_short_and_its_files_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(text.split()) <= 400
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)", text)
    named = re.findall(r"scripts/studies/\w+/\w+\.yaml", text)
    missing = [link for link in links if not (page.parent / link).exists()]
    assert missing + [name for name in named if not (ROOT / name).is_file()] == []
