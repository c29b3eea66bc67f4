"""Printed commands at a small size: what is appended to them, by what they run."""

import glob
import io
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

from helpers.command import ROOT, load_recipe
from helpers.printed import Command
from mttl.commands import train
from mttl.config.load import load_any_config
from mttl.runtime.command import run_command

TRAIN = ("train", "pl_train")
TABLE = "input\nwalk\nknit\n"  # what is asked
TASKS = ("verb_past", "noun_plural", "verb_third", "plural_lemma")
PARTITION = {"train": list(TASKS), "dev": [], "test": ["third_past"]}
SHORT = ["trainer.max_steps=2", "trainer.val_check_interval=2", "data.validation=none"]
SHORT += ["data.max_eval_rows=2"]
FEW_TASKS = ["data.partition=small.json"]  # PARTITION, in the folder that the command runs in
ADAPT = ["adapt.max_steps=1", "adapt.eval_every=1", "data.max_eval_rows=2"]
GAME = ["trainer.max_epochs=1", "rl.n_slots=4", "rl.evaluation.n_episodes=1"]
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
    if name == "adapt":
        more = ADAPT + FEW_TASKS
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
