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
    source = Source("hub/mine", "train", holdout=Holdout())
    assert parse_tasks(ONE.replace("mine:", "123:"), "f")["123"] == Task(
        *("123", source, 16, "classification", "{text}", "{label|name}", "ACC", "other/other", ""),
        labels=("bad", "good"),
    )


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
    source = "{train: data/a.tsv, dev: b.csv, test: /data/b.jsonl.gz, columns: [text, label]}"
    path.write_text(ONE.replace("{path: hub/mine}", f"{source}\n    k: all\n    side: test"))
    task = load_tasks(path)["mine"]
    assert (task.k, task.side, task.source.path, task.source.holdout) == (None, "test", None, None)
    files = [str(tmp_path / "data/a.tsv"), str(tmp_path / "b.csv"), "/data/b.jsonl.gz"]
    assert task.source.splits == files
    assert task.source.columns == ("text", "label")


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
        ("input:", "inptu:", "unknown key 'inptu'. Did you mean 'input'"),
        ("path:", "pth:", "source: needs a data set on the hub (path) or a file (train)"),
        ("hub/mine", "hub, holdout: {pol: 1}",
         "unknown key 'source.holdout.pol'. Did you mean 'pool'?"),
        ("    metric: ACC\n", "    options: [a, a]\n", "options: must be a list of at least two"),
        ("    metric: ACC\n", "    options: from dev\n", "two different answers, or 'from train'"),
        ("    metric: ACC\n", "    options: [true, false]\n", "quote true, false and null"),
        ("    metric: ACC\n", "    options: from rows\n", "'from rows' needs 'choices' in"),
        ("metric: ACC", "metric: acc",
         'metric: "acc" must be one of exact, accuracy, json, regex, f1, rouge, ACC'),
        ("classification", "classify",
         'kind: "classify" must be one of classification, text-to-text, dialogue'),
        (ONE, "tasks: {a: {kind: dialog, source: {path: hub}}}", "Did you mean 'dialogue'?"),
        ("[bad, good]", "[0, 1]",
         "labels.0: 0 must be text (quote it if it looks like a number or a bool"),
        ("[bad, good]", "[bad, bad]", "labels: must not contain a label twice: bad, bad"),
        ("metric: ACC", "metric: ACC\n    k: many",
         'k: "many" must be a whole number of at least 1, or \'all\''),
        ("metric: ACC", "metric: ACC\n    k: 0", "k: 0 must be a whole number of at least 1"),
        ("metric: ACC", "metric: ACC\n    k: all",
         "k: 'all' leaves no line of train for dev; name another file or"),
        ("{path: hub/mine}", "{train: a.csv, dev: b}",
         "source.dev: 'b' must be a file (.tsv, .csv, .jsonl, .tsv.gz, .csv.gz,"),
        ("{path: hub/mine}", "{train: a.json}",
         "set. For published dialogues, set 'format' in source: wizard, faithdial, dstc"),
        ("metric: ACC\n", "metric: ACC\n    category: one\n", "category: 'one' must have the form"),
        ("metric: ACC", "metric: ACC\n    cleaning: clear",
         'cleaning: "clear" must be one of strip, lf, lf_n, breaks, clean, squee'),
        ("metric: ACC", "metric: ACC\n    rows: x is 1", "f, task 'mine': the condition 'x is 1'"),
        ("metric: ACC", "metric: ACC\n    references: distinct", "distinct' and the filter 'set'"),
        ("{text}", "{text|stirp}", "the template '{text|stirp}' has an unknown filter"),
        ("    labels: [bad, good]\n", "", "', but the task has no labels"),
        ("mine:\n", "my/task:\n", "task 'my/task': a name must consist of letters"),
        ("hub/mine", "hub, test: b, holdout: {}", "'holdout' and 'test' cannot be combined"),
        ("hub/mine", "hub, holdout: {pool: 1.5}",
         "source.holdout.pool: 1.5 must be a number of lines, or a fraction from"),
        ("hub/mine", "hub, test_share: 0.5",
         "source.test_share: needs 'test', which is missing"),
        ("tasks:\n", "task:\n", "f: the key 'tasks' with the tasks by name is missing"),
        ("{path", "{path: [", "f: line"),
        (ONE, "tasks: {a: 3}", "f, task 'a': 3 must be a mapping"),
    ],
)  # fmt: skip
def test_mistakes_are_explained(old, new, message):
    assert old in ONE
    with pytest.raises(TaskError, match=re.escape(message)) as caught:
        parse_tasks(ONE.replace(old, new), "f")
    assert "; the key" not in str(caught.value)  # one mistake, one message


@pytest.mark.parametrize("page", ["../README", "howto/use_your_data", "reference/task_files"])
def test_task_files_in_the_documents_load(page, tmp_path):
    text = (Path(__file__).parents[2] / f"docs/{page}.md").read_text(encoding="utf-8")
    files = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert files
    for number, file in enumerate(files):
        path = tmp_path / f"{number}.yaml"
        path.write_text(file)
        assert load_tasks(path)


def test_the_example_of_the_documents(tmp_path):
    """The five tasks of docs/reference/task_files.md load, and write the lines that it shows."""
    text = (Path(__file__).parents[2] / "docs/reference/task_files.md").read_text(encoding="utf-8")
    example = re.search(r"```yaml\n# my_tasks\.yaml\n(.*?)```", text, re.DOTALL)
    assert example is not None
    path = tmp_path / "my_tasks.yaml"
    path.write_text(example[1])
    tasks = load_tasks(path)
    assert len(tasks) == 5
    record = {"text": "The parcel came\nlate.", "label": "1", "topic": "delivery"}
    line = list(convert(tasks["complaint"], "train", [record]))
    assert line == [("message: The parcel came late.", "complaint")]
