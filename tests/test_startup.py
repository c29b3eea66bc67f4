"""Commands answer before they import what trains, and what they import may be interrupted."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.command import ROOT
from mttl.__main__ import ALL as COMMANDS
from mttl.runtime.command import INTERRUPTED, USER_MISTAKE

HEAVY = {"torch", "numpy", "transformers", "pytorch_lightning", "datasets"}
RECIPES = ("pl_train", "pl_finetune", "pl_search")
ALL_MODULES = """
import importlib, pkgutil
import mttl.config
for module in pkgutil.iter_modules(mttl.config.__path__, "mttl.config."):
    importlib.import_module(module.name)
"""
RECIPE = """
import runpy
try:
    if sys.argv[0] == "mttl":
        runpy.run_module("mttl", run_name="__main__")
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as end:
    print("status", end.code)
"""


# Whether a command was asked for help or given what it does not know, it ends before it imports.
ASKED = f"""
import contextlib, io, json, sys
from mttl.__main__ import main
commands, found = sys.argv, {{}}

for name in commands:
    for option in ("--help", "--no-such-option"):
        said, before = io.StringIO(), set(sys.modules)
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                status = main([*name.split(), option])
            except SystemExit as end:
                status = end.code
        heavy = sorted({HEAVY} & (sys.modules.keys() - before))
        found[f"{{name}} {{option}}"] = (status, said.getvalue(), heavy)
print(json.dumps(found))
"""
WORDS = [f"library {w}" for w in ("add", "list", "show", "remove", "run", "export", "cluster")]
OF_EVERY_COMMAND = {"-h", "--help", "--version", "--trust"}


def python(code: str, *arguments: str) -> tuple[str, str]:
    """Run code and return what it printed, and which heavy libraries it imported, on a line."""
    whole = f"import sys\nsys.argv = sys.argv[1:]\n{code}\nprint(*({HEAVY} & sys.modules.keys()))"
    ended = subprocess.run(
        [sys.executable, "-c", whole, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
    )
    *printed, heavy = ended.stdout.splitlines()
    return "\n".join([*printed, ended.stderr]), heavy


def test_every_command_helps_before_it_imports() -> None:
    """Its help shows an example and its options in groups; of what it does not know, it says so."""
    names = [*COMMANDS, *WORDS]
    printed, _ = python(ASKED, *names)
    found = json.loads(printed)
    assert {name: libraries for name, (*_, libraries) in found.items() if libraries} == {}
    for name in names:
        status, text, _ = found[f"{name} --help"]
        assert status == 0, name
        after = text.partition("\n\n")[2]
        assert re.search(rf"^ *mttl {name} \S", after, re.MULTILINE), name
        common = text.partition("\noptions:\n")[2].partition("\n\n")[0]
        assert set(re.findall(r"^  (-\S+?),? ", common, re.MULTILINE)) <= OF_EVERY_COMMAND, name
        status, text, _ = found[f"{name} --no-such-option"]
        assert status == USER_MISTAKE, name
        assert "usage:" in text, name


def test_the_room_of_configurations_is_light() -> None:
    assert python(ALL_MODULES) == ("", "")


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(
    ("arguments", "status", "answer"),
    [
        (["--help"], 0, "usage:"),
        (["--version"], 0, "mttl 0.1.0"),
        (["-c", "crossfit.yaml", "-k", "skills.rnk=4"], USER_MISTAKE, "Did you mean 'rank'?"),
        (["-c", "missing.yaml"], USER_MISTAKE, "the file 'missing.yaml' does not exist"),
        (["-c", "crossfit.yaml"], USER_MISTAKE, "holds no trained inventory"),
        (["--from"], USER_MISTAKE, "usage:"),
    ],
)
def test_answers_need_no_library_of_training(
    recipe: str, arguments: list[str], status: int, answer: str, tmp_path: Path
) -> None:
    if recipe == "pl_train" and answer == "holds no trained inventory":
        pytest.skip("it starts from no run")
    run = [] if recipe == "pl_train" else ["--from", str(tmp_path)]
    printed, heavy = python(RECIPE, f"{recipe}.py", *run, *arguments)
    assert answer in printed
    assert f"status {status}" in printed
    assert heavy == ""


@pytest.mark.parametrize(
    ("arguments", "status", "answer"),
    [
        (["--help"], 0, "usage:"),
        (["--from", "EMPTY"], USER_MISTAKE, "holds no trained inventory"),
        (["--adapted", "EMPTY"], USER_MISTAKE, "holds no trained inventory"),
        ([], USER_MISTAKE, "name a run with --from RUN"),
        (["--from", "EMPTY", "--top-p", "2"], USER_MISTAKE, "is a share, at most 1"),
    ],
)
def test_prediction_answers_before_it_imports(
    arguments: list[str], status: int, answer: str, tmp_path: Path
) -> None:
    given = [str(tmp_path) if argument == "EMPTY" else argument for argument in arguments]
    printed, heavy = python(RECIPE, "pl_predict.py", *given)
    assert answer in printed
    assert f"status {status}" in printed
    assert heavy == ""


@pytest.mark.parametrize(
    ("arguments", "status", "answer"),
    [
        ([], 0, "Train an inventory of skills"),
        (["--version"], 0, "mttl 0.1.0"),
        (["trainn"], USER_MISTAKE, "there is no command 'trainn'. Did you mean 'train'"),
        (["--train"], USER_MISTAKE, "unrecognized arguments: --train"),
        (["train", "--help"], 0, "mttl train -c crossfit.yaml+router/private.yaml"),
        (["train", "-c", "crosfit.yaml"], USER_MISTAKE, "Did you mean 'crossfit.yaml'"),
    ],
)
def test_the_installed_command_answers_before_it_imports(
    arguments: list[str], status: int, answer: str
) -> None:
    printed, heavy = python(RECIPE, "mttl", *arguments)
    assert answer in printed
    assert f"status {status}" in printed
    assert "Traceback" not in printed
    assert heavy == ""


@pytest.mark.parametrize("policy", [None, "active"])
def test_imports_may_be_interrupted_and_threads_wait_quietly(
    policy: str | None, tmp_path: Path
) -> None:
    """A library in the place of PyTorch tells what it sees, and Ctrl-C comes during its import."""
    (tmp_path / "torch.py").write_text(
        "import os\nprint('policy', os.environ['OMP_WAIT_POLICY'])\nraise KeyboardInterrupt\n"
    )
    env = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    ended = subprocess.run(
        [sys.executable, str(ROOT / "pl_train.py"), "-c", "crossfit.yaml"],
        capture_output=True,
        text=True,
        env={
            **env,
            "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
            **({"OMP_WAIT_POLICY": policy} if policy else {}),
        },
    )
    assert ended.stdout == f"policy {policy or 'passive'}\n"
    assert ended.stderr == "interrupted\n"
    assert ended.returncode == INTERRUPTED
