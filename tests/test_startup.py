"""Commands answer before they import what trains, and what they import may be interrupted."""

import json
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

from helpers.command import ROOT, python
from mttl.__main__ import ALL as COMMANDS
from mttl.runtime.command import INTERRUPTED, USER_MISTAKE

HEAVY = {"torch", "numpy", "transformers", "pytorch_lightning", "datasets"}
# Commands as a shell would start them, in one process: status and output of each.
RECIPE = """
import contextlib, io, json, runpy, sys
found = []
for command in sys.argv[:]:
    sys.argv[:], said = command.split(), io.StringIO()
    run = runpy.run_module if command.startswith("mttl") else runpy.run_path
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            run(sys.argv[0], run_name="__main__")
        except SystemExit as end:
            found.append((end.code, said.getvalue()))
print(json.dumps(found))
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


def imports(code: str, *arguments: str) -> tuple[str, str]:
    """Run code and return what it printed, and which heavy libraries it imported, on a line."""
    whole = f"import sys\nsys.argv = sys.argv[1:]\n{code}\nprint(*({HEAVY} & sys.modules.keys()))"
    ended = python("-c", whole, *arguments)
    *printed, heavy = ended.stdout.splitlines()
    return "\n".join([*printed, ended.stderr]), heavy


def test_every_command_helps_before_it_imports() -> None:
    """Its help shows an example and its options in groups; of what it does not know, it says so."""
    names = [*COMMANDS, *WORDS]
    printed, _ = imports(ASKED, *names)
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


ANSWERS = [
    ("pl_train.py --help", 0, "usage:"),
    ("pl_train.py -c crossfit.yaml -k skills.rnk=4", USER_MISTAKE, "Did you mean 'rank'?"),
    ("pl_train.py -c crossfit.yaml --print-config", 0, "  batch_size: 64  "),
    ("pl_predict.py", USER_MISTAKE, "name a run with --from RUN"),
    ("mttl", 0, "Train an inventory of skills"),
    ("mttl --version", 0, "mttl 0.1.0"),
    ("mttl predict --out -", USER_MISTAKE, "argument --out: '-' must be a path; mttl predict"),
    ("mttl trainn", USER_MISTAKE, "unknown command 'trainn'. Did you mean 'train'"),
    ("mttl --train", USER_MISTAKE, "unrecognized arguments: --train"),
]


def test_answers_need_no_library_of_training() -> None:
    printed, heavy = imports(RECIPE, *(command for command, *_ in ANSWERS))
    found = json.loads(printed.splitlines()[0])
    for (command, status, answer), (code, said) in zip(ANSWERS, found, strict=True):
        assert (code, answer in said) == (status, True), (command, said)
        assert "Traceback" not in said
    assert heavy == ""


# RUN stands for a run of two tasks whose tensors nobody needs, EMPTY for a folder without files.
NAMES = {
    "train": [
        (["-c", "crosfit.yaml"], "Did you mean 'crossfit.yaml'"),
        (["-c", "crossfit.yaml", "-k", "optim.lrr=1"], "Did you mean 'lr'?"),
        (["-c", "crossfit.yaml", "-k", "data.dir=absent"], "the folder of tasks 'absent' does not"),
        (["-c", "crossfit.yaml", "-k", "data.partition=x.json"], "the file 'x.json' does not"),
        (["-c", "crossfit.yaml", "-k", "run.start=EMPTY"], "has no trained skills"),
        (["-c", "crossfit.yaml", "-k", "run.dir=.", "run.name=run"], "already exists. Continue"),
        (["-c", "crossfit.yaml", "--resume"], "' does not exist. Start without --resume"),
        (["-c", "babyai.yaml", "-k", "rl.levels=[GoToX]"], "unknown level 'GoToX'"),
        (["-c", "crossfit.yaml", "-k", "backbone.name=./absent"], "is neither a folder nor a"),
    ],
    "adapt": [
        (["-c", "crossfit.yaml", "EMPTY"], "has no trained skills"),
        (["RUN", "--tasks", "thrd_past"], "Did you mean 'third_past'"),
        (["RUN", "--tasks", "verb_past"], "was trained on verb_past"),
        (["RUN", "--samples", "7"], "has no sample 7"),
        (["RUN", "-k", "adapt.steps=3"], "has no setting 'steps'"),
        (["RUN", "--reference", "EMPTY"], "has no results"),
    ],
    "search": [(["RUN", "--tasks", "thrd_past"], "Did you mean 'third_past'")],
    "eval": [
        (["RUN", "--as", "verb_pst", "--tasks", "x"], "Did you mean 'verb_past'?"),
        (["RUN", "--as", "mix:verb_past", "--tasks", "x"], "must have the form mix:task_a=0.7"),
        (
            ["RUN", "--as", "verb_past", "--tasks", "x", "--include-path", "no"],
            "'no' is not a folder",
        ),
    ],
    "score": [(["none.tsv", "--metric", "exact"], "'none.tsv' does not exist")],
    "init": [(["absent"], "'absent' is not a folder; name the folder of the data")],
    "list": [(["absent"], "'absent' is not a folder; name the folder of the runs")],
    "show": [(["EMPTY"], "is not a run, because it has no config.yaml")],
    "add-tasks": [(["RUN", "--adapted", "EMPTY", "--out", "x"], "has no trained skills")],
    "predict": [
        (["EMPTY"], "has no trained skills"),
        (["absent"], "'absent' does not exist. Name the folder of a finished run"),
        (["EMPTY", "--top-p", "2"], " must be at most 1"),
        (["RUN", "--task", "verb_pst"], "Did you mean 'verb_past'?"),
        (["RUN", "--in", "none.tsv"], "'none.tsv' does not exist"),
    ],
    "serve": [(["EMPTY"], "has no trained skills")],
    "explore": [(["EMPTY"], "routing.npz' does not exist")],
    "plot": [
        (["EMPTY"], "routing.npz' does not exist"),
        (["RUN", "--compare", "EMPTY"], "routing.npz' does not exist"),
        (["RUN", "--adapted", "EMPTY"], "has no trained skills"),
    ],
    "ablate": [(["EMPTY"], "routing.npz' does not exist")],
    "compare": [
        (["EMPTY", "RUN"], "is not a run"),
        (["--tasks", "thrd_past"], "Did you mean 'third_past'"),
        (["--method", "mine=none.yaml"], "the file 'none.yaml' does not"),
        (["--runs", "mine=EMPTY"], "is not a run"),
    ],
    "export": [
        (["EMPTY", "--all", "--out", "x"], "has no trained skills"),
        (["RUN", "--task", "verb_pst", "--out", "x"], "Did you mean 'verb_past'?"),
    ],
    "merge-task": [(["RUN", "--task", "verb_pst", "--out", "x"], "Did you mean 'verb_past'?")],
    "plan": [
        (["-c", "crosfit.yaml"], "Did you mean 'crossfit.yaml'"),
        (["-c", "crossfit.yaml", "-k", "data.dir=absent"], "the folder of tasks 'absent' does not"),
    ],
    "build": [
        (["--tasks", "glue-rt"], "Did you mean 'glue-rte'"),
        (["--raw", "none"], "the folder 'none' does not exist"),
    ],
    "sparse": [
        (["--model", "m", "--task", "verb_pst", "--out", "x"], "Did you mean 'verb_past'"),
        (["--model", "m", "--text", "none.txt", "--out", "x"], "'none.txt' does not exist"),
    ],
    "compose": [(["--model", "m", "--skills", "none", "--out", "x"], "'none' does not exist")],
    "fisher": [
        (["--model", "m", "--tasks", "verb_pst", "--out", "x.safetensors"], "mean 'verb_past'")
    ],
    "merge": [(["none.yaml", "--out", "x"], "'none.yaml' does not exist")],
    "sweep": [(["none.yaml", "--out", "x"], "'none.yaml' does not exist")],
    "extract-lora": [
        (["--base", "none", "--model", "x", "--out", "y"], "--base 'none' is not a folder")
    ],
    "import": [(["none", "--out", "x"], "the folder 'none' does not exist")],
    "library": [(["list", "EMPTY"], "is not a library")],
    "quark": [
        (
            ["RUN", "--task", "verb_pst", "--metric", "chrf", "--out", "x"],
            "Did you mean 'verb_past'",
        ),
        (["RUN", "--task", "verb_past", "--metric", "chf", "--out", "x"], "mean 'chrf'"),
    ],
    "convert": [(["none.gguf", "--out", "x"], "'none.gguf' does not exist")],
    "babyai record": [
        (["--levels", "GoToX", "--episodes", "1", "--out", "x.npz"], "unknown level 'GoToX'")
    ],
    "babyai film": [
        (["EMPTY", "--level", "GoTo", "--out", "x.gif"], "has no trained skills"),
        (["RUN", "--level", "GoTo", "--out", "x.gif"], "has no task 'GoTo'"),
    ],
}
# Whoever imports PyTorch ends with its name in place of a message.
MISTAKEN = """
import importlib.abc, json, sys
from mttl.__main__ import main
from mttl.io.errors import MttlError

