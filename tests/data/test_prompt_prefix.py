"""What stands before the inputs of a task."""

import re

import pytest

from mttl.data import prompt_prefix as module
from mttl.data.prompt_prefix import check_codes, prompt_prefix, task_code
from mttl.io.errors import TaskError


def test_each_choice_shows_what_it_says() -> None:
    assert prompt_prefix("de_date_long", "name") == "[de_date_long] "
    assert prompt_prefix("de_date_long", "none") == ""
    assert prompt_prefix("de_date_long", "code") == "[ojhoss] "
    assert prompt_prefix("de_date_long", "none", " Write the date. ") == "Write the date. "
    assert (
        prompt_prefix("de_date_long", "name", "Write the date.")
        == "[de_date_long] Write the date. "
    )


def test_a_code_tells_nothing_of_the_parts_of_a_name() -> None:
    """Names that share a part share no more letters than any two names."""
    tasks = [f"{language}_{operation}" for language in "abcdefghij" for operation in "qrstuvwxyz"]
    codes = [task_code(task) for task in tasks]
    assert all(re.fullmatch("[a-z]{6}", code) for code in codes)
    same = {True: [], False: []}
    for one, first in zip(tasks, codes, strict=True):
        for other, second in zip(tasks, codes, strict=True):
            if one < other:
                related = one[0] == other[0] or one[2] == other[2]
                same[related] += [a == b for a, b in zip(first, second, strict=True)]
    shares = {related: sum(found) / len(found) for related, found in same.items()}
    assert shares[True] == pytest.approx(1 / 26, abs=0.01)
    assert shares[False] == pytest.approx(1 / 26, abs=0.01)


def test_two_tasks_of_one_code_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "task_code", lambda task: task[0])
    with pytest.raises(TaskError, match="tasks 'aa' and 'ab' have the same code 'a'"):
        check_codes(["aa", "b", "ab"])
    check_codes(["aa", "aa"])  # one task twice is allowed
