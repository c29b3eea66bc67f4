"""What is installed from a wheel: built from the checkout, used from a folder outside it."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.request
import venv
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from transformers import ByT5Tokenizer

from helpers.command import ROOT, python, read_csv
from helpers.gyms import TINY_T5, store_backbone
from helpers.printed import commands, text
from mttl.__main__ import ALL as COMMANDS
from mttl.runtime.command import USER_MISTAKE

SOURCE = ("mttl", "envs", "configs", "data")
FILES = ("pyproject.toml", "README.md", "LICENSE")
BUILD = "import sys; from hatchling import build; getattr(build, sys.argv[1])('..')"
FEW = ["data.max_eval_rows=2", "data.partition=few.json"]
SHORT = [*FEW, "trainer.max_steps=2", "trainer.val_check_interval=2", "data.validation=none"]
GAME = ["rl.n_slots=4", "rl.evaluation.n_episodes=1"]
OWN = ["data.max_eval_rows=2", "data.batch_size=8", "skills.rank=2"]
COMPARE = ["--seeds", "13", "--steps", "2", "--adapt-steps", "1", "--samples", "13", "--modes"]
# Words that make the commands of a page short.
ENGINEER = {
    "train": ["trainer.max_steps=2", *OWN],
    "adapt": ["-k", "adapt.max_steps=2", *OWN[:1]],
}
RESEARCHER = {
    "train": SHORT,
    "adapt": ["-k", "adapt.max_steps=1", *FEW],
    "compare": [*COMPARE, "-k", *FEW, SHORT[-1]],
}
STUDENT = {
    "babyai record": ["--episodes", "4"],
    "train": ["trainer.max_epochs=1", *GAME],
    "adapt": ["adapt.n_updates=1", *GAME],
}


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


@pytest.mark.slow
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


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command `mttl` of an environment that has the wheel, and nothing of the checkout."""
    return environment(tmp_path_factory.mktemp("installed"), wheel).with_name("mttl")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(program: Path, *words: str | Path) -> str:
    """Run a program in the working directory; return what it prints."""
    done = subprocess.run([program, *words], env=clean(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text(page), re.DOTALL)


def steps(page: str, more: Mapping[str, list[str]]) -> Iterator[list[str]]:
    """Yield the words of a page's commands after `mttl`, and those that make them short."""
    names = {f"mttl/commands/{module}.py": name for name, module in COMMANDS.items()}
    shell = "".join(f"```bash\n{block}```\n" for block in blocks(page, "bash"))
    for command in commands(shell):
        if name := names.get(command.script):
            yield [*name.split(), *command.words, *more.get(name, [])]


@contextmanager
def served(program: Path, words: list[str]) -> Iterator[str]:
    """Start a server on a free port; yield its address once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with subprocess.Popen([program, *words, "--port", port], env=clean()) as server:
        try:
            address, deadline = f"http://127.0.0.1:{port}/v1", time.monotonic() + 120
            while server.poll() is None and time.monotonic() < deadline:
                try:
                    urllib.request.urlopen(f"{address}/models").close()
                    break
                except OSError:
                    time.sleep(0.2)
            yield address
        finally:
            server.terminate()


def ask(address: str, **question: Any) -> str:
    headers = {"Content-Type": "application/json"}
    body = json.dumps(question).encode()
    request = urllib.request.Request(f"{address}/completions", body, headers)
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["choices"][0]["text"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_engineer_goes_from_files_to_a_server(installed: Path, here: Path) -> None:
    """With the tutorial's messages in two files, and the commands of the README."""
    code = "import mttl; print(mttl.__file__)"
    own = Path(run(installed.with_name("python"), "-c", code))
    assert own.is_relative_to(installed.parents[1])
    assert run(installed, "--version") == "mttl 0.1.0\n"
    exec(blocks("docs/tutorials/custom_tasks.md", "python")[0], {})
    rows = [json.loads(line) for line in Path("calls.jsonl").read_text().splitlines()]
    Path("DATA").mkdir()
    for task, label in (("mood", "topic"), ("urgent", "urgent")):
        lines = [{"text": row["message"], "label": row[label]} for row in rows]
        Path(f"DATA/{task}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in lines))
    store_backbone(Path("MODEL"), {**TINY_T5, "initial_scale": {"*": 3.0}})
    ByT5Tokenizer().save_pretrained("MODEL")
    Path("questions.csv").write_text("text,label\ncall me now about the refund,billing\n")
    said: dict[str, str] = {}
    for words in islice(steps("README.md", ENGINEER), 6):
        if words[0] == "serve":
            with served(installed, words) as address:
                said[words[0]] = ask(address, model="mood", prompt="refund", max_tokens=4)
        else:
            said[words[0]] = run(installed, *words)
        if words[0] == "init":
            tasks = said["init"].replace("  urgent:", "  urgent:\n    side: test")
            Path("tasks.yaml").write_text(tasks)
    assert list(said) == ["init", "train", "adapt", "predict", "serve", "export"]
    assert said["init"].count("options: [") == 2
    assert "scored options: 1 tasks; generated: 0" in said["train"]
    (answer,) = read_csv(Path("answers.csv"))
    assert answer["prediction"] in ("billing", "delivery")
    assert Path("runs/mine/adapt-all/models/urgent-100-13/skills").is_dir()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_researcher_trains_and_compares_a_router(installed: Path, here: Path) -> None:
    """With the module and the commands of the page."""
    page = "docs/howto/add_a_router.md"
    for name, language in (("my_router.py", "python"), ("my_router.yaml", "yaml")):
        Path(name).write_text(blocks(page, language)[0], encoding="utf-8")
    few = {"train": ["verb_past", "noun_plural"], "dev": [], "test": ["third_past"]}
    Path("few.json").write_text(json.dumps(few))
    Path("words.tsv").write_text("input\nwalk\n")
    said = {words[0]: run(installed, *words) for words in steps(page, RESEARCHER)}
    assert list(said) == ["train", "adapt", "predict", "explore", "compare"]
    assert "SoftmaxRouter" in said["train"]
    assert said["predict"].startswith("input\tprediction\nwalk\t")
    assert Path("runs/mine/plots/explore.html").is_file()
    assert Path("runs/compare_mine/comparison.svg").is_file()
    table = read_csv(Path("runs/compare_mine/table.csv"))
    assert [row["method"] for row in table] == ["polytropon", "mine"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_student_trains_and_films_a_policy(installed: Path, here: Path) -> None:
    """With the commands of the tutorial."""
    said = [run(installed, *words) for words in steps("docs/tutorials/policies.md", STUDENT)]
    assert len(said) == 5
    assert "GoToLocalS6N2" in said[-1]
    assert Path("levels.gif").read_bytes().startswith(b"GIF8")


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


@pytest.mark.slow
def test_a_wheel_made_from_an_sdist_is_the_same(wheel: Path, source: Path, tmp_path: Path) -> None:
    build("build_sdist", source)
    (packed,) = source.parent.glob("*.tar.gz")
    shutil.unpack_archive(packed, tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    build("build_wheel", unpacked)
    (other,) = tmp_path.glob("*.whl")
    assert not any(tmp_path.glob("*/tests"))
    names = [sorted(zipfile.ZipFile(path).namelist()) for path in (wheel, other)]
    assert names[0] == names[1]
