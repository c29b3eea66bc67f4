import re
from pathlib import Path

import pytest

from mttl.io.errors import TaskError
from mttl.tasks.convert import convert
from mttl.tasks.task import Holdout, Source, Task
from mttl.tasks.task_file import load_tasks, parse_tasks

ONE = """
kind: classification
tasks:
  mine:
    source: {path: hub/mine}
    input: "{text}"
    output: "{label|name}"
    labels: [bad, good]
    metric: ACC
"""


def test_defaults():
    assert parse_tasks(ONE, "f")["mine"] == Task(
        name="mine",
        source=Source("hub/mine", "train", holdout=Holdout()),
        k=16,
        kind="classification",
        input="{text}",
        output="{label|name}",
        labels=("bad", "good"),
        metric="ACC",
        category="other/other",
        description="",
    )


def test_a_task_may_be_called_a_number():
    assert list(parse_tasks(ONE.replace("mine:", "123:"), "f")) == ["123"]


def test_every_key():
    text = """
    source: {path: hub, revision: v1, test: valid, mirrors: [other]}
    kind: text-to-text
    metric: EM
    tasks:
      a:
        source: {config: c, train: t, test_share: 0.5, unavailable: gone}
        k: 4
        rows: "{x} is yes"
        cleaning: clean
        prepare: named_mask
        input: "{x}"
        output: "{y|set}"
        references: distinct
        category: one/two
        description: What is asked.
      b: {input: "{x}", output: "{y}", metric: ACC, source: {test: other, revision: v2}}
    """
    a, b = parse_tasks(text, "f").values()
    source = Source("hub", "t", "c", "v1", "valid", None, 0.5, (), ("other",), "gone")
    assert a == Task(
        *("a", source, 4, "text-to-text", "{x}", "{y|set}", "EM", "one/two", "What is asked."),
        references="distinct",
        rows="{x} is yes",
        cleaning="clean",
        prepare="named_mask",
    )
    assert (b.k, b.metric, b.references) == (32, "ACC", "one")
    assert b.source == Source("hub", "train", revision="v2", test="other", mirrors=("other",))


def test_files_lie_beside_the_table(tmp_path):
    path = tmp_path / "mine.yaml"
    source = "{train: data/a.tsv, test: /data/b.jsonl.gz, columns: [text, label]}"
    path.write_text(ONE.replace("{path: hub/mine}", source))
    found = load_tasks(path)["mine"].source
    assert found.path is None
    assert (found.train, found.test) == (str(tmp_path / "data/a.tsv"), "/data/b.jsonl.gz")
    assert found.columns == ("text", "label")
    assert found.holdout is None


