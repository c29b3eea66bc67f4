import numpy as np
import pytest

from helpers.raw import copying_task, make_task, rows
from mttl.io.errors import TaskError
from mttl.tasks.convert import convert
from mttl.tasks.folder import Gym
from mttl.tasks.rows import line_of
from mttl.tasks.sample_files import Lines, update_task_table, write_samples
from mttl.tasks.task_file import load_tasks


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


XNLI = (
    *("language", "gold_label", "sentence1_binary_parse", "sentence2_binary_parse"),
    *("sentence1_parse", "sentence2_parse", "sentence1", "sentence2", "promptID", "pairID"),
    *("genre", "label1", "label2", "label3", "label4", "label5", "sentence1_tokenized"),
    *("sentence2_tokenized", "match"),
)
AMERICAS_NLI = ("language", "premise", "hypothesis", "label")
NLI_TASKS = """
kind: label
k: 3
options: [entailment, neutral, contradiction]
tasks:
  xnli:
    source: {train: xnli.dev.tsv, test: xnli.test.tsv, format: xnli}
    rows: "{language} is en"
  americas:
    source: {train: dev.tsv, test: test.tsv, format: xnli}
    rows: "{language} is quy"
  translated:
    source: {train: multinli.train.en.tsv, test: xnli.test.tsv, format: xnli}
    rows: "{language} is en"
"""


def test_rows_of_one_language_of_xnli_and_americasnli(tmp_path):
    """Files in the published layouts: unquoted cells with quotation marks, and empty parses."""
    labels = ("entailment", "neutral", "contradiction")
    for columns, files in ((XNLI, ("xnli.dev", "xnli.test")), (AMERICAS_NLI, ("dev", "test"))):
        for name in files:
            lines = ["\t".join(columns)]
            for language in ("de", "en", "quy"):
                for n in range(6):
                    first, second = f'"He said {n}', f'in {language}".'
                    row = dict.fromkeys(columns, "") | {"language": language, "match": "True"}
                    row |= {"sentence1": first, "sentence2": second, "gold_label": labels[n % 3]}
                    row |= {"premise": first, "hypothesis": second, "label": labels[n % 3]}
                    lines.append("\t".join(row[column] for column in columns))
            (tmp_path / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    pairs = "".join(
        f'"He said {n}\tin en".\t{(*labels[:2], "contradictory")[n % 3]}\n' for n in range(6)
    )
    (tmp_path / "multinli.train.en.tsv").write_text(f"premise\thypo\tlabel\n{pairs}")
    (tmp_path / "tasks.yaml").write_text(NLI_TASKS)
    tasks = load_tasks(tmp_path / "tasks.yaml")
    for name, task in tasks.items():
        (tmp_path / "gym" / name).mkdir(parents=True)
        write_samples(task, tmp_path / "gym" / name, [100])
    update_task_table(tmp_path / "gym", tasks.values())
    gym = Gym(tmp_path / "gym")
    for name, language in (("xnli", "en"), ("americas", "quy"), ("translated", "en")):
        form = gym.head(name)
        assert form is not None
        assert (form.kind, form.labels) == ("label", [*labels])
        expected = {(f'"He said {n} [SEP] in {language}".', (labels[n % 3],)) for n in range(6)}
        found = [gym.rows(name, split, 100) for split in ("train", "dev", "test")]
        assert {(row.input, row.outputs) for row in [*found[0], *found[1]]} == expected
        assert {(row.input, row.outputs) for row in found[2]} == expected
