import math

import pytest

from mttl.io.errors import TaskError
from mttl.tasks.convert import convert
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


@pytest.mark.parametrize(
    ("number", "bad", "message"),
    [
        (1, {"x": "a"}, "the field 'y' is missing; the record has x"),
        (1000, {"x": "a", "y": 7}, r"the field 'y' is 7; it must be 0 \(no\), 1 \(yes\)"),
        (1001, {"x": None, "y": 1}, "the field 'x' is None; it must be a text or a number"),
        (2345, "text", "the record is 'text'; it must be a mapping of fields"),
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
