"""Run the same commands in two checkouts and compare what they leave, bit for bit.

python scripts/compare_checkouts.py ../before . --out runs/compared
python scripts/compare_checkouts.py ../before . --only text adaptation

For a change that must change no number: short trainings, adaptations, merges and exports with fixed
seeds on the CPU, and a run that is interrupted and resumed. What starts from a run is also done by
the code of AFTER with the folders that BEFORE has left. The exit status is 1 if anything differs.
What BEFORE leaves is kept in OUT and used again; AFTER runs every time.
"""

import argparse
import csv
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file

from mttl.io import yaml12
from mttl.io.errors import ConfigError, MttlError
from mttl.runtime.command import exit_with, make_console

SHOWN = 10  # differences of one case; the others are counted
WORKERS = 2  # cases that run at once, with one thread each
ENDED = "ended.json"  # lies in a case's folder when all its commands have ended well
BINARY = (".safetensors", ".npz", ".ckpt")


class Case(NamedTuple):
    """Commands that leave folders, run in a folder of its own, into which what it needs is copied.

    The files of a case that is stopped are not compared: when it stops is a matter of timing.
    """

    commands: tuple[str, ...]  # of ``mttl``, with their arguments, run one after another
    makes: tuple[str, ...]  # folders that they leave
    needs: tuple[str, ...] = ()  # cases before it whose folders have to be there
    files: tuple[tuple[str, str], ...] = ()  # that the commands read: names and texts
    stop_at: str | None = None  # the file at whose appearance the command is asked to stop


def train(name: str, settings: str, config: str = "crossfit.yaml+backbone/tiny_t5.yaml") -> str:
    """Return the command that trains on the CPU, into ``runs/NAME``."""
    return f"train -c {config} -k run.dir=runs run.name={name} trainer.accelerator=cpu {settings}"


ROWS = "data.max_rows=8 data.max_eval_rows=2"
TEXT = f"trainer.max_steps=30 trainer.val_check_interval=10 trainer.log_every_n_steps=5 {ROWS}"
SHORT = f"trainer.max_steps=8 trainer.val_check_interval=4 {ROWS}"
TOKENS = "crossfit.yaml+backbone/tiny_t5.yaml+router/token_top2.yaml"
GAME = "rl.n_slots=4 rl.evaluation.n_episodes=4"
PLAYED = f"rl.levels=[GoToObjS4,GoToRedBallNoDists] {GAME} trainer.max_epochs=3"
RECIPE = """\
base: {model: average}
models: [{model: task, weight: 0.5}, {model: other, weight: 0.3, role: anti_expert}]
method: {kind: ties}
"""
INTERRUPTED = train("interrupted", TEXT)
CASES = {
    "text": Case((train("text", TEXT),), ("runs/text",)),
    "interrupted": Case(
        (INTERRUPTED,), ("runs/interrupted",), stop_at="runs/interrupted/checkpoints/last.ckpt"
    ),
    "tokens": Case((train("tokens", SHORT, TOKENS),), ("runs/tokens",)),
    "babyai": Case((train("babyai", PLAYED, "babyai.yaml"),), ("runs/babyai",)),
    "resumed": Case((f"{INTERRUPTED} --resume",), ("runs/interrupted",), ("interrupted",)),
    "adaptation": Case(
        (
            "adapt -c crossfit.yaml --from runs/text --tasks gerund_past,date_de_iso "
            "--out adapted -k adapt.max_steps=5 data.max_eval_rows=8",
        ),
        ("adapted",),
        ("text",),
    ),
    "new level": Case(
        (
            "adapt -c babyai.yaml --from runs/babyai --tasks GoToLocalS6N2 --out adapted "
            f"-k adapt.n_updates=3 {GAME}",
        ),
        ("adapted",),
        ("babyai",),
    ),
    "merged tasks": Case(
        (
            "merge-task runs/text --average --out average",
            "merge-task runs/text --task verb_past --out task",
            "merge-task runs/text --task noun_plural --out other",
        ),
        ("average", "task", "other"),
        ("text",),
    ),
    "merged models": Case(
        ("merge recipe.yaml --out merged",),
        ("merged",),
        ("merged tasks",),
        files=(("recipe.yaml", RECIPE),),
    ),
    "exports": Case(
        (
            "export runs/text --task verb_past --out lora",
            "export runs/text --inventory --out poly",
        ),
        ("lora", "poly"),
        ("text",),
    ),
}


class Job(NamedTuple):
    """A case on one side: a checkout, and the folder in which its commands work."""

    side: str
    checkout: Path
    root: Path
    source: Path  # the root of the cases that others need, which are copied from there
    name: str

    def __str__(self) -> str:
        return f"{self.name}, {self.side}"

    @property
    def case(self) -> Case:
        """What it does."""
        return CASES[self.name]

    @property
    def place(self) -> Path:
        """The folder of what it leaves."""
        return self.root / self.name

    def has_ended(self) -> bool:
        """Return whether these very commands have ended in the folder."""
        path = self.place / ENDED
        return path.is_file() and path.read_text() == said(self.case)


