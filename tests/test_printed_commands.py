"""Printed commands are commands; those of tutorials, README and figures run, at a small size."""

import argparse
import glob
import io
import json
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import matplotlib.pyplot as plt
import pytest

from helpers.command import ROOT, load_recipe
from helpers.printed import DOCS, PAGES, Command, commands, figures, text
from helpers.serving import serving
from mttl.assembly.load_tasks import load_tasks
from mttl.commands import serve, train
from mttl.commands.options import task_overrides
from mttl.config.load import configs_dir, load_any_config
from mttl.io import yaml12
from mttl.runtime.command import run_command

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
OWN_FILES = re.compile(r"(runs/\S+|RUN\S*|mine|(\w+/)?tasks|my_\w+|recipe|sweep|YOUR)\.yaml")


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


@pytest.mark.parametrize("command", LINES)
def test_a_printed_command_reads_its_options(command, request) -> None:
    options = read_options(command, request)
    files = getattr(options, "config", None)
    named = filled(f"{files} {' '.join(command.words)}")
    for name in re.findall(r"[\w./-]+\.yaml", named):
        there = [configs_dir() / name, ROOT / name]
        assert OWN_FILES.fullmatch(name) or any(path.is_file() for path in there), name
    if not isinstance(files, str) or not files.endswith(".yaml"):
        return
    if any(OWN_FILES.fullmatch(file) for file in files.split("+")):
        return
    overrides = getattr(options, "override", [])
    fragments = [f"+{name}.yaml" for name in getattr(options, "fragments", []) if "/" in name]
    files += "".join(fragments[-1:])  # settings of all runs, so of the last
    tasks = getattr(options, "tasks", None)
    given = task_overrides(tasks) if str(tasks).endswith(".yaml") else []
    config = load_any_config(files, [*given, *overrides])
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


# Settings that are appended to a command, by what it runs.
TRAIN = ("train", "pl_train")
TABLE = "input\nwalk\nknit\n"  # what is asked
TASKS = ("verb_past", "noun_plural", "verb_third", "plural_lemma")
PARTITION = {"train": list(TASKS), "dev": [], "test": ["third_past"]}
SHORT = ["trainer.max_steps=2", "trainer.val_check_interval=2", "data.validation=none"]
SHORT += ["data.max_eval_rows=2"]
FEW_TASKS = ["data.partition=small.json"]  # PARTITION, in the folder that the command runs in
ADAPT = ["adapt.max_steps=1", "adapt.eval_every=1", "data.max_eval_rows=2"]
GAME = ["trainer.max_epochs=1", "rl.n_slots=4", "rl.evaluation.n_episodes=1"]
ADAPT_GAME = ["adapt.n_updates=1", *GAME[1:]]
ROUND = ["--size", "tiny", "--rounds", "1", "--warmup", "1"]
MORE = {
    "ablate": ["--rows", "2"],
    "babyai_record": ["--episodes", "2"],
    "compare": ["--seeds", "13", "--steps", "2", "--adapt-steps", "1", "--samples", "13"],
    "step_time": [*ROUND, "--only", "ours H=1"],
    "generation": [*ROUND, "--only", "ours H=1", "--rows", "16", "--tokens", "2"],
    "serving": [*ROUND, "--only", "ours, queue", "--requests", "16", "--tokens", "2"],
}
COMPARED = ["--methods", "polytropon", "shared", "--modes", "router_only"]
MORE["compare"] += ["-k", "data.validation=none", "data.max_eval_rows=2", *FEW_TASKS]


def shortened(script: str, words: list[str]) -> list[str]:
    """Return the words of a command with others that make it short."""
    name = Path(script).stem
    if name == "adapt" and "babyai.yaml" in words:
        more = ADAPT_GAME
    elif name == "adapt":
        more = ADAPT + ([] if "runs/mine/config.yaml" in words else FEW_TASKS)
    elif name in TRAIN and "babyai.yaml" in words:
        more = GAME
    elif name in TRAIN:
        more = SHORT + ([] if any(word.startswith("data.tasks=") for word in words) else FEW_TASKS)
    else:
        if name == "compare" and not words[0].startswith("-"):  # finished runs
            return words
        return [*words, *(COMPARED if name == "compare" else ()), *MORE.get(name, ())]
    return [*words, "-k", *more]


