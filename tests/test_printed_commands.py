"""Every command that README and site print is one, and every figure says which one made it."""

import argparse
import re
from pathlib import Path
from typing import Any

import pytest

from helpers.command import ROOT, load_recipe
from helpers.printed import DOCS, PAGES, Command, commands, figures, text
from mttl.config.load import configs_dir, load_any_config
from mttl.io import yaml12

PRINTED = {f"{page}: {command}": command for page in PAGES for command in commands(text(page))}
# Fault-injection tests import all that they kill.
LINES = [
    pytest.param(
        command, marks=pytest.mark.slow if "/fault_injection/" in command.script else (), id=line
    )
    for line, command in PRINTED.items()
]
PLACEHOLDERS = {"NAME": "private", "SECTION": "skills"}  # what a reader fills in
# Files that a reader writes or a run leaves, so that they are not in the repository.
OWN_FILES = re.compile(r"(runs/\S+|RUN\S*|mine|my_\w+|recipe|YOUR)\.yaml")


class Parsed(Exception):
    """Raised where a command would begin to work."""


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop a command that reads its options and works in one function, and find what it finds."""
    read = argparse.ArgumentParser.parse_args

    def and_stop(self: argparse.ArgumentParser, *given: Any, **named: Any) -> None:
        read(self, *given, **named)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", and_stop)


def filled(word: str) -> str:
    return re.sub("|".join(PLACEHOLDERS), lambda found: PLACEHOLDERS[found[0]], word)


def read_options(command: Command, request: pytest.FixtureRequest) -> argparse.Namespace | None:
    """Return what a command reads from its line, or None where it does not say."""
    path = ROOT / command.script
    monkeypatch = request.getfixturevalue("monkeypatch")
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(path.parent)
    module = load_recipe(path)
    words = [filled(word) for word in command.words]
    if {"--help", "--settings"} & set(words):
        with pytest.raises(SystemExit, match="0"):
            module.main(words)
        return None
    if hasattr(module.main, "parse"):
        return module.main.parse(words)
    request.getfixturevalue("reading")
    with pytest.raises(Parsed):
        module.main(words)
    return None


def test_commands_are_found_in_all_forms() -> None:
    assert len(PRINTED) > 200
    found = [str(command) for command in commands(text("scripts/studies/main_job/README.md"))]
    train = "mttl/commands/train.py -c crossfit.yaml"
    assert f"{train} -k run.seed=13 run.name=seed13" in found  # of a loop
    assert any(line.startswith(f"{train}+") for line in found if "joint" in line)
    assert [command.script for command in commands("`mttl plot RUN` ↵ `python -V`")] == [
        "mttl/commands/plot.py"
    ]
    (two,) = commands("```\nmttl babyai record --out bot.npz\n```")
    assert str(two) == "mttl/commands/babyai_record.py --out bot.npz"
    (asked,) = [one for one in commands(text("README.md")) if one.stdin]
    assert (asked.words[-1], asked.stdin) == ("verb_past", "words.tsv")


@pytest.mark.parametrize("command", LINES)
def test_a_printed_command_reads_its_options(command, request) -> None:
    options = read_options(command, request)
    files = getattr(options, "config", None)
    named = filled(f"{files} {' '.join(command.words)}")
    for name in re.findall(r"[\w./-]+\.yaml", named):
        there = [configs_dir() / name, ROOT / name]
        assert OWN_FILES.fullmatch(name) or any(path.is_file() for path in there), name
    if not isinstance(files, str) or not files.endswith(".yaml") or OWN_FILES.fullmatch(files):
        return
    overrides = getattr(options, "override", [])
    fragments = [f"+{name}.yaml" for name in getattr(options, "fragments", []) if "/" in name]
    files += "".join(fragments[-1:])  # settings of all runs, so of the last
    config = load_any_config(files, overrides)
    for override in overrides:
        key, _, value = override.partition("=")
        section, *names = key.split(".")
        found = getattr(config, section)
        for name in names:
            found = found[name] if isinstance(found, dict) else getattr(found, name)
        expected = yaml12.parse(value)
        assert found == expected or str(found) == str(expected), override


@pytest.mark.parametrize("page", DOCS)
def test_a_figure_says_which_command_made_it(page: str) -> None:
    """Below it, or in the paragraph or block above; one of a study, in the study's page."""
    unsaid = [figure for figure, made_by in figures(page) if not made_by]
    assert [figure for figure in unsaid if "scripts/studies/" not in figure] == []


def test_every_figure_is_shown() -> None:
    shown = {Path(figure).name for page in PAGES for figure, _ in figures(page)}
    kept = [*(ROOT / "docs" / "figures").iterdir(), *ROOT.glob("scripts/studies/*/*.svg")]
    assert shown == {path.name for path in kept}
