"""The shipped grid gym, read from its files alone, and the script that builds it."""

import csv
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path

import pytest

from mttl.config.load import load_config
from mttl.data.prompt_prefix import check_codes, prompt_prefix
from mttl.io.errors import TaskError
from mttl.io.reading import check_name
from mttl.tasks.folder import Gym
from mttl.tasks.partition import Partition

ROOT = Path(__file__).resolve().parents[3]
GYM = ROOT / "data/grid"
SCRIPT = ROOT / "scripts/gyms/build_grid.py"
SAMPLES = (100, 13, 21, 42, 87)
FILES = {
    name: Partition.read(ROOT / f"configs/partitions/grid_{name}.json")
    for name in ("cells", "language", "operation")
}
NAME = re.compile(r"(.+)_64_(\d+)_(train|dev|test)\.tsv")

needs_packages = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("babel", "num2words")),
    reason="needs the extra 'grid': pip install -e '.[grid]'",
)


@pytest.fixture(scope="module")
def table() -> dict[str, dict[str, str]]:
    with (GYM / "TASKS.csv").open(encoding="utf-8", newline="") as file:
        return {row["task"]: row for row in csv.DictReader(file)}


@pytest.fixture(scope="module")
def files() -> dict[tuple[str, int, str], list[list[str]]]:
    """(task, sample, split) -> rows."""
    found = {}
    for path in sorted(GYM.glob("*/*.tsv")):
        match = NAME.fullmatch(path.name)
        assert match, path
        assert match[1] == path.parent.name
        text = path.read_bytes().decode("utf-8")
        assert text.endswith("\n")
        rows = [line.split("\t") for line in text[:-1].split("\n")]
        found[match[1], int(match[2]), match[3]] = rows
    return found


def language(task: str) -> str:
    return task.partition("_")[0]


def operation(task: str) -> str:
    return task.partition("_")[2]


# The folder.


def test_a_name_is_its_language_and_its_operation(files, table):
    assert set(table) == {key[0] for key in files}
    assert set(Gym(GYM).tasks()) == set(table)
    assert 150 <= len(table) <= 170
    for task, row in table.items():
        check_name(task, "a task", TaskError)
        assert re.fullmatch(r"[a-z]{2}_[a-z_]+", task)
        assert row["factors"] == f"language={language(task)} operation={operation(task)}"
        assert row["category"].endswith(f"/{operation(task)}")
        assert row["metric"] == "ACC"
        assert row["description"]
        assert row["source"] in ("babel", "num2words")
    assert len(set(map(language, table))) == 13
    assert len(set(map(operation, table))) == 15
    assert min(Counter(map(language, table)).values()) >= 8
    assert min(Counter(map(operation, table)).values()) >= 6
    assert len({row["description"] for row in table.values()}) == len(table)


def test_the_readme_counts_what_is_there(files, table):
    text = (GYM / "README.md").read_text(encoding="utf-8")
    assert f"{len(table)} text-to-text tasks" in text
    for task in table:
        assert sum(line.startswith(f"| `{task}` |") for line in text.splitlines()) == 1
    for name, partition in FILES.items():
        sizes = f"{len(partition.train)} | {len(partition.dev)} | {len(partition.test)}"
        assert f"| `grid_{name}.json` | {sizes} |" in text
    left_out = text.partition("Left out:")[2].partition("##")[0]
    dropped = set(re.findall(r"`([a-z]{2}_[a-z_]+)`", left_out))
    pairs = {f"{a}_{b}" for a in map(language, table) for b in map(operation, table)}
    assert pairs - set(table) <= dropped


# What a row is about is read off its text here, without the script's own keys.


def things(task: str, row: list[str]) -> set[str]:
    which = operation(task)
    text = row[1] if which in ("date_iso", "number") else row[0]
    if which in ("date_short", "date_long", "date_iso", "month"):
        assert re.fullmatch(r"\d{4}-\d\d(-\d\d)?", text)
        return {text}
    if which == "list":
        return {f"name {name}" for name in text.split("; ")}
    number, _, unit = text.partition(" ")
    value = f"{Decimal(number).normalize():f}"
    return {f"{value} {unit}"} if which in ("unit", "ago") else {value}


