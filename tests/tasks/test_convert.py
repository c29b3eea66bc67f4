import csv
import gzip
import hashlib
import json
import math

import pytest

from helpers.fact_templates import SHARED, facts
from mttl.io.errors import TaskError
from mttl.tasks.convert import convert
from mttl.tasks.sampling import cut
from mttl.tasks.table import crossfit
from mttl.tasks.task import Source, Task


def task(**keys):
    plain = {
        "name": "mine",
        "source": Source("mine", "train"),
        "k": 16,
        "kind": "classification",
        "input": "say {x|lf}",
        "output": "{y|name}",
        "labels": ("no", "yes"),
        "metric": "ACC",
        "category": "a/b",
        "description": "",
    }
    return Task(**{**plain, **keys})


RECORDS = [{"x": f"word\n{n}", "y": n % 2} for n in range(2500)]


@pytest.mark.parametrize("number", [math.nan, math.inf, None, True])
def test_a_value_that_is_no_number_is_refused(number):
    """Also where it comes from the hub rather than from JSON."""
    with pytest.raises(TaskError, match=r"row 2: the field 'y' is .* must be a text or a number"):
        list(convert(task(output="{y}"), "train", [{"x": "a", "y": 1.5}, {"x": "a", "y": number}]))


@pytest.mark.parametrize(
    "bad", [{"x": " ", "y": ["b"]}, {"x": "a", "y": []}, {"x": "a", "y": [" "]}]
)
def test_a_record_that_nobody_could_learn_from_is_named(bad):
    """CrossFit's files keep theirs; of other tasks training would blame a file that was written."""
    several = task(input="{x}", output="{y}", references="all")
    what = "output" if bad["x"] == "a" else "input"
    with pytest.raises(TaskError, match=f"row 2: the {what} is empty; leave such records out with"):
        list(convert(several, "train", [{"x": "a", "y": ["b"]}, bad]))


@pytest.mark.parametrize("number", [1, 1000, 1001, 2345])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"x": "a"}, "the field 'y' is missing; the record has x"),
        ({"x": "a", "y": 7}, r"the field 'y' is 7; it must be 0 \(no\), 1 \(yes\)"),
        ({"x": None, "y": 1}, "the field 'x' is None; it must be a text or a number"),
        ("text", "the record is 'text'; it must be a mapping of fields"),
    ],
)
def test_the_row_to_blame_is_named(bad, message, number):
    records = [*RECORDS[: number - 1], bad, *RECORDS[number:]]
    with pytest.raises(TaskError, match=f"^task 'mine', split 'dev', row {number}: {message}"):
        list(convert(task(), "dev", records))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"output": "{z}"}, r"the field 'z' is \['b'\]; it .* a list asks for 'references: all'"),
        ({"output": "{x}", "references": "all"}, "is 'a'; with 'references: all' it must be a"),
        ({"output": "{w}", "references": "all"}, "an item of the output is None; it must be a"),
        ({"input": "{v}", "output": "{x}"}, "the field 'v' is None; it must be a text or a number"),
    ],
)
def test_outputs_that_do_not_fit_the_references(keys, message):
    records = [{"x": "a", "z": ["b"], "w": [None], "v": None}]
    with pytest.raises(TaskError, match=f"row 1: .*{message}"):
        list(convert(task(**keys), "train", records))


def test_a_mistake_of_the_source_stays_its_own():
    def broken():
        yield RECORDS[0]
        raise TaskError("cut short")

    with pytest.raises(TaskError, match=r"^cut short$"):
        list(convert(task(prepare="named_mask", input="{x}"), "train", broken()))


def index():
    path = SHARED / "crossfit_raw/INDEX.csv"
    if not path.is_file():
        pytest.skip(f"raw records are not at {path.parent}; set MTTL_SHARED")
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


# Rows of the built gym whose source has another slip or blank than the raw records, by file.
SLIPS = {
    "lama-squad_32_100_test": 1,
    "lama-squad_32_13_test": 1,
    "onestop_english_16_100_test": 6,
    "onestop_english_16_13_test": 6,
    "onestop_english_16_13_train": 1,
    "sick_16_100_test": 5,
    "sick_16_13_test": 5,
}


@pytest.mark.slow
def test_whole_splits_give_the_published_test_files_and_the_lines_of_the_built_gym():
    """Of every task with raw records: the test file by its sum, and each line of the gym."""
    sums = {
        row["task"]: row["md5"]
        for row in facts("crossfit_md5.csv")
        if row["split"] == "test" and row["sample"] == "100"
    }
    names = [(row["folder"], name) for row in index() for name in row["tasks"].split()]
    assert len(names) == 48
    slips = {}
    for folder, name in names:
        found = crossfit()[name]

        def read(split, folder=folder, found=found):
            path = SHARED / "crossfit_raw" / folder / f"{split}.jsonl.gz"
            with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
                return list(convert(found, split, map(json.loads, file)))

        train = read(found.source.train)
        test = None if found.source.test is None else read(found.source.test)
        _, places = cut(found, len(train), None if test is None else len(test))
        lines = train if test is None else test
        drawn = "".join("\t".join(lines[i]) + "\n" for i in places)
        assert hashlib.md5(drawn.encode()).hexdigest() == sums[name], name

        written = {"\t".join(line) for line in [*train, *(test or [])]}
        for path in sorted((SHARED / "crossfit" / name).glob("*.tsv")):
            lines = path.read_bytes().decode().split("\n")[:-1]
            slips[path.stem] = sum(line not in written for line in lines)
    assert len(slips) == 6 * 48
    assert {file: n for file, n in slips.items() if n} == SLIPS
