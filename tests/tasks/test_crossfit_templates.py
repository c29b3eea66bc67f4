"""Every template of the table against the fact table's, on made-up records of its schema."""

import pytest

from helpers.fact_templates import facts, filled, records_for
from mttl.tasks.convert import convert
from mttl.tasks.table import crossfit

# What the fact table words instead of giving a template; test_functions.py has them by hand.
WORDED = {name for name, task in crossfit().items() if task.prepare is not None} - {"duorc"}
WORDED |= {"limit", "proto_qa"}
# Rows that are not kept would give no line.
KEPT = {
    "circa": {"goldstandard2": 3},
    "duorc": {"no_answer": False},
    "health_fact": {"label": 2},
    "hate_speech18": {"label": 1},
}


@pytest.mark.parametrize("name", sorted(set(crossfit()) - WORDED))
def test_lines_are_those_of_the_facts(name):
    row = next(row for row in facts("crossfit_tasks.csv") if row["task"] == name)
    records = [{**record, **KEPT.get(name, {})} for record in records_for(row)]
    if name == "tweet_eval-emotion":  # its published files left these characters in place
        records = [{**r, "text": r["text"].replace("\\n", " ")} for r in records]
    lines = ["\t".join(line) for line in convert(crossfit()[name], "train", records)]
    assert lines == [filled(row, record) for record in records]
    assert len(set(lines)) == 2


def test_worded_tasks_are_those_that_the_facts_word():
    worded = {
        row["task"]
        for row in facts("crossfit_tasks.csv")
        if "custom:" in row["input_format"] + row["output_format"]
    }
    assert worded == WORDED
