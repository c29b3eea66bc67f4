"""Measure time and memory of building a task, beside a plain loop over its rows.

    python scripts/benchmarks/build_memory.py [--rows 100000] [--cases topics] [--json FILE]
    python scripts/benchmarks/build_memory.py --rows 1000000 --rounds 1 --warmup 1

Every variant reads gzipped JSON Lines and writes the five samples. The floor reads, converts and
keeps row by row, once for all samples, and shuffles lists. *Stored* converts all lines into a file
without a name; the builder does so where records cannot be had in any order (streams, tables) or
depend on each other. *Build* is what it does with these sources: only the lines that samples hold
are converted. `topics` is classification with a test split, `summaries` holds a fifth of its rows
out; `filtered` leaves out a third of them besides, and `stars` puts each through a function.
"""

import argparse
import gzip
import json
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from _common import Step, parse_arguments, positive, report, run

from mttl.gym.building import build_gym
from mttl.gym.building.split_lines import make_lines
from mttl.gym.sampling import SAMPLES
from mttl.gym.task import Holdout, Source, Task

FLOOR = "plain loop"
VARIANTS = (FLOOR, "stored", "build")
LABELS = ("world", "sports", "business", "science")
HELD_OUT = Source("rows", train="train", holdout=Holdout())
SUMMARIES = Task(
    name="summaries",
    source=HELD_OUT,
    k=32,
    kind="text-to-text",
    input="summarize: {text|clean}",
    output="{title|clean}",
    metric="Rouge-L",
    category="conditional generation/summarization",
    description="",
)
TOPICS = Task(
    name="topics",
    source=Source("rows", train="train", test="test"),
    k=16,
    kind="classification",
    input="{text|clean}",
    output="{label|name}",
    labels=LABELS,
    metric="ACC",
    category="classification/topic",
    description="",
)
CASES = {
    "topics": TOPICS,
    "summaries": SUMMARIES,
    "filtered": replace(SUMMARIES, name="filtered", rows="{third} is not 0"),
    "stars": replace(TOPICS, name="stars", prepare="stars", output="{stars}", labels=()),
}


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description="Time and memory of building a task.")
    parser.add_argument("--rows", type=positive, default=100_000, help="(%(default)s)")
    parser.add_argument("--cases", nargs="+", choices=tuple(CASES), default=list(CASES))
    settings = parse_arguments(parser, VARIANTS, argv, sizes=())
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        write_source(Path(folder), settings.rows)
        for case in settings.cases:
            options = argparse.Namespace(**vars(settings), case=case, folder=Path(folder))
            found += [{**row, "name": f"{case}: {row['name']}"} for row in run(build, options)]
    columns = {"peak_mib": "peak memory, MiB above start"}
    report(found, settings, title=f"building of {settings.rows:,} rows", unit="ms", columns=columns)
    return 0


def write_source(folder: Path, n_rows: int) -> None:
    """Write raw records of some 400 characters, and a test split of a twentieth as many."""
    rng = random.Random(0)
    words = [
        "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(999)
    ]
    texts = [" ".join(rng.choices(words, k=60)) for _ in range(2000)]
    (folder / "rows__default").mkdir()
    for split, n in (("train", n_rows), ("test", max(1, n_rows // 20))):
        path = folder / "rows__default" / f"{split}.jsonl.gz"
        with gzip.open(path, "wt", encoding="utf-8", compresslevel=1) as file:
            for i in range(n):
                text = f"{i} {texts[i % 2000]}\n{texts[i * 7 % 2000][:30]} "
                record = {"text": text, "title": text[:40], "label": i % 4, "third": i % 3}
                file.write(json.dumps(record) + "\n")


def build(variant: str, settings: argparse.Namespace) -> tuple[Step, dict[str, float]]:
    """Make the step of a variant: all files of one task, in an empty folder."""
    task, raw = CASES[settings.case], settings.folder
    out = raw / variant.replace(" ", "_")

    def afresh(step: Callable[[], object]) -> Step:
        def build_again() -> None:
            shutil.rmtree(out, ignore_errors=True)
            step()

        return build_again

    if variant == FLOOR:
        return afresh(lambda: plain_loop(task, raw, out)), {}
    if variant == "stored":
        build_gym.make_lines = lambda *args, **options: make_lines(
            *args, **{**options, "convert_all": settings.rows + 1}
        )

    def step() -> None:
        outcome = build_gym.build_task(task, out, raw=raw)
        if outcome.status != "built":
            raise RuntimeError(outcome.detail)

    return afresh(step), {}


def plain_loop(task: Task, raw: Path, out: Path) -> None:
    """Build a task as one would without the package: a row at a time, all of them in memory."""
    lines = plain_lines(task, raw, "train")
    if task.source.test is None:
        np.random.RandomState(42).shuffle(lines)  # type: ignore[arg-type]
        n = int(0.8 * len(lines))
        pool, test = lines[:n], lines[n:]
    else:
        pool, test = lines, plain_lines(task, raw, "test")
    (out / task.name).mkdir(parents=True)
    for sample in SAMPLES:
        train = pool.copy()
        np.random.RandomState(sample).shuffle(train)  # type: ignore[arg-type]
        by_label: dict[str, list[tuple[str, str]]] = {}
        for line in train:
            key = line[1] if task.kind == "classification" else ""
            by_label.setdefault(key, []).append(line)
        k = task.k
        assert k is not None  # CrossFit's tasks have one
        splits = {
            "train": [line for lines in by_label.values() for line in lines[:k]],
            "dev": [line for lines in by_label.values() for line in lines[k : 2 * k]],
            "test": test,
        }
        for split, lines in splits.items():
            path = out / task.name / f"{task.name}_{k}_{sample}_{split}.jsonl"
            with path.open("w", encoding="utf-8", newline="\n") as file:
                for source, answer in lines:
                    row = {"input": source, "outputs": [answer]}
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")


def plain_lines(task: Task, raw: Path, split: str) -> list[tuple[str, str]]:
    """Convert a split row by row."""
    lines = []
    with gzip.open(raw / "rows__default" / f"{split}.jsonl.gz", "rt", encoding="utf-8") as file:
        for text in file:
            record = json.loads(text)
            if task.name == "filtered" and record["third"] == 0:
                continue
            cleaned = plain_clean(record["text"])
            if task.name == "topics":
                lines.append((cleaned, LABELS[record["label"]]))
            elif task.name == "stars":
                lines.append((cleaned, str(record["label"] + 1)))
            else:
                lines.append((f"summarize: {cleaned}", plain_clean(record["title"])))
    return lines


def plain_clean(text: str) -> str:
    """Drop line breaks and runs of blanks."""
    for odd in ("\n", "\\n", "\r", "\t"):
        text = text.replace(odd, " ")
    return " ".join(text.split())


if __name__ == "__main__":
    sys.exit(main())
