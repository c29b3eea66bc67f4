import math

import pytest

from helpers.raw import make_task
from mttl.io.errors import TaskError
from mttl.tasks.convert import convert


def task(**keys):
    given = {"input": "say {x|lf}", "output": "{y|name}", "labels": ("no", "yes"), **keys}
    return make_task("mine", **given)


RECORDS = [{"x": f"word\n{n}", "y": n % 2} for n in range(2500)]
ALL = {"references": "all"}


@pytest.mark.parametrize(
    ("keys", "bad", "message"),
    [
        # Also where it comes from the hub rather than from JSON.
        *(({}, {"x": "a", "y": number}, "the field 'y' is .* must be a text or a number")
          for number in (math.nan, math.inf, None, True)),
        ({}, {"x": "a", "y": ["b"]}, r"is \['b'\]; it .* for lists use 'ref.*: all"),
        (ALL, {"x": "a", "y": "b"}, "is 'b'; with 'references: all' it must be a"),
        (ALL, {"x": "a", "y": [None]}, "an item of the output is None; it must be a"),
        ({}, {"x": None, "y": "b"}, "the field 'x' is None; it must be a text or a number"),
        # CrossFit's files keep theirs; of other tasks training would blame a file that was written.
        (ALL, {"x": " ", "y": ["b"]}, "the input is empty; exclude such records with"),
        (ALL, {"x": "a", "y": []}, "the output is empty; exclude such records with"),
        (ALL, {"x": "a", "y": [" "]}, "the output is empty; exclude such records"),
    ],
)  # fmt: skip
def test_a_record_that_cannot_be_written_is_named(keys, bad, message):
    good = {"x": "a", "y": ["b"] if keys else 1.5}
    with pytest.raises(TaskError, match=f"row 2: .*{message}"):
        list(convert(task(input="{x}", output="{y}", **keys), "train", [good, bad]))


@pytest.mark.parametrize(
    ("number", "bad", "message"),
    [
        (1, {"x": "a"}, "the field 'y' is missing; the record has x"),
        (1000, {"x": "a", "y": 7}, r"the field 'y' is 7; it must be 0 \(no\), 1 \(yes\)"),
        (2345, "text", "the record is 'text'; it must be a mapping of fields"),
    ],
)
def test_the_row_to_blame_is_named(bad, message, number):
    records = [*RECORDS[: number - 1], bad, *RECORDS[number:]]
    with pytest.raises(TaskError, match=f"^task 'mine', split 'dev', row {number}: {message}"):
        list(convert(task(), "dev", records))


def test_values_are_named_where_no_record_has_the_wanted_ones():
    records = [{"x": "a", "y": "b", "side": side} for side in ("left", "right", "left")]
    message = "none of 3 records has rows: '{side} is lft'; there are side = 'left'; side = 'right'"
    with pytest.raises(TaskError, match=message):
        list(convert(task(output="{y}", rows="{side} is lft"), "dev", records))
    assert list(convert(task(output="{y}", rows="{side} is right"), "dev", records)) == [
        ("say a", "b")
    ]


def test_a_mistake_of_the_source_stays_its_own():
    def broken():
        yield RECORDS[0] | {"sentence": "a <mask>"}
        raise TaskError("cut short")

    with pytest.raises(TaskError, match=r"^cut short$"):
        list(convert(task(prepare="named_mask", input="{x}"), "train", broken()))
