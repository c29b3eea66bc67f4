"""Run everything that needs a GPU, in at most 35 minutes, and write one table.

    python scripts/benchmarks/gpu.py [--out runs/gpu] [--only NAME ...]
    python scripts/benchmarks/gpu.py --dry-run

Every row is another command of this repository, run as a process with a time limit: short trainings
of both worlds in bfloat16 and over NCCL, sharded and quantised ones, and the benchmarks that know a
GPU. A row that fails is reported and the others go on. Called again, the command runs what is
missing: rows that are done are kept as long as devices and versions are the same. Without a GPU it
says what it would run. With --dry-run all rows run on the CPU, at toy sizes.
"""

import argparse
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mttl.io.files import write_text
from mttl.runtime.child_process import with_parent

ROOT = Path(__file__).parents[2]
HERE = Path("scripts") / "benchmarks"
MINUTES = 35
USER_MISTAKE = 2  # the exit status of a command that refuses its settings
LIBRARIES = ("torch", "pytorch-lightning", "transformers", "bitsandbytes", "torchao", "envpool")


@dataclass(frozen=True)
class BenchmarkRow:
    """One row of the table.

    Attributes:
        name: What it measures.
        command: Its arguments, after the interpreter; ``{out}`` is the file of its figures and
            ``{runs}`` a folder for runs.
        toy: The same on a CPU, at a toy size.
        limit: Most seconds on a GPU.
        read: Makes the figure of the table out of the file.
    """

    name: str
    command: tuple[str, ...]
    toy: tuple[str, ...]
    limit: int
    read: Callable[[dict[str, Any]], str]


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description="Everything that needs a GPU, in one table.")
    names = [row.name for row in ROWS]
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"), help="(%(default)s)")
    parser.add_argument("--only", nargs="+", choices=names, metavar="ROW", default=names)
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help="most time of this call (%(default)s)"
    )
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, at toy sizes")
    settings = parser.parse_args(argv)
    chosen = [row for row in ROWS if row.name in settings.only]
    gpus = [] if settings.dry_run else gpu_names()
    if not gpus and not settings.dry_run:
        print("no GPU here; on a machine with one, this command runs, within the seconds given:")
        for row in chosen:
            print(f"{row.limit:5d}  {row.name}: python {shlex.join(row.command)}")
        return 0
    machine = {"device": ", ".join(gpus) or f"CPU ({platform.machine()}), dry run", **versions()}
    return run_rows(chosen, settings, machine)


def run_rows(
    rows: Iterable[BenchmarkRow], settings: argparse.Namespace, machine: dict[str, str]
) -> int:
    """Run the rows that are not done, write the table after each, and return the exit code."""
    folder = settings.out.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    state = _earlier(folder / "rows.json", machine)
    deadline = time.monotonic() + 60 * settings.minutes
    for row in rows:
        if state["rows"].get(row.name, {}).get("state") == "done":
            continue
        left = deadline - time.monotonic()
        if left <= 0:
            outcome = {"state": "not run", "says": "time is up: call the command again"}
        else:
            print(f"{row.name} ...", flush=True)
            outcome = run_row(row, folder, min(row.limit, left), toy=settings.dry_run)
        state["rows"][row.name] = outcome
        write_text(folder / "rows.json", json.dumps(state, indent=2) + "\n")
        write_text(folder / "table.md", markdown(state))
    _print_table(state)
    print(f"The table is in {folder / 'table.md'}")
    return 0 if all(row["state"] != "failed" for row in state["rows"].values()) else 1


def run_row(row: BenchmarkRow, folder: Path, limit: float, *, toy: bool) -> dict[str, Any]:
    """Run the command of a row and say what came out."""
    log = folder / f"{row.name.replace(' ', '_')}.log"
    figures = log.with_suffix(".json")
    figures.unlink(missing_ok=True)
    parts = row.toy if toy else row.command
    arguments = [placed(part, str(figures), str(folder / "runs")) for part in parts]
    start = time.monotonic()
    status = run_limited([sys.executable, *arguments], log, limit)
    outcome: dict[str, Any] = {"seconds": round(time.monotonic() - start, 1)}
    if status == 0 and figures.is_file():
        found = json.loads(figures.read_text(encoding="utf-8"))
        return outcome | {"state": "done", "says": row.read(found), "figures": found}
    if status is None:
        return outcome | {"state": "failed", "says": f"took more than {limit:.0f} s; see {log}"}
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no output"]
    # What a command refuses is a fact about the installation, and no failure of it.
    kind = "refused" if status == USER_MISTAKE else "failed"
    said = next((line for line in reversed(lines) if "rror" in line), lines[-1]).strip()
    return outcome | {"state": kind, "says": f"status {status}: {said}"}


