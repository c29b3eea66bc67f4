r"""Other tasks' inputs and answers, filled with a candidate answer, to rank candidates.

The answer is the candidate :math:`y` with the largest

.. math:: \log p(y \mid x) + \sum_j \lambda_j \log p_j(a_j \mid x_j).

The input :math:`x_j` and answer :math:`a_j` of task j are those of its templates, where the column
of the answer is :math:`y`. This is a noisy channel model with a task that reads the response and
the history and answers with the knowledge, and a task that reads the history alone and answers with
the response. Log-probabilities are sums over the tokens of an answer and its end.

References:
    Liu, Yu, Rimell and Blunsom, *Pretraining the Noisy Channel Model for Task-Oriented Dialogue*,
    TACL 2021, arXiv:2103.10518.

    Daheim, Thulke, Dugast and Ney, *Controllable Factuality in Document-Grounded Dialog Systems
    Using a Noisy Channel Model*, Findings of EMNLP 2022, arXiv:2210.17418.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from mttl.data.prompt_form import PromptForm
from mttl.io.errors import TaskError


def asked_about(
    form: PromptForm,
    task: str,
    tasks: Sequence[str],
    records: Sequence[str | Mapping[str, Any]],
    candidates: Sequence[Sequence[str]],
) -> list[tuple[str, str]]:
    """Return a task's input and answer for every candidate of every record, in order.

    ``tasks`` are those that the candidates answer. Raises a `TaskError` if a task has no template,
    or a record lacks a column; a text has no columns.
    """
    found = []
    for number, (own, record, answers) in enumerate(
        zip(tasks, records, candidates, strict=True), 1
    ):
        place, column = f"text {number}", answer_column(form, own)
        columns = {} if isinstance(record, str) else record
        for answer in answers:
            changed = {**columns, column: answer}
            question = form.filled(task, changed, place)
            template = form.task_templates[task]
            right = template.filled(changed, place).get("output")
            if not right:
                raise TaskError(
                    f"{place}: the answer of '{task}', {template.output}, is missing or empty in "
                    "the record"
                )
            found.append((question, right if isinstance(right, str) else right[0]))
    return found


def answer_column(form: PromptForm, task: str) -> str:
    """Return the column that is a task's answer; raises a `TaskError` if it is not a column."""
    template = form.task_templates.get(task)
    output = "" if template is None else template.output
    if column := re.fullmatch(r"\{(\w+)\}", output):
        return column[1]
    raise TaskError(
        f"the answer of '{task}' must be a column of its records, such as '{{response}}', to rank "
        f"candidates by other tasks; it is '{output}'"
    )
