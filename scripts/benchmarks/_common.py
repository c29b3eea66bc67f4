"""Measure variants of one computation side by side.

Each variant lives in a process of its own: several models in one heap slow each other down. The
processes take turns, one step at a time, in a new random order each round, so that a slow phase of
the machine hits all of them. Time is the CPU time of the process, on one thread, unless a benchmark
asks for another clock, or the wall time on a GPU; ratios to the floor are paired within a round.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import re
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from mttl.commands.options import positive

if TYPE_CHECKING:  # the parent process of a benchmark never loads it
    from torch import nn

__all__ = [
    "SMOLLM2_135M",
    "TINY_LLAMA",
    "Build",
    "Step",
    "as_speed",
    "on_device",
    "parse_arguments",
    "peak_mib",
    "positive",
    "report",
    "run",
]

Step = Callable[[], object]
# Makes the step of a variant and what is worth knowing about it (columns of the table).
Build = Callable[[str, argparse.Namespace], tuple[Step, dict[str, float]]]

# Sizes of Llama-like models, as transformers' configuration takes them.
SMOLLM2_135M: dict[str, Any] = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
}
TINY_LLAMA: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
USER_MISTAKE = 2
# glibc returns freed memory to the system when it happens to lie at the end of the heap, and asks
# for it again in the next step: 5 to 10 % of a step, for some variants and not for others.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "1073741824", "MALLOC_TRIM_THRESHOLD_": "4294967296"}
PEERS_HINT = (
    "missing peft: install the peers that the benchmarks compare with by `pip install -e "
    "'.[peers]'`, or choose other variants with --only"
)


def parse_arguments(
    parser: argparse.ArgumentParser,
    variants: Sequence[str],
    argv: list[str] | None,
    sizes: Sequence[str] = ("t5-small", "tiny"),
    *,
    devices: bool = False,
) -> argparse.Namespace:
    """Add the options of every benchmark and parse; the first variant is the floor.

    Args:
        parser: Has the benchmark's own options.
        variants: Names of all variants, the floor first.
        argv: Arguments, or None for those of the command line.
        sizes: Of the model, the default first; none where a benchmark has no model.
        devices: Whether the benchmark can run on a GPU, and in half precision.

    Returns:
        The settings; ``only`` lists the chosen variants, the floor always first.
    """
    if sizes:
        parser.add_argument("--size", choices=sizes, default=sizes[0])
    if devices:
        parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
        parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--rounds", type=positive, default=7, help="timed steps (%(default)s)")
    parser.add_argument("--warmup", type=positive, default=2, help="untimed steps (%(default)s)")
    parser.add_argument("--only", nargs="+", choices=variants, metavar="VARIANT", default=variants)
    parser.add_argument(
        "--malloc",
        choices=("keep", "default"),
        default="keep",
        help="let glibc keep freed memory, or do as it does by default (%(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    settings = parser.parse_args(argv)
    settings.only = [name for name in variants if name == variants[0] or name in settings.only]
    if any(name.startswith("PEFT") for name in settings.only) and find_spec("peft") is None:
        print(PEERS_HINT, file=sys.stderr)
        raise SystemExit(USER_MISTAKE)
    return settings


def run(
    build: Build, settings: argparse.Namespace, clock: Callable[[], float] | None = None
) -> list[dict[str, Any]]:
    """Measure the chosen variants.

    Args:
        build: Makes a variant; called in its process, so it must be a function of a module.
        settings: As from `parse_arguments`.
        clock: Seconds; by default of the process, and on a GPU `time.perf_counter`, as it must be
            where a variant has processes of its own.

    Returns:
        One row per variant: ``name``; ``median``, ``min`` and ``max`` of the milliseconds of a
        step; ``ratio``, ``ratio_min`` and ``ratio_max`` to the first variant; ``peak_mib``, the
        rise of the process's (or the GPU's) memory over that before its first step, and
        ``resident_mib``, all of it (of a process, with the libraries); and what ``build`` reports.
        A variant that fails has no figures but an ``error``.
    """
    os.environ["OMP_NUM_THREADS"] = "1"  # torch reads it when a variant imports it
    if settings.malloc == "keep":
        os.environ.update(KEEP_MEMORY)
    if clock is None:
        clock = time.perf_counter if _on_gpu(settings) else time.process_time
    workers = {name: _Worker(build, name, settings, clock) for name in settings.only}
    times: dict[str, list[float]] = {name: [] for name in workers}
    order = list(workers)
    shuffle = random.Random(0).shuffle
    try:
        for worker in workers.values():
            worker.receive()
        n_rounds = settings.warmup + settings.rounds
        console = Console(stderr=True)
        for _ in track(range(n_rounds), "measuring", console=console, transient=True):
            shuffle(order)
            for name in order:
                times[name].append(workers[name].step())
    finally:
        for worker in workers.values():
            worker.stop()
    timed = {name: values[settings.warmup :] for name, values in times.items()}
    return [_row(workers[name], timed[name], timed[settings.only[0]]) for name in settings.only]


def report(
    rows: list[dict[str, Any]],
    settings: argparse.Namespace,
    *,
    title: str,
    unit: str,
    columns: dict[str, str],
) -> None:
    """Print the table, and write it where ``--json`` says."""
    table = Table(title=title)
    table.add_column("variant")
    for heading in (f"{unit}: min / median / max", f"ratio to {settings.only[0]}"):
        table.add_column(heading, justify="right")
    for heading in columns.values():
        table.add_column(heading, justify="right")
    for row in rows:
        if "error" in row:
            table.add_row(row["name"], "fails")
            continue
        spread = f"{row['min']:.1f} / {row['median']:.1f} / {row['max']:.1f}"
        ratios = f"{row['ratio_min']:.3f} / {row['ratio']:.3f} / {row['ratio_max']:.3f}"
        table.add_row(row["name"], spread, ratios, *(f"{row[key]:.1f}" for key in columns))
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    for row in rows:
        if "error" in row:
            print(f"{row['name']} fails: {row['error']}")
    if settings.json:
        shown = {key: value for key, value in vars(settings).items() if key != "json"}
        whole = {"rows": rows, "settings": shown | {"unit": unit}}
        text = json.dumps(whole, indent=2, default=str)  # settings may be paths
        settings.json.write_text(text + "\n", encoding="utf-8")


def on_device(
    settings: argparse.Namespace, model: "nn.Module", batch: dict[str, Any]
) -> tuple["nn.Module", dict[str, Any], AbstractContextManager[object]]:
    """Return a model and its batch on the device of the settings, and the context to run it in.

    Half precision is automatic, as that of ``bf16-mixed``: weights stay in single precision.
    """
    import torch

    moved = {name: _moved(value, settings.device) for name, value in batch.items()}
    half = settings.dtype == "bfloat16"
    context = torch.autocast(settings.device, torch.bfloat16, enabled=half)
    return model.to(settings.device), moved, context


def _moved(value: Any, device: str) -> Any:
    return value.to(device) if hasattr(value, "to") else value


def as_speed(row: dict[str, Any], n_items: int) -> dict[str, Any]:
    """Turn milliseconds per step into items per second, and ratios of time into ones of speed."""
    if "error" in row:
        return row
    return {
        **row,
        "median": 1000 * n_items / row["median"],
        "min": 1000 * n_items / row["max"],
        "max": 1000 * n_items / row["min"],
        "ratio": 1 / row["ratio"],
        "ratio_min": 1 / row["ratio_max"],
        "ratio_max": 1 / row["ratio_min"],
    }


def summarise(times: Sequence[float], floor: Sequence[float]) -> dict[str, float]:
    """Return the extremes and the median of times, and of their ratios paired with the floor's."""
    ratios = [value / reference for value, reference in zip(times, floor, strict=True)]
    return {
        "median": statistics.median(times),
        "min": min(times),
        "max": max(times),
        "ratio": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
    }


