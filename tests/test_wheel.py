"""What is installed from a wheel: built from the checkout, used from a folder outside it."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from helpers.command import ROOT, python
from mttl.__main__ import ALL as COMMANDS
from mttl.runtime.command import USER_MISTAKE

SOURCE = ("mttl", "envs", "configs", "data")
FILES = ("pyproject.toml", "README.md", "LICENSE")
BUILD = "import sys; from hatchling import build; getattr(build, sys.argv[1])('..')"
# One process for three commands: most of the time of each is spent on importing libraries.
FIRST_STEPS = """
import sys
import mttl
from mttl.__main__ import main

assert mttl.__file__.startswith(sys.argv[1]), mttl.__file__
config = ["-c", "crossfit.yaml+two", "-k", "run.name=two", "data.max_rows=4"]
assert main(["train", *config, "trainer.max_steps=2", "trainer.val_check_interval=2"]) == 0
new = ["--tasks", "third_past", "--samples", "13", "--save"]
assert main(["adapt", "runs/two", *new, "-k", "adapt.max_steps=2"]) == 0
kept = "runs/two/adapt-all/models/third_past-13-13"
questions = ["--in", "questions.jsonl", "--out", "answers.jsonl"]
assert main(["predict", "--from", "runs/two", "--adapted", kept, *questions]) == 0
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout: a build leaves files beside what it builds."""
    folder = tmp_path_factory.mktemp("wheel") / "mttl"  # as a clone is called
    for name in SOURCE:
        ignore = shutil.ignore_patterns("__pycache__", "crossfit" if name == "data" else "runs")
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    for path in (*(ROOT / name for name in FILES), *ROOT.glob("pl_*.py")):
        shutil.copy(path, folder)
    return folder


def build(what: str, source: Path) -> None:
    done = python("-c", BUILD, what, cwd=source)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(source: Path) -> Path:
    build("build_wheel", source)
    (path,) = source.parent.glob("*.whl")
    return path


def test_a_wheel_holds_what_the_command_needs(wheel: Path, source: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        texts = {name: archive.read(name) for name in names}
    assert wheel.stat().st_size < 8e6
    for folder in ("configs", "data/backbone", "data/grid", "data/lexical"):
        files = {p.relative_to(source) for p in (source / folder).rglob("*") if p.is_file()}
        assert files
        assert {f"mttl/shipped/{path.as_posix()}" for path in files} <= names
    assert {f"mttl/commands/{module}.py" for module in COMMANDS.values()} <= names
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"mttl", "envs"}
    modules = {p.relative_to(source).as_posix() for p in (source / "mttl").rglob("*.py")}
    assert modules <= names
    unwanted = ("__pycache__", "benchmarks", "scripts/", "tests/", "data/crossfit/", "_gym/")
    assert [name for name in names if any(part in name for part in unwanted)] == []
    for place in (source.parent, ROOT):
        assert [name for name, text in texts.items() if str(place).encode() in text] == []


def test_its_command_reads_its_own_configurations(wheel: Path, tmp_path: Path) -> None:
    """What needs no training; the whole way is below."""
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    shipped = tmp_path / "installed" / "mttl" / "shipped" / "configs"
    for words, answer in (
        (["-c", "crossfit", "-k", "data.dir=x", "optim.lr=x"], "optim.lr"),
        (["-c", "crosfit"], f"or {shipped}."),
    ):
        given = ("-m", "mttl", "train", *words)
        done = python(*given, cwd=tmp_path, first=tmp_path / "installed")
        assert done.returncode == USER_MISTAKE
        assert answer in done.stderr


def environment(folder: Path, *installed: str | Path) -> Path:
    """Make an environment of what pip installs, and of this one's libraries; return its python."""
    venv.create(folder, symlinks=True)
    python, paths = folder / "bin" / "python", sysconfig.get_paths()
    (own,) = folder.glob("lib/*/site-packages")
    # Files with paths in a folder that is added so are not read: no checkout comes along.
    (own / "libraries.pth").write_text(f"{paths['purelib']}\n{paths['platlib']}\n")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index"]
    pip += ["--quiet", "--no-compile", "--no-build-isolation", "--ignore-installed"]
    subprocess.run([*pip, *installed], check=True)
    return python


def clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@pytest.mark.slow
def test_the_command_works_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    own = environment(tmp_path / "installed", wheel)
    (here / "configs").mkdir(parents=True)
    partition = {"train": ["verb_past", "noun_plural"], "dev": [], "test": ["third_past"]}
    (here / "configs" / "two.json").write_text(json.dumps(partition))
    (here / "configs" / "two.yaml").write_text("data: {partition: two.json, max_eval_rows: 4}\n")
    questions = [{"task": "third_past", "input": "walk"}, {"task": "verb_past", "input": "go"}]
    (here / "questions.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in questions))
    done = subprocess.run(
        [own, "-c", FIRST_STEPS, str(tmp_path / "installed")],
        cwd=here,
        env=clean(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in (here / "answers.jsonl").read_text().splitlines()]
    assert [row["task"] for row in answers] == ["third_past", "verb_past"]
    assert all(isinstance(row["prediction"], str) for row in answers)
    assert sorted(path.name for path in here.iterdir() if path.name[0] != ".") == [
        "answers.jsonl",
        "configs",
        "questions.jsonl",
        "runs",
    ]
    command = [own.with_name("mttl"), "--version"]
    told = subprocess.run(command, cwd=here, env=clean(), capture_output=True, text=True)
    assert told.stdout == "mttl 0.1.0\n"


@pytest.mark.slow
def test_the_package_is_found_from_the_folder_above_its_clone(source: Path, tmp_path: Path) -> None:
    own = environment(tmp_path / "editable", "--editable", source)
    code = "import mttl, envs; print(mttl.__file__, mttl.__version__, mttl.__all__[0])"
    assert source.name == "mttl"
    for here in (source.parent, source, tmp_path):
        done = subprocess.run(
            [own, "-c", code], cwd=here, env=clean(), capture_output=True, text=True
        )
        assert done.stdout == f"{source}/mttl/__init__.py 0.1.0 adapt\n", done.stderr
