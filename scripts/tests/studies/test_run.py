"""Every study can be prepared, and its page names what exists."""

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
STUDIES = sorted(FOLDER.glob("*/*.yaml"))
PAGES = sorted(FOLDER.glob("*/README.md"))


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_study_can_be_prepared(path: Path, tmp_path: Path) -> None:
    study = RUN.read_study(path)
    comparison, plans = RUN.prepare(study, tmp_path, None)
    assert {plan.name for plan in plans} == set(study.methods)
    for method in comparison.methods.values():
        load_any_config(f"{study.config}+{method.fragment}", [*study.settings, *method.training()])


def test_every_folder_has_a_page_that_names_its_settings() -> None:
    assert {path.parent for path in STUDIES} <= {page.parent for page in PAGES}
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [path.name for path in STUDIES if f"{path.parent.name}/{path.name}" not in text] == []


def test_the_index_lists_every_page() -> None:
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