class Watch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise SystemExit("imports PyTorch")

sys.meta_path.insert(0, Watch())
said = []
for command in json.loads(sys.argv[1]):
    try:
        said.append(str(main(command)))
    except (MttlError, SystemExit) as error:
        said.append(str(error))
print(json.dumps(said))
"""


def test_names_are_checked_before_pytorch_is_imported(tmp_path: Path) -> None:
    """Names that need no model: of runs, files, tasks, levels and settings; of every command."""
    assert NAMES.keys() == COMMANDS.keys()
    run, empty = tmp_path / "run", tmp_path / "empty"
    for folder in (empty, run / "skills", run / "plots"):
        folder.mkdir(parents=True)
    shutil.copy(ROOT / "configs" / "crossfit.yaml", run / "config.yaml")
    (run / "skills" / "meta.json").write_text("{}")
    (run / "skills" / "tasks.json").write_text('["verb_past", "noun_plural"]')
    (run / "plots" / "routing.npz").touch()
    cases = [(name, *case) for name, of_it in NAMES.items() for case in of_it]
    commands = [
        [*name.split(), *(w.replace("RUN", str(run)).replace("EMPTY", str(empty)) for w in words)]
        for name, words, _ in cases
    ]
    ended = python("-c", MISTAKEN, json.dumps(commands), cwd=tmp_path)
    said = zip(cases, json.loads(ended.stdout), strict=True)
    wrong = {f"{name} {words}": text for (name, words, part), text in said if part not in text}
    assert wrong == {}


def test_help_takes_half_a_second_of_cpu_time() -> None:
    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "mttl", "adapt", "--help"]
        subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds() for _ in range(3)) <= 0.5


def test_imports_may_be_interrupted_and_threads_wait_quietly(tmp_path, monkeypatch) -> None:
    """A library in the place of PyTorch tells what it sees, and Ctrl-C comes during its import."""
    (tmp_path / "torch.py").write_text(
        "import os\nprint('policy', os.environ['OMP_WAIT_POLICY'])\nraise KeyboardInterrupt\n"
    )
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    new = ("-c", "crossfit.yaml", "-k", f"run.dir={tmp_path}")  # whatever runs there are
    ended = python(ROOT / "pl_train.py", *new, first=tmp_path)
    assert ended.stdout == "policy passive\n"
    assert ended.stderr == "interrupted\n"
    assert ended.returncode == INTERRUPTED