def run_small(command: Command) -> None:
    """Run a command in the working directory, as a shell would, at a small size."""
    words = [path for word in command.words for path in sorted(glob.glob(word)) or [word]]
    words = shortened(command.script, words)
    path = ROOT / command.script
    if path.parent.name == "benchmarks":  # their processes import the script by its name
        assert subprocess.run([sys.executable, path, *words]).returncode == 0, command
        return
    module = load_recipe(path)
    if path.stem in TRAIN:  # a second reader has no such run
        options = train.main.parse(words)
        made = load_any_config(options.config, options.override).run
        shutil.rmtree(Path(made.dir) / made.name, ignore_errors=True)
    told = Path(command.stdin).read_text(encoding="utf-8") if command.stdin else TABLE
    with mock.patch("sys.stdin", io.TextIOWrapper(io.BytesIO(told.encode()))):
        assert run_command(lambda: module.main(words)) == 0, command


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "small.json").write_text(json.dumps(PARTITION))
    (tmp_path / "words.tsv").write_text(TABLE)
    (tmp_path / "configs").symlink_to(ROOT / "configs")  # as in a checkout
    monkeypatch.chdir(tmp_path)
    return tmp_path


README = text("README.md")
MAIN_JOB = "scripts/studies/main_job/README.md"
SOURCES = re.findall(r"\((scripts/[\w/]+/README\.md)", README)


def wanted() -> list[Command]:
    """Return the commands, in an order in which a reader may type them.

    Settings files of studies are not run here, but read by the tests of the scripts.
    """
    order = [text(MAIN_JOB), README, *(text(page) for page in SOURCES)]
    found = [command for part in order for command in commands(part)]
    pages = [page for page in DOCS if "/tutorials/" not in page]  # these run in their own test
    found += [command for page in pages for _, made_by in figures(page) for command in made_by]
    found = [one for one in found if one.script != "scripts/studies/run.py"]
    # Those on a reader's own run or files have tests of their own.
    return list(
        dict.fromkeys(one for one in found if not re.search(r"\b(RUN|DATA)\b|mine\b", str(one)))
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_they_run_at_a_small_size(place: Path) -> None:
    for command in wanted():
        run_small(command)
    assert (place / "levels.gif").stat().st_size > 0
    assert (place / "runs" / "seed13" / "plots" / "dendrogram.svg").is_file()


TUTORIALS = load_recipe(ROOT / "scripts" / "docs" / "write_tutorials.py")
NAMES = sorted(path.stem for path in TUTORIALS.FOLDER.glob("*.md"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "first_run" else pytest.mark.slow) for name in NAMES],
)
def test_a_tutorial_runs(place: Path, name: str) -> None:
    names: dict = {}
    local = address = "http://127.0.0.1:8000"
    with ExitStack() as servers:
        for part in TUTORIALS.blocks(text(f"docs/tutorials/{name}.md")):
            if part.language == "yaml":
                TUTORIALS.save(part, place)
            elif part.language == "bash":
                for command in commands(f"```\n{part.code}```"):
                    if command.script.endswith("/serve.py"):
                        options = serve.main.parse([*command.words])
                        models, _ = load_tasks(options.source, options.adapted, options.backbone)
                        address = servers.enter_context(serving(models)).address
                    else:
                        run_small(command)
            else:
                code = part.code.replace("max_steps=60", "max_steps=1").replace(local, address)
                exec(code, names)
    if "reply" in names:  # of the server
        asked = models["urgent"].predict("urgent", ["gina: call me now about the refund"])
        assert [choice.text for choice in names["reply"].choices] == asked


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.ipynb")), ids=str)
def test_a_notebook_runs(place: Path, path: Path) -> None:
    """Its cells, in order, after the commands that it prints."""
    plt.switch_backend("agg")
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], len(notebook["cells"])) == (4, 10)
    names: dict = {}
    for number, cell in enumerate(notebook["cells"], 1):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            for command in commands(source):
                words = (*command.words, "trainer.log_every_n_steps=1")  # two steps are trained
                run_small(replace(command, words=words))
        else:
            code = source.replace("max_steps=60", "max_steps=1")
            exec(compile(code, f"cell {number}", "exec"), names)
    assert len(names["past"](["talks"])) == 1
    assert names["scores"].index[-1] == "mean"
    plt.close("all")