def placed(argument: str, out: str, runs: str) -> str:
    """Put paths into an argument of a row."""
    return argument.replace("{out}", out).replace("{runs}", runs)


def run_limited(command: list[str], log: Path, limit: float) -> int | None:
    """Run a command and all that it starts for at most some seconds; None is too long."""
    variables = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with log.open("w", encoding="utf-8") as file:
        child = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | variables,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=with_parent(),
        )
        try:
            return child.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:  # also what a command left behind that was killed by Ctrl-C
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()


def gpu_names() -> list[str]:
    """Return the name of every GPU."""
    import torch

    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def versions() -> dict[str, str]:
    """Return the versions of what is measured."""
    import torch

    found = {"python": platform.python_version(), "cuda": str(torch.version.cuda)}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


def markdown(state: dict[str, Any]) -> str:
    """Return the table as Markdown."""
    about = "\n".join(f"- {name}: {value}" for name, value in state["machine"].items())
    lines = [
        f"| {name} | {row['state']} | {row.get('seconds', '')} | {row['says'].replace('|', '/')} |"
        for name, row in state["rows"].items()
    ]
    return "\n".join(
        [about, "", "| row | state | seconds | figures |", "|---|---|---:|---|", *lines, ""]
    )


def _print_table(state: dict[str, Any]) -> None:
    table = Table(title=state["machine"]["device"])
    for heading in ("row", "state", "seconds", "figures"):
        table.add_column(heading)
    for name, row in state["rows"].items():
        table.add_row(name, row["state"], str(row.get("seconds", "")), escape(row["says"]))
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _earlier(path: Path, machine: dict[str, str]) -> dict[str, Any]:
    """Return what earlier calls found on the same machine."""
    if path.is_file():
        state = json.loads(path.read_text(encoding="utf-8"))
        if state["machine"] == machine:
            return state
        print(f"'{path}' is of another machine or other versions: all rows run again")
    return {"machine": machine, "rows": {}}


def _speeds(found: dict[str, Any]) -> str:
    """Read the file of a benchmark that compares variants."""
    return "; ".join(
        f"{row['name']} {row['ratio']:.2f}"
        if row.get("ratio") is not None
        else f"{row['name']} fails"
        for row in found["rows"]
    )


def _clock(found: dict[str, Any]) -> str:
    """Read the file of the callback `StepClock`."""
    memory = "" if found["peak_mib"] is None else f", peak {found['peak_mib']:.0f} MiB"
    rows = "" if not found["rows_per_second"] else f", {found['rows_per_second']:.1f} rows/s"
    step = 1000 * found["seconds_per_step"]
    processes = "" if found["n_processes"] == 1 else f", {found['n_processes']} processes"
    return f"{step:.1f} ms a step{rows}{memory}{processes}, loss {found['loss']:.3f}"


def _frames(found: dict[str, Any]) -> str:
    return f"{found['settings']['frames_per_second']:,.0f} frames/s"


def _parameters(found: dict[str, Any]) -> str:
    return f"{found['parameters'] / 1e6:,.1f} million parameters"


def _training(name: str, config: str, *overrides: str, toy: tuple[str, ...] = ()) -> BenchmarkRow:
    """Return a row that trains for a moment."""
    clock = f"trainer.callbacks=[{{kind: ./{HERE}/step_clock.py:StepClock, path: '{{out}}'}}]"
    shared = ("run.dir={runs}", f"run.name={name}", clock, *overrides)
    return BenchmarkRow(
        name,
        ("pl_train.py", "-c", f"{config}+trainer/gpu.yaml", "-k", "trainer.devices=1", *shared),
        ("pl_train.py", "-c", config, "-k", *shared, *ON_CPU, *toy),
        limit=120,
        read=_clock,
    )


