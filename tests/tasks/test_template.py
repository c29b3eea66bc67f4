import re

import pytest

from mttl.io.errors import TaskError
from mttl.tasks.filters import RecordError
from mttl.tasks.template import FILTERS, compile_condition, compile_template, compile_values

CHOICES = {"label": ["1", "2"], "text": ["x", "y"]}
LISTED = [{"label": "1", "text": "x"}, {"label": "2", "text": "y"}]


def fill(template, labels=(), **record):
    return compile_values(template, labels)(record)


@pytest.mark.parametrize(
    ("template", "record", "expected"),
    [
        ("plain", {}, "plain"),
        ("a {x} b", {"x": "1"}, "a 1 b"),
        ("{x}{y}", {"x": "1", "y": 2}, "12"),
        ("{x} ", {"x": 0.5}, "0.5 "),
        ("{question-X}", {"question-X": "q"}, "q"),
        ("{a.b}", {"a": {"b": "c"}}, "c"),
        ("{a.b|join}", {"a": [{"b": "c"}, {"b": "d"}]}, "c d"),
        ("{a.b|join}", {"a": {"b": ["c", "d"]}}, "c d"),
        ("{x|strip}", {"x": " a \n"}, "a"),
        ("{x|lf}", {"x": "a\nb\tc"}, "a b\tc"),
        ("{x|lf_n}", {"x": "a\nb"}, "a [n] b"),
        ("{x|breaks}", {"x": "a\nb\tc\rd  "}, "a b c d  "),
        ("{x|clean}", {"x": " a\\nb\n\t c "}, "a b c"),
        ("{x|squeeze}", {"x": " a\\nb\n\t c "}, "a\\nb c"),
        ("{x|bsn}", {"x": "a\\nb\n"}, "a b\n"),
        ("{x|unquoted}", {"x": "''a'b'"}, "a'b"),
        ("{x|unspaced|lower}", {"x": "A B\tC"}, "ab\tc"),
        ("{x|lower|join}", {"x": ["A", "B"]}, "a b"),
        ("{x|join:, }", {"x": ["a", 1]}, "a, 1"),
        ("{x|join:}", {"x": ["a", "b"]}, "ab"),
        ("{x|lettered}", {"x": ["a", "b"]}, " (A) a (B) b"),
        ("{x|tight}", {"x": ["a", "b"]}, "(A)a(B)b"),
        ("{[x,y]|lettered}", {"x": "a", "y": "b"}, " (A) a (B) b"),
        ("{x|set}", {"x": ["b", "a", "b"]}, ["b", "a"]),
        ("{x|nonempty}", {"x": ["b", "", "a"]}, ["b", "a"]),
        ("{x|first}", {"x": ["b", "a"]}, "b"),
        ("{x|only}", {"x": ["b"]}, "b"),
        ("{x|keys}", {"x": {"b": 2, "a": 1}}, ["b", "a"]),
        ("{x|keyed}", {"x": CHOICES}, " (1) x (2) y"),
        ("{x|keyed}", {"x": LISTED}, " (1) x (2) y"),
        ("{x|pick:y}", {"x": CHOICES, "y": "2"}, "y"),
        ("{x|pick:y.z}", {"x": LISTED, "y": {"z": "1"}}, "x"),
        ("{x|at:y}", {"x": ["a", "b"], "y": 1}, "b"),
        ("{x|at:y}", {"x": ["a", "b"], "y": "1"}, "b"),
        ("{x|at:y}", {"x": ["a", "b"], "y": "B"}, "b"),
        ("{x|at1:y}", {"x": ["a", "b"], "y": "1\n"}, "a"),
        ("{[x,y]|at1:z}", {"x": "a", "y": "b", "z": 2}, "b"),
    ],
)
def test_filled(template, record, expected):
    assert fill(template, **record) == expected


@pytest.mark.parametrize(
    ("filter_", "value"), [("name", "1"), ("name", True), ("name", 1.0), ("name1", "2")]
)
def test_names_of_labels(filter_, value):
    assert fill(f"{{x|{filter_}}}", ("no", "yes"), x=value) == "yes"