def _row(worker: "_Worker", times: list[float], floor: list[float]) -> dict[str, Any]:
    if worker.error:
        return {"name": worker.name, "median": None, "ratio": None, "error": worker.error}
    return {"name": worker.name, **summarise(times, floor), **worker.facts}


class _Worker:
    """A variant in its process: steps on request."""

    def __init__(
        self, build: Build, name: str, settings: argparse.Namespace, clock: Callable[[], float]
    ) -> None:
        self.name = name
        self.error: str | None = None
        self.facts: dict[str, float] = {}
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, build, name, settings, clock))
        self.process.start()
        theirs.close()

    def receive(self) -> float:
        """Wait for the answer: milliseconds; a failure is kept and counts as not a number."""
        try:
            answer = self.connection.recv()
        except EOFError:
            answer = "the process died"
        if isinstance(answer, str):
            self.error = answer
            return float("nan")
        self.facts |= answer
        return self.facts.pop("ms", 0.0)

    def step(self) -> float:
        if self.error:
            return float("nan")
        self.connection.send("step")
        return self.receive()

    def stop(self) -> None:
        self.connection.close()
        self.process.join()


def _serve(
    connection: Connection,
    build: Build,
    name: str,
    settings: argparse.Namespace,
    clock: Callable[[], float],
) -> None:
    """Answer every message with the time of one step, until the other side hangs up."""
    warnings.simplefilter("ignore")  # of the peers: they would garble the progress
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        try:
            step, facts = build(name, settings)
            with contextlib.suppress(OSError):  # forget the peak of building, where the OS can
                Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
            before = peak_mib(settings)
            connection.send(facts)
            while connection.recv():
                start = clock()
                step()
                _finish(settings)
                elapsed = clock() - start
                peak = peak_mib(settings)
                facts = {"peak_mib": peak - before, "resident_mib": peak}
                connection.send({"ms": 1000 * elapsed, **facts})
        except EOFError:
            raise
        except Exception as error:
            connection.send(f"{type(error).__name__}: {error}")


def _on_gpu(settings: argparse.Namespace | None) -> bool:
    return getattr(settings, "device", "cpu") == "cuda"


def _finish(settings: argparse.Namespace) -> None:
    """Wait until a GPU has done what it was given."""
    if _on_gpu(settings):
        import torch

        torch.cuda.synchronize()


def peak_mib(settings: argparse.Namespace | None = None) -> float:
    """Return the largest memory of this process so far: resident, or of its tensors on a GPU."""
    if _on_gpu(settings):
        import torch

        return torch.cuda.max_memory_allocated() / 2**20
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss would include the parent's memory before exec
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text(encoding="ascii"))
        if found:
            return int(found[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 1024
