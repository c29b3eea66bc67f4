"""T0: small templates in promptsource's layout, rows in P3's, and records of data sets."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.raw import write_jsonl
from mttl.io.errors import TaskError
from mttl.tasks.building import t0
from mttl.tasks.building.hub import UnavailableError

# As PyYAML writes it in promptsource, with its tags.
TEMPLATE = """\
  0f3c-{number}: !Template
    answer_choices: {choices}
    id: 0f3c-{number}
    jinja: {jinja}
    metadata: !TemplateMetadata
      choices_in_prompt: true
      metrics:
      - Accuracy
      original_task: {original}
    name: {name}
    reference: ''
"""
FIXED = "Yes ||| No"
INFER = "'{{premise}} Does \"{{hypothesis}}\" follow? ||| {{ answer_choices[label] }}'"
TRUE = "'{{hypothesis}}: true? ||| {% if label != -1 %}{{ answer_choices[label] }}{% endif %}'"
RTE = [("can we infer", FIXED, INFER, "true"), ("guaranteed true", FIXED, TRUE, "true")]
OPEN = [("write", "null", "'Say {{premise}} ||| {{hypothesis}}'", "false")]


def write(root: Path, name: str, templates: list[tuple[str, str, str, str]]) -> Path:
    """Write the templates of a data set: name, choices, Jinja and whether it is the own task."""
    path = root / "templates" / name / "templates.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    keys = ("name", "choices", "jinja", "original")
    text = "".join(
        TEMPLATE.format(number=n, **dict(zip(keys, one, strict=True)))
        for n, one in enumerate(templates)
    )
    path.write_text(f"dataset: {name}\ntemplates:\n{text}", encoding="utf-8")
    return root


def rendered(root: Path, jinja: str, record: dict[str, Any], choices: str = "null") -> list[Any]:
    """Return the training rows of a data set of one record under one template."""
    write(root, "imdb", [("one", choices, json.dumps(jinja), "true")])
    write_jsonl(root / "imdb__default/train.jsonl", [record])
    (task,) = t0.tasks(root)
    return list(task.read("train"))


def test_templates_for_training_are_tasks_and_held_out_data_sets_too(tmp_path: Path) -> None:
    write(tmp_path, "glue/mrpc", [*RTE, *OPEN])
    write(tmp_path, "gigaword", [("'summarize:'", "null", "a ||| b", "true")])  # left out by T0
    for name in ("super_glue/rte", "anli", "story_cloze/2016"):
        write(tmp_path, name, [*RTE, *OPEN])
    write(tmp_path, "glue/cola", RTE)  # not of T0
    found = {task.name: task for task in t0.tasks(tmp_path)}
    seen = ["glue_mrpc_can_we_infer", "glue_mrpc_guaranteed_true", "glue_mrpc_write"]
    unseen = ["story_cloze_2016", "super_glue_rte", "anli_r1", "anli_r2", "anli_r3"]
    assert [name for name, task in found.items() if task.side == "train"] == seen
    assert [name for name, task in found.items() if task.side == "test"] == unseen
    assert [found[name].metric for name in seen] == ["accuracy", "accuracy", "Rouge-L"]
    assert found["story_cloze_2016"].k == 70
    assert found["anli_r2"].source.splits == ["train_r2", "test_r2"]


@pytest.mark.parametrize(
    ("jinja", "choices", "record", "expected"),
    [
        # Expected texts are written from `Template.apply` of promptsource 0.2.3.
        (
            '{{premise}} Does "{{hypothesis}}" follow? ||| {{ answer_choices[label] }}',
            FIXED,
            {"premise": "It rains.", "hypothesis": "Wet?", "label": 1},
            ('It rains. Does "Wet?" follow?', "No", ["Yes", "No"]),
        ),
        (  # the choices of the row; a name with a hyphen
            "{{a_b}}, {{answer_choices | join(' or ')}}? ||| {{answer_choices[n | int - 1]}}",
            "'{{ends | join(\"|||\")}}'",
            {"a-b": "He", "ends": [" sat", "ran"], "n": "2"},
            ("He, sat or ran?", "ran", ["sat", "ran"]),
        ),
        (  # a bar in the data does not separate
            "{{a}} ||| {{b}}",
            "null",
            {"a": "x ||| y", "b": "z"},
            ("x ||| y", "z", None),
        ),
        (  # as multi_news, whose templates name what promptsource puts for the bars
            "{{ a.split('3ed2dface8203c4c9dfb1a5dc58e41e0||') | last }} ||| {{b}}",
            "null",
            {"a": "x ||||| y", "b": "z"},
            ("y", "z", None),
        ),
        (
            "{{ [a, a, b] | most_frequent }}{{ ['!'] | choice }} ||| {{ zip(a, b) | list }}",
            "null",
            {"a": "x", "b": "z"},
            ("['x']!", "[('x', 'z')]", None),
        ),
        (  # a long variable is cut, and its choices are not
            "{{a}} ||| {{b}}",
            "null",
            {"a": "x" * 3000, "b": "z"},
            ("x" * 2045 + "...", "z", None),
        ),
        ("{{a}} ||| {% if b %}{{b}}{% endif %}", "null", {"a": "x", "b": ""}, None),
        ("{% if b %}{{a}} ||| {{b}}{% endif %}", "null", {"a": "x", "b": ""}, None),
        ("{{a}} ||| {{a}}", "'{{a}} ||| {{a}}'", {"a": "x"}, None),  # one choice only
    ],
)
def test_templates_are_applied_as_by_promptsource(
    jinja: str, choices: str, record: dict[str, Any], expected: Any, tmp_path: Path
) -> None:
    found = [
        (row["input"], row["output"], row.get("choices"))
        for row in rendered(tmp_path, jinja, record, choices)
    ]
    assert found == ([] if expected is None else [expected])


@pytest.mark.parametrize(
    ("jinja", "message"),
    [
        (
            "{{b}} ||| x",
            "'imdb_one' does not fit .*imdb__default, row 1 of train: 'b' is undefined",
        ),
        (
            "{{[][label]}} ||| x",
            "'imdb_one' does not fit .*, row 1 of train: list object has no element 0",
        ),
        ("{{a ||| x", "'imdb_one': (unexpected|expected) "),
        ("{{a.__class__}} ||| x", "access to attribute '__class__' of 'str' object is unsafe"),
    ],
)
def test_wrong_templates_are_refused(jinja: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=message):
        rendered(tmp_path, jinja, {"a": "x", "label": 0})


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="has no 'templates' with a data set of T0; copy that"):
        t0.tasks(tmp_path)
    file = write(tmp_path, "imdb", RTE) / "templates/imdb/templates.yaml"
    with pytest.raises(UnavailableError, match=r"has no file imdb__default/train.jsonl\[.gz\]"):
        list(t0.tasks(tmp_path)[0].read("train"))
    write_jsonl(tmp_path / "imdb_can_we_infer/train.jsonl", [{"inputs": [3]}])
    with pytest.raises(TaskError, match=r"imdb_can_we_infer, row 1 of train: 'answer_choices' is"):
        list(t0.tasks(tmp_path)[0].read("train"))
    file.write_text("dataset: imdb\n", encoding="utf-8")
    with pytest.raises(TaskError, match=r"imdb/templates.yaml is not promptsource's: KeyError"):
        t0.tasks(tmp_path)


def test_held_out_tasks_use_their_templates_in_turn(tmp_path: Path) -> None:
    """Both for records, where a template that does not apply is left to the next one, and P3."""
    often = (
        "often",
        FIXED,
        '"{% if label %}{{premise}} ||| {{answer_choices[0]}}{% endif %}"',
        "true",
    )
    write(tmp_path, "super_glue/cb", [RTE[0], often, *OPEN])
    (task,) = t0.tasks(tmp_path)
    records = [{"premise": f"p{n}", "hypothesis": "h", "label": int(n < 2)} for n in range(4)]
    write_jsonl(tmp_path / "super_glue__cb/validation.jsonl.gz", records)
    asked = 'p{} Does "h" follow?'
    found = [row["input"] for row in task.read("validation")]
    assert found == [asked.format(0), "p1", asked.format(2), asked.format(3)]

    for template in ("can_we_infer", "often"):
        folder = tmp_path / f"super_glue_cb_{template}"
        folder.mkdir()
        rows = [
            {
                "inputs": [1, 2],
                "inputs_pretokenized": f"{template} {n}",
                "targets_pretokenized": "\nYes",
                "answer_choices": ["Yes", "No"],
            }
            for n in range(3)
        ]
        for place, some in enumerate((rows[:2], rows[2:])):
            path = folder / f"validation-0000{place}-of-00002.parquet"
            pq.write_table(pa.Table.from_pylist(some), path)
    found = list(task.read("validation"))
    assert [row["input"] for row in found] == ["can_we_infer 0", "often 1", "can_we_infer 2"]
    assert found[0]["choices"] == ["Yes", "No"]


def test_rounds_of_anli_are_folders_of_p3_or_splits(tmp_path: Path) -> None:
    task = {one.name: one for one in t0.tasks(write(tmp_path, "anli", RTE[:1]))}["anli_r2"]
    row = {
        "inputs_pretokenized": "a",
        "targets_pretokenized": "Yes",
        "answer_choices": ["Yes", "No"],
    }
    record = {"premise": "p", "hypothesis": "h", "label": 0}
    write_jsonl(tmp_path / "anli__default/test_r2.jsonl", [record])
    assert [one["output"] for one in task.read("test_r2")] == ["Yes"]
    file = write_jsonl(tmp_path / "anli_can_we_infer_r2/test.jsonl", [row])
    assert [one["input"] for one in task.read("test_r2")] == ["a"]
    assert file in next(one for one in t0.tasks(tmp_path) if one.name == "anli_r2").files


def test_rows_for_training_are_drawn_once_and_divided(tmp_path: Path) -> None:
    write(tmp_path, "imdb", OPEN)
    (task,) = t0.tasks(tmp_path)
    records = [{"premise": str(n), "hypothesis": str(n)} for n in range(3000)]
    write_jsonl(tmp_path / "imdb__default/train.jsonl", records)
    found = [[row["output"] for row in task.read(s)] for s in ("train", "dev", "test")]
    assert [len(rows) for rows in found] == [1000, 100, 100]
    drawn = sorted(int(row) for rows in found for row in rows)
    assert len(set(drawn)) == 1200
    # The mean of 1,200 of 3,000 numbers without replacement; its standard error is 19.4.
    assert abs(sum(drawn) / 1200 - 1499.5) < 4 * 19.4