def test_nothing_is_on_both_sides_of_a_border(files):
    splits: dict[str, set[str]] = {}
    for (task, _, split), rows in files.items():
        for row in rows:
            for thing in things(task, row):
                splits.setdefault(thing, set()).add(split)
    assert not {thing: found for thing, found in splits.items() if len(found) > 1}
    assert len(splits) > 5000


def test_numbers_and_dates_are_split_as_in_the_lexical_gym(files):
    mine: dict[str, str] = {}
    for (task, _, split), rows in files.items():
        if operation(task) in ("date_long", "cardinal", "group", "money", "percent"):
            mine |= {thing: split for row in rows for thing in things(task, row)}
    shared = 0
    for task in ("date_de", "number_words", "group_en", "dollars_en", "percent_de"):
        for path in (ROOT / "data/lexical" / task).glob("*.tsv"):
            split = path.stem.rpartition("_")[2]
            for line in path.read_text(encoding="utf-8").splitlines():
                text = line.split("\t")[0]
                thing = text if text.count("-") == 2 else f"{Decimal(text).normalize():f}"
                if thing in mine:
                    shared += 1
                    assert mine[thing] == split, (task, line)
    assert shared > 1000


# The partitions.


def test_of_an_unseen_cell_both_parts_are_seen_in_most_others(table):
    train = FILES["cells"].train
    assert len(FILES["cells"].test) == 32
    for part in (language, operation):
        trained, total = Counter(map(part, train)), Counter(map(part, table))
        assert all(trained[value] >= 0.6 * total[value] for value in total)
    # Many languages and operations are tested, not a corner of the grid.
    assert len(set(map(language, FILES["cells"].test))) >= 10
    assert len(set(map(operation, FILES["cells"].test))) >= 10


@pytest.mark.parametrize(
    ("name", "part", "other", "seen"),
    [
        ("language", language, operation, {"date_long", "cardinal"}),
        ("operation", operation, language, {"en", "ja"}),
    ],
)
def test_a_held_value_is_seen_twice_and_no_more(name, part, other, seen, table):
    partition = FILES[name]
    test, dev = set(map(part, partition.test)), set(map(part, partition.dev))
    assert len(test) == 3
    assert len(dev) == 1
    assert not test & dev
    for value in test | dev:
        assert {other(task) for task in partition.train if part(task) == value} == seen
    # What is not held is trained whole, and so are the other parts of unseen tasks.
    for task in table:
        if part(task) not in test | dev:
            assert task in partition.train
    assert {other(task) for task in (*partition.test, *partition.dev)} <= {
        other(task) for task in partition.train if part(task) not in test | dev
    }


def test_the_matrix_of_the_oracle_is_the_factors(table):
    with (ROOT / "configs/router/expert_grid.csv").open(encoding="utf-8", newline="") as file:
        rows = {row.pop("task"): row for row in csv.DictReader(file)}
    assert list(rows) == list(table)
    for task, row in rows.items():
        assert {skill for skill, weight in row.items() if float(weight)} == {
            language(task),
            operation(task),
        }


@pytest.mark.parametrize("prefix", ["name", "code", "none"])
def test_no_row_is_cut_off(files, table, prefix):
    config = load_config("crossfit.yaml+data/grid.yaml+router/expert.yaml")
    assert config.skills.n_skills == 13 + 15
    assert tuple(config.data.samples) == SAMPLES
    check_codes(list(table))
    for (task, _, _), rows in files.items():
        start = len(prompt_prefix(task, prefix))
        assert all(start + len(row[0].encode()) < config.data.max_input_length for row in rows)
        assert all(len(row[1].encode()) < config.data.max_output_length for row in rows)


# The script.


