"""Bins of training answers' scores, and codes as text."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.raw import write_jsonl
from mttl.io.errors import TaskError
from mttl.tasks.bins import bin_edges, codes_of
from mttl.tasks.control import code_text
from mttl.tasks.folder import Gym
from mttl.tasks.sample_files import update_task_table, write_samples
from mttl.tasks.task_file import load_tasks

EDGES = {"coverage": [0.5], "lcs": [0.2, 0.4]}


@pytest.mark.parametrize(("n", "n_bins"), [(7, 2), (10, 3), (12, 4), (5, 5), (2, 2)])
def test_bins_have_equal_sizes(n: int, n_bins: int) -> None:
    scores = np.random.default_rng(n).permutation(np.linspace(0, 1, n))
    found = codes_of(scores, bin_edges(scores, n_bins)).tolist()
    # A plain loop over the sorted scores; sizes differ by at most one.
    order = sorted(range(n), key=lambda place: scores[place])
    sizes = [found.count(code) for code in range(1, n_bins + 1)]
    assert sum(sizes) == n
    assert max(sizes) - min(sizes) <= 1
    assert [found[place] for place in order] == sorted(found)


@pytest.mark.parametrize(
    ("scores", "n_bins", "codes"),
    [
        ([0, 0, 0, 1], 2, [1, 1, 1, 2]),  # equal scores share a bin, and no bin is empty
        ([0, 1, 1, 1], 2, [1, 2, 2, 2]),
        ([0, 0.5, 0.5, 1], 2, [1, 2, 2, 2]),  # both edges are equally good: the lower one
        ([0, 1, 0, 1], 3, [1, 2, 1, 2]),
        ([0.3, 0.3], 2, [1, 1]),
    ],
)
def test_equal_scores_share_a_bin(scores: list[float], n_bins: int, codes: list[int]) -> None:
    given = np.array(scores, float)
    assert codes_of(given, bin_edges(given, n_bins)).tolist() == codes


def test_codes_as_text() -> None:
    assert code_text(EDGES) == code_text(EDGES, {}) == "[coverage 2] [lcs 3] "
    assert code_text(EDGES, {"lcs": 1}) == code_text(EDGES, '{"lcs": 1}') == "[coverage 2] [lcs 1] "
    wrong: list[Any] = [{"lcs": 0}, {"lcs": 4}, {"lcs": True}, {"lcs": "1"}, {"f1": 1}, "[1]", 3]
    for given in wrong:
        with pytest.raises(TaskError, match=r"may have coverage from 1 to 2 and lcs from 1 to 3: "):
            code_text(EDGES, given)
    with pytest.raises(TaskError, match=r"may have nothing: the task has no codes; remove it"):
        code_text({}, {"lcs": 1})
    with pytest.raises(TaskError, match="control, line 1, column 1: not valid JSON"):
        code_text(EDGES, "lcs 1")


TASK = """
kind: text-to-text
input: "{question}"
output: "{answer}"
columns: [knowledge]
k: 4
tasks:
  guide: {source: {train: talk.jsonl}, control: CONTROL}
"""


WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight"]


def build(folder: Path, control: str) -> Gym:
    rows = [
        {"question": f"Q{n}?", "knowledge": " ".join(WORDS), "answer": " ".join(WORDS[:n])}
        for n in range(1, 9)
    ]
    write_jsonl(folder / "talk.jsonl", rows * 3)
    (folder / "tasks.yaml").write_text(TASK.replace("CONTROL", control))
    (task,) = load_tasks(folder / "tasks.yaml").values()
    (folder / "gym" / "guide").mkdir(parents=True)
    sums = write_samples(task, folder / "gym" / "guide", [13, 42])
    update_task_table(folder / "gym", [task])
    files = (folder / "gym" / "guide").glob("*.jsonl")
    assert sums == {path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in files}
    return Gym(folder / "gym")


def test_training_rows_have_the_codes_of_their_answers(tmp_path: Path) -> None:
    gym = build(tmp_path, "{knowledge_f1: 3}")
    template = gym.template("guide")
    assert template is not None
    (edges,) = template.control.values()
    counts = [0, 0, 0]
    for sample in (13, 42):  # with the same edges
        for row in gym.rows("guide", "train", sample):
            n = len(row.outputs[0].split())
            score = 2 * n / (n + len(WORDS))  # all n words are among those of the knowledge
            code = 1 + sum(score >= edge - 1e-9 for edge in edges)  # rounding of the formula
            assert row.columns["control"] == {"knowledge_f1": code}
            counts[code - 1] += 1
        for split in ("dev", "test"):
            assert all("control" not in row.columns for row in gym.rows("guide", split, sample))
    assert min(counts) > 0


@pytest.mark.parametrize(
    ("control", "problem"),
    [
        ("{coverage: 2}", "fill only 1 of 2 bins; lower their number, or"),
        ("{knowledge_f1: 20}", "of 20 bins; lower their number"),
        ("{rouge: 2}", "'rouge' fill only 1 of 2 bins; .* instead of references"),
        ("{knowledge_f1: 1}", "control.knowledge_f1: 1 must be greater than or equal to 2"),
        ("{knowledge_f1: 2, 'knowledge_f1 ': 2}", "must not contain a metric twi"),
    ],
)
def test_wrong_controls(tmp_path: Path, control: str, problem: str) -> None:
    with pytest.raises(TaskError, match=problem):
        build(tmp_path, control)