def _benchmark(
    name: str, script: str, arguments: str, toy: str, limit: int, read: Callable[..., str]
) -> BenchmarkRow:
    """Return a row that is a benchmark with a ``--json`` of its own."""
    start = (f"{HERE}/{script}.py", "--json", "{out}")
    return BenchmarkRow(
        name, (*start, *shlex.split(arguments)), (*start, *shlex.split(toy)), limit, read
    )


ON_CPU = ("trainer.accelerator=cpu", "trainer.devices=1", "trainer.precision=32-true")
TEXT = (
    "data.validation=none",
    "data.evaluate=[]",
    "trainer.max_steps=30",
    "trainer.val_check_interval=null",
    "data.cache_dir={runs}/.cache",
)
LARGE = (
    *TEXT,
    "backbone.name={runs}/llama",
    "backbone.tokenizer=byte",
    "backbone.dtype=bfloat16",
)
POLICIES = ("trainer.max_epochs=3",)
ALL_GPUS = ("trainer.strategy=ddp", "trainer.devices=-1")
TOY_TEXT = ("trainer.max_steps=3", "data.batch_size=4", "data.max_rows=8")
TOY_POLICIES = (
    "trainer.max_epochs=1",
    "rl.levels=[GoToObjS4]",
    "rl.n_slots=2",
    "adapt.levels=[GoToObj]",
)
# Half of the rows say that something works, and half how fast it is.
SPEED = "--device cuda --dtype bfloat16 --rounds 20"
TOY_SPEED = "--rounds 1 --warmup 1 --only"
ROWS = (
    _training("text-bf16", "crossfit.yaml", *TEXT, toy=TOY_TEXT),
    _training("policies-bf16", "babyai.yaml", *POLICIES, toy=TOY_POLICIES),
    _training("text-nccl", "crossfit.yaml", *TEXT, *ALL_GPUS, toy=TOY_TEXT),
    _training("policies-nccl", "babyai.yaml", *POLICIES, *ALL_GPUS, toy=TOY_POLICIES),
    _benchmark(
        "training-step", "step_time", SPEED, f"--size tiny {TOY_SPEED} 'ours H=1'", 200, _speeds
    ),
    _benchmark(
        "experts",
        "moe_speed",
        f"{SPEED} --tokens 512 8192",
        f"--features 8 --experts 4 --tokens 8 {TOY_SPEED} ours",
        200,
        _speeds,
    ),
    _benchmark(
        "generation",
        "generation",
        f"{SPEED} --only 'ours H=1' 'ours, one task H=1'",
        f"--size tiny --tokens 2 --beams 1 {TOY_SPEED} 'ours H=1'",
        200,
        _speeds,
    ),
    _benchmark(
        "frames",
        "babyai_loop",
        "-c babyai_gpu.yaml --rollouts 3",
        "-c babyai_gpu.yaml --rollouts 1 -k rl.backend=minigrid rl.levels=[GoToObjS4] rl.n_slots=4 "
        f"rl.policy.n_channels=8 rl.ppo.n_epochs=1 rl.ppo.n_minibatches=2 {' '.join(ON_CPU)}",
        200,
        _frames,
    ),
    _benchmark(
        "llama",
        "random_llama",
        "{runs}/llama",
        "--size tiny --dtype float32 {runs}/llama",
        120,
        _parameters,
    ),
    _training("llama-step", "crossfit.yaml", *LARGE, toy=TOY_TEXT),
    _training(
        "llama-sharded",
        "crossfit.yaml",
        *LARGE,
        "trainer.strategy=fsdp2",
        "trainer.devices=-1",
        toy=TOY_TEXT,
    ),
    _training("llama-nf4", "crossfit.yaml", *LARGE, "backbone.quantize=nf4", toy=TOY_TEXT),
    _training("llama-int8", "crossfit.yaml", *LARGE, "backbone.quantize=int8", toy=TOY_TEXT),
)


if __name__ == "__main__":
    sys.exit(main())