@pytest.fixture
def package(monkeypatch):
    """Make `grid_gym` importable, as it is for the script."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "gyms"))


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("name", FILES)
def test_partitions_follow_from_the_names(table, name):
    from grid_gym.partitions import PARTITIONS

    path = ROOT / f"configs/partitions/grid_{name}.json"
    made = PARTITIONS[f"grid_{name}"](list(table))
    assert json.loads(path.read_text(encoding="utf-8")) == made
    assert PARTITIONS[f"grid_{name}"](list(table)) == made


@pytest.mark.usefixtures("package")
def test_the_pinned_versions_are_those_of_the_extra():
    from grid_gym.versions import PINNED

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extra = project["optional-dependencies"]["grid"]
    assert extra == [f"{name}=={version}" for name, version in PINNED.items()]


@needs_packages
@pytest.mark.usefixtures("package")
def test_what_makes_no_task_is_dropped_with_its_reason(monkeypatch):
    from derived_gym.item import Item
    from grid_gym import cells
    from grid_gym.operations import Operation

    def items(language):
        if language == "de":
            raise LookupError("no data")
        # French has nine of ten answers of English, Polish eight, one of them copied.
        own = {"en": 0, "fr": 1, "pl": 2, "tr": 10}[language]
        answers = (
            ["1", *["long" * 20] * 9] if language == "tr" else [*"bc"[:own], *"a" * (10 - own)]
        )
        return [Item(str(number), (text,), ()) for number, text in enumerate(answers)]

    made = Operation("op", "family", "babel", "Do it in {}.", items)
    copy = Operation("copy", "family", "babel", "Do it in {}.", lambda _: [Item("x", ("x",), ())])
    monkeypatch.setattr(cells, "OPERATIONS", (made, copy))
    monkeypatch.setattr(cells, "LANGUAGES", dict.fromkeys(("en", "de", "fr", "pl", "tr"), "it"))
    told = []
    grid = cells.cross(told.append)
    assert told[:2] == ["en_op", "de_op"]
    assert grid.dropped == {
        "de_op": "no data",
        "fr_op": "90% of the rows are those of `en_op`",
        **{f"{name}_copy": "the output is the input" for name in cells.LANGUAGES},
    }
    assert grid.overlaps == {("pl_op", "en_op"): 0.8}
    assert {cell.name: len(rows) for cell, rows in grid.items.items()} == {
        "en_op": 10,
        "pl_op": 10,
        "tr_op": 1,  # of the others the outputs have 80 bytes
    }


@needs_packages
@pytest.mark.usefixtures("package")
def test_examples_by_hand():
    from grid_gym import dates, figures, numerals, phrases

    def of(items, text):
        return next(item.outputs[0] for item in items if item.input == text)

    assert of(dates.date_long("de"), "1998-07-17") == "17. Juli 1998"
    assert of(dates.date_iso("fr"), "17 juillet 1998") == "1998-07-17"
    assert of(dates.month("ja"), "1952-10") == "1952年10月"
    assert of(figures.percent("hi"), "2.047") == "२०४.७%"
    assert of(figures.percent("fa"), "2.047") == "۲۰۴٫۷٪"
    assert of(numerals.cardinal("de"), "345") == "dreihundertfünfundvierzig"
    # num2words fails at round hundreds of Korean ordinals; they are left out.
    korean = {item.input: item.outputs[0] for item in numerals.ordinal("ko")}
    assert korean["21"] == "스물한 번째"
    assert set(map(str, range(1, 1000))) - set(korean) == {str(n) for n in range(100, 1000, 100)}
    with pytest.raises(LookupError, match="num2words has no ordinal numbers of the language"):
        next(numerals.ordinal("el"))
    assert of(numerals.number("en"), "three hundred and forty-five") == "345"
    assert of(phrases.ago("ru"), "-3 day") == "3 дня назад"
    assert of(phrases.ago("en"), "1 month") == "in 1 month"
    text = next(item for item in phrases.joined("en") if item.input.count(";") == 2)
    assert text.outputs[0].count(",") == 2
    assert ", and " in text.outputs[0]


@pytest.mark.slow
@needs_packages
def test_check_agrees_with_what_is_shipped_and_names_what_differs(tmp_path):
    command = [sys.executable, str(SCRIPT), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "files agree" in done.stderr

    copy = tmp_path / "grid"
    shutil.copytree(GYM, copy)
    (copy / "TASKS.csv").write_text("task,metric\n")
    done = subprocess.run(
        [*command, "--out", str(copy)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"{copy / 'TASKS.csv'}: differs" in done.stderr
    assert (copy / "TASKS.csv").read_text() == "task,metric\n"
