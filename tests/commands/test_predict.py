"""The command that answers tables of questions."""

import csv
import io
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import mttl
from helpers.gyms import TASKS, make_run, write_gym
from helpers.new_tasks import train_source
from mttl.commands import predict
from mttl.inference.input_table import format_header, format_rows, parse_rows_of
from mttl.inference.predictor import Predictor

WORDS = ["ab", "c", "abca", "bb", "ca", "a"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_source(tmp_path_factory.mktemp("predict"))


@pytest.fixture(scope="module")
def kept(run: Path) -> Path:
    pairs = [(word, "b") for word in WORDS]
    adapted = mttl.adapt_to(run, pairs, task="new", mode="router_only", max_steps=1)
    adapted.save(run / "models" / "new")
    return run / "models" / "new"


def jsonl(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_pipe_is_answered(run, monkeypatch, capsys) -> None:
    text = "id\tinput\toutput\n" + "".join(f"{n}\t{w}\t{w}\n" for n, w in enumerate(WORDS))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))
    capsys.readouterr()
    assert predict.main(["--from", str(run), "--task", "reverse"]) == 0
    told = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(told.out), delimiter="\t"))
    assert [row["input"] for row in rows] == WORDS
    assert [row["id"] for row in rows] == [str(n) for n in range(len(WORDS))]
    assert [row["prediction"] for row in rows] == mttl.load(run).predict("reverse", WORDS)
    assert "ACC" in told.err  # the metric of the run's own results


def test_a_metric_reads_the_knowledge_in_the_table(run, tmp_path, capsys) -> None:
    texts = ["ab or c", "AB, c.", "c ab", "?", "a b", ""]
    rows = [{"input": w, "output": "-", "knowledge": k} for w, k in zip(WORDS, texts, strict=True)]
    table = str(jsonl(tmp_path / "q.jsonl", rows))
    given = ["--from", str(run), "--task", "reverse", "--in", table, "--choices", "ab", "c"]
    assert predict.main([*given, "--metric", "coverage"]) == 0
    assert "50.0" in capsys.readouterr().err


def test_tasks_of_the_run_and_adapted_ones_stand_side_by_side(run, kept, tmp_path) -> None:
    names = ["new", "copy", "reverse", "new", "copy", "new"]
    questions = jsonl(
        tmp_path / "q.jsonl",
        [{"task": t, "input": w, "output": [w]} for t, w in zip(names, WORDS, strict=True)],
    )
    out = tmp_path / "a.jsonl"
    given = ["--from", str(run), "--adapted", str(kept), "--in", str(questions)]
    assert predict.main([*given, "--out", str(out), "--batch-size", "2"]) == 0
    own, new = mttl.load(run), mttl.load(kept)
    for row, name, word in zip(lines(out), names, WORDS, strict=True):
        (answer,) = (new if name == "new" else own).predict(name, [word])
        assert row == {"task": name, "input": word, "output": [word], "prediction": answer}
    # An adapted task alone needs neither the run nor its name.
    words = jsonl(tmp_path / "words.jsonl", [{"input": word} for word in WORDS])
    assert predict.main(["--adapted", str(kept), "--in", str(words), "--out", f"{out}.jsonl"]) == 0
    found = [row["prediction"] for row in lines(Path(f"{out}.jsonl"))]
    assert found == new.predict("new", WORDS)


def test_labels_are_chosen(run, tmp_path, capsys) -> None:
    rows: list[dict] = [{"input": word, "output": "yes"} for word in WORDS]
    rows[1]["choices"] = ["a", "b", "c"]
    questions, out = jsonl(tmp_path / "q.jsonl", rows), tmp_path / "a.jsonl"
    given = ["--from", str(run), "--task", "copy", "--in", str(questions), "--out", str(out)]
    assert predict.main([*given, "--choices", "yes", "no", "--per-token"]) == 0
    found = lines(out)
    expected = mttl.load(run).choose("copy", WORDS, ["yes", "no"], per_token=True)
    for number, (row, choice) in enumerate(zip(found, expected, strict=True)):
        assert sum(row["probabilities"].values()) == pytest.approx(1, abs=1e-4)
        if number == 1:
            assert list(row["probabilities"]) == ["a", "b", "c"]
            continue
        assert row["prediction"] == choice.answer
        assert row["probabilities"] == pytest.approx(dict(choice.probabilities), abs=1e-4)
    told = capsys.readouterr().err
    assert ": rows are references, columns are answers" in told


