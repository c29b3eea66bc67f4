import pytest

from helpers.raw import make_task
from mttl.io.errors import TaskError
from mttl.tasks.building.task_table import update_task_table


def test_rows_of_other_tasks_and_further_columns_stay(tmp_path):
    path = tmp_path / "TASKS.csv"
    path.write_text("task,metric,licence\nolder,EM,MIT\ncolours,EM,CC0\n")
    update_task_table(tmp_path, [make_task(description='Say "red", or another.')])
    assert path.read_text().splitlines() == [
        "task,metric,category,description,licence",
        'colours,ACC,classification/other,"Say ""red"", or another.",CC0',
        "older,EM,,,MIT",
    ]


@pytest.mark.parametrize(
    "text", ["name,metric\na,EM\n", "task,metric\na\n", "task,metric\na,EM,x\n"]
)
def test_tables_that_are_none(tmp_path, text):
    (tmp_path / "TASKS.csv").write_text(text)
    with pytest.raises(TaskError, match=r"TASKS\.csv.* (the columns task|header has 2)"):
        update_task_table(tmp_path, [make_task()])
    assert (tmp_path / "TASKS.csv").read_text() == text
