"""Measure the memory of training data over time: Python lists beside rows that stay on disk.

    python scripts/benchmarks/streaming.py [--rows 1000000] [--tasks 20] [--json FILE]

A gym of tasks with rows of some eight words is written first. *Disk* is what training does: rows
are tokenised into a file a piece at a time, and looked up in it by their number. *Lists* takes the
same ids out of that file and keeps them as Python lists, without the texts. Both read an epoch of
batches, which have to be the same. Memory is what belongs to the process alone
(RssAnon), the most in each phase; mapped is what it has of files (RssFile), which the system takes
back when it needs room. Each variant runs in a process of its own, with everything imported.
"""

import argparse
import hashlib
import json
import multiprocessing
import random
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from mttl.command import positive

VARIANTS = ("disk", "lists")
BATCH, PARTS, SEED = 64, 4, 0


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description="Memory of training data over time.")
    parser.add_argument("--rows", type=positive, default=1_000_000, help="(%(default)s)")
    parser.add_argument("--tasks", type=positive, default=20, help="(%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    options = parser.parse_args(argv)
    if not Path("/proc/self/status").exists():
        parser.error("memory is read from /proc, which this system does not have")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_gym(folder / "gym", options.rows, options.tasks)
        found = {name: _apart(name, folder) for name in VARIANTS}
    table = Table(title=f"{options.rows:,} rows")
    for heading in ("variant", "phase", "seconds", "memory, MiB: most / at its end", "mapped, MiB"):
        table.add_column(heading, justify="left" if heading in ("variant", "phase") else "right")
    for name, phases in found.items():
        for phase in phases:
            memory = f"{phase['most']:.0f} / {phase['end']:.0f}"
            row = (name, phase["name"], f"{phase['seconds']:.1f}", memory, f"{phase['mapped']:.0f}")
            table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    sums = {phases[-1]["sum"] for phases in found.values()}
    print("The batches are the same." if len(sums) == 1 else f"The batches differ: {sums}.")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return int(len(sums) > 1)


def write_gym(folder: Path, n_rows: int, n_tasks: int) -> None:
    """Write tasks of as many rows each, of 4 to 12 words."""
    rng = random.Random(SEED)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=5)) for _ in range(500)]
    for task in range(n_tasks):
        name = f"task_{task}"
        (folder / name).mkdir(parents=True)
        share = n_rows // n_tasks + (task < n_rows % n_tasks)
        with (folder / name / f"{name}_{share}_100_train.tsv").open("w", encoding="utf-8") as file:
            for i in range(share):
                text = " ".join(rng.choices(words, k=rng.randint(4, 12)))
                file.write(f"{text} {i}\t{words[i % 500]}\n")
    table = "".join(f"task_{task},EM\n" for task in range(n_tasks))
    (folder / "TASKS.csv").write_text(f"task,metric\n{table}", encoding="utf-8")


def measure(variant: str, folder: Path) -> list[dict[str, Any]]:
    """Prepare the rows and read an epoch of them; returns the phases."""
    import torch

    from mttl.config.data_schema import Data
    from mttl.data.collate import TrainCollator
    from mttl.data.data_module import TextToTextDataModule
    from mttl.data.loader import ResumableLoader
    from mttl.data.samplers import build_sampler
    from mttl.gym.folder import Gym

    torch.set_num_threads(1)
    gym, cache = Gym(folder / "gym"), folder / "cache"
    tasks, tokenizer = gym.tasks(), _tokenizer(gym)
    data = Data(dir=str(gym.directory), batch_size=BATCH, length_window=20, cache_dir=str(cache))
    phases: list[dict[str, Any]] = []
    rows: Any = None
    with _phase("start", phases):
        pass
    module = TextToTextDataModule(gym, tasks, tokenizer, data, decoder_only=False, seed=SEED)
    with _phase("tokenise" if variant == "disk" else "read", phases):
        table = module.train_rows
        if variant == "lists":
            rows = list(table.select_columns(["input_ids", "labels", "task_id"]))
    with _phase("order", phases):
        if variant == "disk":
            loader = module.train_dataloader()
        else:
            sampler = build_sampler(
                "proportional",
                [row["task_id"] for row in rows],
                lengths=[len(row["input_ids"]) + 2 * len(row["labels"]) for row in rows],
                length_window=data.length_window,
                batch_size=BATCH,
                seed=SEED,
            )
            collate = TrainCollator(tokenizer.pad_token_id, len(tasks), decoder_only=False)
            loader = ResumableLoader(rows, sampler, collate_fn=collate)
        batches = iter(loader)
    digest = hashlib.sha256()
    for part in range(PARTS):
        with _phase(f"epoch, {part + 1} of {PARTS} parts", phases):
            share = len(loader) // PARTS + (len(loader) % PARTS if part == PARTS - 1 else 0)
            for _ in range(share):
                for value in next(batches).values():
                    digest.update(value.numpy())
    phases[-1]["sum"] = digest.hexdigest()[:16]
    return phases


def _tokenizer(gym: Any) -> Any:
    """Return a small BPE of the gym's own words."""
    from itertools import islice

    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=["</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    with gym.file(gym.tasks()[0], "train", 100).open(encoding="utf-8") as file:
        bpe.train_from_iterator(islice(file, 2000), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="</s>", pad_token="</s>")


@contextmanager
def _phase(name: str, phases: list[dict[str, Any]]) -> Iterator[None]:
    """Note time and memory of a block, looked at twenty times a second."""
    most, over = [_memory("RssAnon")], threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            most.append(_memory("RssAnon"))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    start = time.perf_counter()
    yield
    seconds = time.perf_counter() - start
    over.set()
    watcher.join()
    end = _memory("RssAnon")
    figures = {"most": max(*most, end), "end": end, "mapped": _memory("RssFile")}
    phases.append({"name": name, "seconds": seconds, **figures})


def _memory(kind: str) -> float:
    found = re.search(rf"{kind}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1]) / 1024


def _apart(variant: str, folder: Path) -> list[dict[str, Any]]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, (variant, folder))


if __name__ == "__main__":
    sys.exit(main())