@pytest.mark.every(2)
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_an_interrupted_command_continues(run, tmp_path, monkeypatch, refused, kind) -> None:
    """Eight batches are answered together; what is missing is answered with equal draws."""
    words = WORDS * 4
    questions, out, whole = (tmp_path / f"{name}.{kind}" for name in ("q", "a", "whole"))
    rows = [{"input": f"{word}\nx" if kind == "csv" else word} for word in words]
    questions.write_text(format_header(["input"], kind) + format_rows(rows, ["input"], kind))
    given = ["--from", str(run), "--task", "copy", "--in", str(questions), "--batch-size", "1"]
    given += ["--temperature", "2", "--seed"]
    assert predict.main([*given, "3", "--out", str(whole)]) == 0
    asked: list[int] = []
    real = Predictor.predict

    def counted(self: Predictor, tasks: list, texts: list, **more: object) -> list[str]:
        if sum(asked) == 16:
            asked.clear()
            raise KeyboardInterrupt
        asked.append(len(texts))
        return real(self, tasks, texts, **more)

    monkeypatch.setattr(Predictor, "predict", counted)
    with pytest.raises(KeyboardInterrupt):
        predict.main([*given, "3", "--out", str(out)])
    assert not out.exists()
    told = refused(predict.main, *given, "4", "--out", str(out))
    assert "has partial results of other inputs or settings: seed (3 before, 4 now)" in told
    assert predict.main([*given, "3", "--out", str(out)]) == 0
    assert out.read_bytes() == whole.read_bytes()
    assert asked == [8]
    assert not (tmp_path / f".{out.name}.part").exists()


@pytest.mark.parametrize("kind", ["tsv", "jsonl"])
def test_rows_without_a_question_are_counted(run, tmp_path, capsys, kind) -> None:
    """They have no answer and a reason; blank lines are not rows."""
    mark = {"csv": ",", "tsv": "\t"}.get(kind)
    rows = [("copy", "ab", "ab"), ("", "", "x"), ("copy", " ", ""), ("copy", "b", "b")]
    names = ("task", "input", "output")
    made = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
    text = "\n \n".join(made if mark is None else [mark.join(row) for row in (names, *rows)])
    questions, out = tmp_path / f"q.{kind}", tmp_path / f"a.{kind}"
    questions.write_text(text + "\n\n")
    given = ["--from", str(run), "--in", str(questions), "--out", str(out), "--batch-size", "1"]
    assert predict.main(given) == 0
    told = " ".join(capsys.readouterr().err.split())
    assert "2 of 4 rows have no answer because their inputs are empty" in told
    found = parse_rows_of(out.read_text(), kind, "out")
    answers = mttl.load(run).predict("copy", ["ab", "b"])
    none = None if mark is None else ""
    assert [row["prediction"] for row in found] == [answers[0], none, none, answers[1]]
    reason = "the input is empty"
    assert [row.get("unanswered") or "" for row in found] == ["", reason, reason, ""]


def test_the_two_files_have_one_format(run, tmp_path, refused) -> None:
    questions = tmp_path / "q.csv"
    questions.write_text("input,choices\na,a|b\n")
    given = ["--from", str(run), "--task", "copy", "--in", str(questions), "--out"]
    assert "have different formats" in refused(predict.main, *given, str(tmp_path / "a.jsonl"))
    assert "already exists" in refused(predict.main, *given, str(questions))
    out = tmp_path / "a.csv"
    assert predict.main([*given, str(out), "--per-token"]) == 0  # the row has choices
    assert out.read_text().startswith("input,choices,prediction,probabilities\n")