@pytest.mark.parametrize(
    ("holdout", "expected"),
    [
        ("{pool: 0.5}", Holdout(0.5)),
        ("{pool: 100, test_start: 0.9, test_end: 1000}", Holdout(100, 0.9, 1000)),
        ("{}", Holdout()),
    ],
)
def test_holdout(holdout, expected):
    text = ONE.replace("hub/mine", f"hub/mine, holdout: {holdout}")
    assert parse_tasks(text, "f")["mine"].source.holdout == expected


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("input:", "inptu:", "f, task 'mine': unknown key 'inptu'. Did you mean 'input'"),
        ("kind: cl", "kinds: cl", "f: unknown key 'kinds'. Did you mean 'kind'"),
        ("path:", "pth:", "f, task 'mine', source: unknown key 'pth'. Did you mean 'path'"),
        ("    metric: ACC\n", "", "f, task 'mine': the key 'metric' is missing"),
        ("metric: ACC", "metric: acc", "metric is 'acc'; it must be one of ACC, EM"),
        ("classification", "classify", "kind is 'classify'; it must be one of classification, "
         "text-to-text. Did you mean 'classification'"),
        ('"{text}"', "3", "input is 3; it must be a text (put numbers, true and false in quotes)"),
        ("[bad, good]", "[0, 1]", "labels is [0, 1]; it must be a list of texts (put numbers"),
        ("[bad, good]", "bad", "labels is 'bad'; it must be a list of texts"),
        ("[bad, good]", "[bad, bad]", "labels names a label twice: bad, bad"),
        ("{path: hub/mine}", "hub/mine", "source is 'hub/mine'; it must be a mapping"),
        ("metric: ACC", "metric: ACC\n    k: many", "k is 'many'; it must be a whole number from 1 "
         "on, or 'all'"),
        ("metric: ACC", "metric: ACC\n    k: 1.5", "k is 1.5; it must be a whole number"),
        ("metric: ACC", "metric: ACC\n    k: all", "k is 'all', and no line of train would be"),
        ("metric: ACC", "metric: ACC\n    side: dve", "side is 'dve'; it must be one of train"),
        ("{path: hub/mine}", "{train: a.csv, dev: b}", "dev is 'b'; without 'path' it must be"),
        ("metric: ACC", "metric: ACC\n    category: one", "category is 'one'; it must read"),
        ("metric: ACC", "metric: ACC\n    rows: x is 1", "f, task 'mine': the condition 'x is 1'"),
        ("metric: ACC", "metric: ACC\n    references: distinct", "goes with the filter 'set'"),
        ("{text}", "{text|stirp}", "f, task 'mine': the template '{text|stirp}' names the filter"),
        ("    labels: [bad, good]\n", "", "needs the task to have labels"),
        ("mine:\n", "my/task:\n", "task 'my/task': a name must be letters"),
        ("hub/mine", "hub, test: b, holdout: {}", "'holdout' cuts train where there is no 'test'"),
        ("hub/mine", "hub, holdout: {pool: 1.5}", "holdout: pool is 1.5; it must be a number of l"),
        ("hub/mine", "hub, test_share: 0.5", "test_share is 0.5; it must be a share of 'test'"),
        ("{path: hub/mine}", "{test: a.tsv}", "name a data set of the hub (path), or a file"),
        ("{path: hub/mine}", "{train: a.txt}", "train is 'a.txt'; without 'path' it must be a f"),
        ("{path: hub/mine}", "{train: a.csv, test: b}", "test is 'b'; without 'path' it must be"),
        ("tasks:\n", "task:\n", "f: there must be a key 'tasks' with the tasks by name"),
        ("    labels", "    input: x\n    labels", 'found duplicate key "input"'),
        ("{path", "{path: [", "f: line"),
    ],
)  # fmt: skip
def test_mistakes_are_explained(old, new, message):
    assert old in ONE
    with pytest.raises(TaskError, match=re.escape(message)):
        parse_tasks(ONE.replace(old, new), "f")


def test_files_that_are_split_already(tmp_path):
    path = tmp_path / "mine.yaml"
    source = "{train: a.jsonl, dev: b.csv, test: c.tsv}"
    path.write_text(ONE.replace("{path: hub/mine}", f"{source}\n    k: all\n    side: test"))
    task = load_tasks(path)["mine"]
    assert (task.k, task.side) == (None, "test")
    assert task.source.splits == [str(tmp_path / name) for name in ("a.jsonl", "b.csv", "c.tsv")]


def test_a_task_must_be_a_mapping():
    with pytest.raises(TaskError, match="f, task 'a' is 3; it must be a mapping"):
        parse_tasks("tasks: {a: 3}", "f")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(TaskError, match=r"'.*absent\.yaml' does not exist"):
        load_tasks(tmp_path / "absent.yaml")
    (tmp_path / "latin.yaml").write_bytes("é".encode("latin-1"))
    with pytest.raises(TaskError, match=r"'.*latin\.yaml' must be UTF-8 text"):
        load_tasks(tmp_path / "latin.yaml")


def test_the_example_of_the_documents(tmp_path):
    """The five tasks of docs/tasks.md load, and write the lines that it shows."""
    text = (Path(__file__).parents[2] / "docs/tasks.md").read_text(encoding="utf-8")
    example = re.search(r"```yaml\n# my_tasks\.yaml\n(.*?)```", text, re.DOTALL)
    assert example is not None
    path = tmp_path / "my_tasks.yaml"
    path.write_text(example[1])
    tasks = load_tasks(path)
    assert len(tasks) == 5
    record = {"text": "The parcel came\nlate.", "label": "1", "topic": "delivery"}
    line = list(convert(tasks["complaint"], "train", [record]))
    assert line == [("message: The parcel came late.", "complaint")]