def main(arguments: list[str] | None = None) -> int:
    """Run, compare and print; return the exit status."""
    options = parse(arguments)
    first, second = (Path(name).resolve() for name in (options.before, options.after))
    out, states = Path(options.out).resolve(), [state_of(first), state_of(second)]
    kept, ours, crossed = out / f"before-{states[0]}", out / "after", out / "crossed"
    for root in (ours, crossed):
        shutil.rmtree(root, ignore_errors=True)
    wanted = set(options.only or CASES)
    for name in reversed(CASES):
        wanted.update(CASES[name].needs if name in wanted else ())
    names = [name for name in CASES if name in wanted]
    before = [Job("before", first, kept, kept, name) for name in names]
    after = [Job("after", second, ours, ours, name) for name in names]
    side = "after, from the folders of before"
    after += [Job(side, second, crossed, kept, name) for name in names if CASES[name].needs]
    console = make_console(stderr=True)
    failures = run_jobs([job for job in before if not job.has_ended()] + after, console)
    return report(kept, after, failures, make_console())


def report(before: Path, after: list[Job], failures: dict[Job, str], console: Console) -> int:
    """Compare what the jobs have left and print a table; return the exit status."""
    table = Table("what", "files", "equal", "different", title="What AFTER leaves")
    details = [f"{job}: failed: {why}" for job, why in failures.items()]
    for job in after:
        if job in failures or job.case.stop_at:
            continue
        found = compare_folders(before / job.name, job.place, job.case.makes)
        lines = [f"{job}: {file} {line}" for file, part in found.items() for line in part]
        n_different = sum(map(bool, found.values()))
        counts = (len(found), len(found) - n_different, n_different)
        table.add_row(str(job), *map(str, counts))
        more = [f"{job}: and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
        details += lines[:SHOWN] + more
    console.print(table)
    for line in details:
        console.print(line, markup=False, soft_wrap=True)
    return 1 if details else 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("before", metavar="BEFORE", help="the folder of a checkout")
    parser.add_argument("after", metavar="AFTER", help="the folder of another")
    parser.add_argument(
        "--out", default="runs/compare_checkouts", metavar="DIR", help="%(default)s"
    )
    help = f"these, and what they need: {', '.join(CASES)}"
    parser.add_argument("--only", nargs="+", choices=CASES, metavar="NAME", help=help)
    return parser.parse_args(arguments)


def state_of(checkout: Path) -> str:
    """Return a short name of a checkout's commit and of what was changed since."""
    states = [
        subprocess.run(["git", "-C", str(checkout), *arguments], capture_output=True)
        for arguments in (["rev-parse", "HEAD"], ["diff", "HEAD"])
    ]
    if any(state.returncode for state in states) or not (checkout / "mttl").is_dir():
        raise ConfigError(f"'{checkout}' is not a checkout of this repository: name its folder")
    return hashlib.sha256(b"".join(state.stdout for state in states)).hexdigest()[:12]


def run_jobs(jobs: list[Job], console: Console) -> dict[Job, str]:
    """Run cases, each after what it needs, some at once; return what went wrong with which."""
    futures: dict[Path, Future[None]] = {}
    failures: dict[Job, str] = {}
    pool = ThreadPoolExecutor(WORKERS)
    try:
        for job in jobs:  # what it needs began before, so that it is not waited for in vain
            needs = [job.source / need for need in job.case.needs]
            given = [futures[need] for need in needs if need in futures]
            futures[job.place] = pool.submit(run, job, given)
        by_future = dict(zip(futures.values(), jobs, strict=True))
        for future in as_completed(by_future):
            job, error = by_future[future], future.exception()
            console.print(f"{job}: {'failed' if error else 'ended'}")
            if error is not None:
                failures[job] = str(error)
    finally:
        pool.shutdown(cancel_futures=True)
    return failures


def run(job: Job, needs: list["Future[None]"]) -> None:
    """Run the commands of a case in a folder of its own, when what it needs is there."""
    case, place = job.case, job.place
    if any(need.exception() for need in needs):
        raise MttlError(f"not run, because {', '.join(case.needs)} failed")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    for need in case.needs:
        for made in CASES[need].makes:
            shutil.copytree(job.source / need / made, place / made)
    for name, text in case.files:
        (place / name).write_text(text)
    env = {
        **os.environ,
        **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
        **{"PYTHONPATH": str(job.checkout), "HF_HUB_OFFLINE": "1"},
        "TOKENIZERS_PARALLELISM": "false",
    }
    for command in case.commands:
        words = [sys.executable, "-m", "mttl", *shlex.split(command)]
        with (place / "log.txt").open("a") as log:
            process = subprocess.Popen(words, cwd=place, env=env, stdout=log, stderr=log)
        try:
            if case.stop_at:
                while process.poll() is None and not (place / case.stop_at).is_file():
                    time.sleep(0.05)
                process.terminate()
            status = process.wait()
        finally:
            process.kill()
        stopped = case.stop_at is not None and (place / case.stop_at).is_file()
        if stopped and status == 0:
            raise MttlError("finished before it was interrupted: raise its number of steps")
        if status and not stopped:
            last = (place / "log.txt").read_text().strip().splitlines()[-3:]
            raise MttlError(f"{command}: {' | '.join(last)} ({place / 'log.txt'})")
    (place / ENDED).write_text(said(case))


def said(case: Case) -> str:
    """Return all that decides what a case leaves, but for the code."""
    return json.dumps([case.commands, case.files, [said(CASES[need]) for need in case.needs]])


def compare_folders(before: Path, after: Path, parts: tuple[str, ...]) -> dict[str, list[str]]:
    """Return the differences of every file in parts of two folders, by its path.

    Two runs of the same code with the same libraries leave the same files, so nothing is exempt:
    run folders hold no time of day, no duration, and no path but the one of the folder they lie in,
    which counts as the same.
    """
    files = {
        str(path.relative_to(root))
        for root in (before, after)
        for part in parts
        for path in (root / part).rglob("*")
        if path.is_file()
    }
    return {file: list(_compare_files(before, after, file)) for file in sorted(files)}


def _compare_files(before: Path, after: Path, file: str) -> Iterator[str]:
    """Yield a line for each place of a file at which it differs: tensor, column and row, or key."""
    roots = {"before": before, "after": after}
    if missing := [name for name, root in roots.items() if not (root / file).is_file()]:
        yield f"missing {missing[0]}"
        return
    one, other = (
        (root / file).read_bytes().replace(str(root).encode(), b"") for root in roots.values()
    )
    if one == other:
        return
    ours, theirs = (_read(root / file, str(root)) for root in roots.values())
    places = sorted(ours.keys() | theirs.keys())
    differing = {place: _difference(ours, theirs, place) for place in places}
    lines = [f"{place}: {what}".removeprefix(": ") for place, what in differing.items() if what]
    if not lines and not file.endswith(BINARY):
        yield "the same values, written in another form"
    yield from lines


def _difference(ours: dict[str, Any], theirs: dict[str, Any], place: str) -> str:
    """Say how the values of a place differ; nothing if they are the same bit for bit."""
    if place not in ours or place not in theirs:
        return f"missing {'after' if place in ours else 'before'}"
    one, other = ours[place], theirs[place]
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return "" if repr(one) == repr(other) else f"{one!r:.80} before, {other!r:.80} after"
    kinds = [f"{value.dtype} of shape {tuple(value.shape)}" for value in (one, other)]
    if kinds[0] != kinds[1]:
        return f"{kinds[0]} before, {kinds[1]} after"
    if torch.equal(*(value.reshape(-1).view(torch.uint8) for value in (one, other))):
        return ""
    return f"largest difference {float((one.double() - other.double()).abs().max()):.3g}"


def _read(path: Path, root: str) -> dict[str, Any]:
    """Return what a file holds, by place, without the path of its folder."""
    tree: Any
    match path.suffix:
        case ".safetensors":
            tree = load_file(path)
        case ".npz":
            tree = dict(np.load(path))
        case ".ckpt":
            tree = torch.load(path, map_location="cpu", weights_only=False)
        case ".csv":
            rows = enumerate(csv.DictReader(path.open(encoding="utf-8")), start=1)
            tree = {f"{name}, row {n}": value for n, row in rows for name, value in row.items()}
        case _:
            text = path.read_text(encoding="utf-8")
            if path.suffix == ".jsonl":
                text = f"[{','.join(text.splitlines())}]"
            readers = {".yaml": yaml12.parse, ".json": json.loads, ".jsonl": json.loads}
            tree = readers.get(path.suffix, str)(text)
    return {
        place.replace(root, ""): value.replace(root, "") if isinstance(value, str) else value
        for place, value in _leaves(tree)
    }


def _leaves(tree: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from _leaves(value, f"{place}.{key}" if place else str(key))
    elif isinstance(tree, list | tuple) and tree:
        for number, value in enumerate(tree):
            yield from _leaves(value, f"{place}[{number}]")
    elif isinstance(tree, np.ndarray):
        yield place, torch.from_numpy(tree) if tree.dtype.kind in "fiub" else tree.tolist()
    else:
        yield place, tree


if __name__ == "__main__":
    exit_with(main)
