import numpy as np
import pytest

from helpers.raw import copying_task, make_task, rows
from mttl.io.errors import TaskError
from mttl.tasks.convert import convert
from mttl.tasks.rows import line_of
from mttl.tasks.sample_files import Lines, update_task_table


@pytest.mark.parametrize(
    "task", [make_task(), copying_task(), make_task("boolq", rows="{text} is not text 0")]
)
def test_lines_are_those_of_all_records(task, tmp_path):
    lines = Lines(task, "train", rows(3000), tmp_path)
    expected = list(convert(task, "train", rows(3000)))
    order = np.array([5, 0, 2990, 17, 17])
    lines.write(tmp_path / "x", order)
    written = [line_of(task.ending, expected[i][0], expected[i][1:]) for i in order]
    assert (tmp_path / "x").read_text() == "".join(written)
    labels = lines.labels.tolist()
    assert len(set(zip(labels, (line[1] for line in expected), strict=False))) == len({*labels})
    assert len(labels) == (len(expected) if task.kind == "classification" else 0)


def test_blanks_around_labels_make_no_classes_of_custom_tasks():
    records = [{"text": "x", "label": label} for label in ("no", " no", "yes", "yes\n")]
    for name, n_labels in (("colours", 2), ("boolq", 4)):
        lines = Lines(make_task(name, output="{label}", labels=()), "train", records)
        assert len({*lines.labels.tolist()}) == n_labels


def test_rows_of_other_tasks_and_further_columns_stay(tmp_path):
    path = tmp_path / "TASKS.csv"
    path.write_text("task,metric,licence\nolder,EM,MIT\ncolours,EM,CC0\n")
    update_task_table(tmp_path, [make_task(description='Say "red", or another.')])
    assert path.read_text().splitlines() == [
        "task,metric,category,description,licence,template",
        'colours,ACC,classification/other,"Say ""red"", or another.",CC0,'
        '"{""input"":""text: {text}"",""output"":""{label|name}"",'
        '""labels"":[""red"",""green"",""blue""]}"',
        "older,EM,,,MIT,",
    ]
    path.write_text("task,metric\na\n")
    with pytest.raises(TaskError, match=r"TASKS\.csv.* header has 2"):
        update_task_table(tmp_path, [make_task()])
    assert path.read_text() == "task,metric\na\n"