def test_models_have_to_be_named_and_whole(run, kept, tmp_path, refused) -> None:
    rows = [{"input": "a", "task": "copy", "output": "a"}]
    asked = (predict.main, "--in", jsonl(tmp_path / "q.jsonl", rows))
    assert "': 'new' is loaded twice; remove one. To combine both, rename" in refused(
        *asked, "--adapted", kept, kept
    )
    results = Path(shutil.copytree(run, tmp_path / "run")) / "results.csv"
    results.write_text(results.read_text().replace(",EM,", ",eM,"))
    told = refused(*asked, "--from", tmp_path / "run")
    assert f"'{results}': the metric of 'copy' ('eM') must be one of exact" in told


COPY = ["--task", "copy"]
LONG = [*COPY, "--choices", "a" * 99 + "b", "a" * 99 + "c"]


@pytest.mark.parametrize(
    ("row", "more", "message"),
    [
        ({"input": "a"}, [], "the task is missing; add a column 'task' or --task NAME"),
        ({"input": "a"}, [*COPY, "--metric", "em"], "--metric ('em') must be one of"),
        ({"input": "a"}, [*COPY, "--metric", "critic model=x"], "'critic model=... label=...'"),
        ({"input": "a"}, ["--beams", "2", "--temperature", "1"], "remove one"),
        ({"word": "a", "task": "kopy"}, [], "row 1: unknown task 'kopy'. Did you mean 'copy'"),
        ({"word": "a"}, [], "row 1: the task is missing; add a column 'task' or --task NAME"),
        ({"input": "a"}, ["--candidates", "2", "--rerank", "a=1,b=2"], "(separated by blanks)"),
        ({"input": "a"}, [*COPY, "--per-token"], "give --choices or a column 'choices'"),
        ({"input": "a"}, LONG, "row 1: choices are identical after truncation to the maximum"),
        ({"input": "a"}, [*LONG, "--beams", "2"], "every row has choices, so nothing is"),
    ],
)
def test_mistakes_are_answered_before_anything_is_written(
    run, tmp_path, refused, row, more, message
) -> None:
    questions, out = jsonl(tmp_path / "q.jsonl", [row]), tmp_path / "a.jsonl"
    given = ["--from", str(run), "--in", str(questions), "--out", str(out), *more]
    assert message in refused(predict.main, *given)
    assert not out.exists()


def test_sums_of_logits_answer_for_two_runs(run, kept, tmp_path, refused) -> None:
    other = make_run(tmp_path, gym=write_gym(tmp_path / "gym", {"copied": TASKS["copy"]}))
    name = "logits:copy=1,copied=-3,new=0.5"
    rows = [{"task": name, "input": word, "output": word} for word in WORDS[:4]]
    rows += [{"task": task, "input": "ab"} for task in ("mix:copy=1,reverse=1", "copied")]
    questions, out = jsonl(tmp_path / "q.jsonl", rows), tmp_path / "a.jsonl"
    given = ["--from", str(run), "--adapted", str(kept), str(other), "--in", str(questions)]
    assert predict.main([*given, "--out", str(out)]) == 0
    own, new, copied = mttl.load(run), mttl.load(kept), mttl.load(other)
    due = own.with_logits((copied, "copied", -3.0), (new, "new", 0.5)).predict("copy", WORDS[:4])
    due += own.predict({"copy": 1, "reverse": 1}, ["ab"]) + copied.predict("copied", ["ab"])
    assert [row["prediction"] for row in lines(out)] == due
    asked = ["--from", str(run), "--in", str(questions)]
    assert "'copied'" in refused(predict.main, *asked)
    again = ["--from", str(run), "--adapted", str(run), "--in", str(questions)]
    assert "'copy' is loaded twice" in refused(predict.main, *again)


def test_candidates_are_ranked(run, tmp_path, refused) -> None:
    questions = jsonl(tmp_path / "q.jsonl", [{"input": word} for word in WORDS])
    out = tmp_path / "a.jsonl"
    given = ["--from", str(run), "--task", "copy", "--in", str(questions), "--out", str(out)]
    assert predict.main([*given, "--candidates", "3"]) == 0
    due = mttl.load(run).predict("copy", WORDS, candidates=3)
    assert [row["prediction"] for row in lines(out)] == due
    given = [*given[:-1], f"{out}l", "--rerank", "reverse=1"]
    assert "needs --candidates of at least 2" in refused(predict.main, *given)