def test_a_field_alone_keeps_its_value_where_it_is_asked_for():
    assert fill("{x}", x=["a"]) == ["a"]
    assert fill("{x}", x=3) == 3
    assert compile_template("{x}")({"x": 3}) == "3"
    with pytest.raises(RecordError, match=r"field 'x' is \['a'\]; .* a filter such as 'join'"):
        compile_template("{x}")({"x": ["a"]})


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{x", "the template '{x' has an unmatched brace"),
        ("{|lf}", "has a field without a name: '{|lf}'"),
        ("{x|striip}", "an unknown filter 'striip'. Did you mean 'strip'"),
        ("{x|at}", "write the filter 'at' as 'at:FIELD'"),
        ("{x|name}", "the template '{x|name}' uses the filter 'name', but the task has no labels"),
    ],
)
def test_malformed_templates(template, message):
    with pytest.raises(TaskError, match=re.escape(message)):
        compile_template(template)


@pytest.mark.parametrize(
    ("template", "record", "message"),
    [
        ("{x}", {"y": 1, "z": 2}, "the field 'x' is missing; the record has y, z"),
        ("{answer}", {"answers": 1}, "has answers. Did you mean 'answers'"),
        ("{[x,y]|lettered}", {"x": "a"}, "the field 'y' is missing"),
        ("{x|lf}", {"x": ["a", None]}, "the field 'x' is None; it must be a text or a number"),
        ("{x|name}", {"x": 2}, "the field 'x' is 2; it must be 0 (no), 1 (yes)"),
        ("{x|join}", {"x": "ab"}, "the field 'x' is 'ab'; it must be a list"),
        ("{x|lettered}", {"x": list("ab") * 14}, "the field 'x' has 28 options, but there are 26"),
        ("{x|first}", {"x": []}, "the field 'x' is an empty list; it must have an item"),
        ("{x|only}", {"x": ["a", "b"]}, "the field 'x' has 2 items; it must have exactly one"),
        ("{x|keyed}", {"x": {"text": ["a"]}}, "the field 'x' is {'text': ['a']}, which is malf"),
        ("{x|keyed}", {"x": 3}, "the field 'x' is 3, which is malformed"),
        ("{x|pick:y}", {"x": 3, "y": 1}, "the field 'x' is 3, which is malformed"),
        ("{x|pick:y}", {"x": CHOICES, "y": 3}, "the field 'y' is 3; it must be one of '1', '2'"),
        ("{x|at:y}", {"x": ["a"], "y": "B"}, "the field 'y' is 'B'; it must be the index of one"),
        ("{x|at:y}", {"x": ["a"]}, "the field 'y' is missing"),
        ("{x|at:y}", {"x": "a", "y": 0}, "'a'; it must be a list"),
    ],
)  # fmt: skip
def test_records_that_cannot_be_written(template, record, message):
    with pytest.raises(RecordError, match=re.escape(message)):
        fill(template, ("no", "yes"), **record)


@pytest.mark.parametrize(
    ("condition", "values", "expected"),
    [
        ("{x} is yes", ["yes", "no"], [True, False]),
        ("{x} is 1 or 2", [1, "2", 3, "12"], [True, True, False, False]),
        ("{x} is not -1", [-1, 0, "-1"], [False, True, False]),
        ("{x} is not 2 or 3", [1, 2, 3], [True, False, False]),
        ("{x} is false", [False, True, "false"], [True, False, True]),
        ("{x|clean} is not empty", [" \n ", "a"], [False, True]),
        ("{x} is empty", [None, " ", "a"], [True, True, False]),
        ("{x} is not empty and {x} is not a and b", ["", "a", "a and b"], [False, True, False]),
        ("{x|name} is yes", [0, 1], [False, True]),
    ],
)
def test_conditions(condition, values, expected):
    holds = compile_condition(condition, ("no", "yes"))
    assert [holds({"x": value}) for value in values] == expected

    for malformed in ("x is 1", "{x} = 1", "{x} is", "{x} {y} is 1"):
        with pytest.raises(TaskError, match=r"' must have the form '\{field\} is value',"):
            compile_condition(malformed)


def test_the_documents_name_every_filter(pytestconfig):
    text = (pytestconfig.rootpath / "docs/reference/task_files.md").read_text(encoding="utf-8")
    assert [name for name in FILTERS if not re.search(rf"`{name}(:[^`]*)?`", text)] == []
