"""Tasks with heads: from files of words to predictions and new tasks."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import torch
import yaml
from huggingface_hub import InferenceClient

import mttl
from helpers.cards import run_card
from helpers.command import read_csv
from helpers.headed import write_headed
from helpers.serving import serving
from mttl.commands import adapt, compare, export, merge_task, plan, predict, train
from mttl.io.errors import TaskError

SHORT = ("trainer.max_steps=8", "trainer.accelerator=cpu", "optim.lr=0.01", "data.prefix=none")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_headed(tmp_path_factory.mktemp("heads"))


def settings(folder: Path, *more: str) -> list[str]:
    return [
        "-k",
        f"data.tasks={folder / 'tasks.yaml'}",
        f"run.dir={folder / 'runs'}",
        *SHORT,
        *more,
    ]


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    files = f"custom.yaml+{folder / 'encoder.yaml'}"
    assert train.main(["-c", files, *settings(folder, "run.name=encoder", "heads.dense=true")]) == 0
    return folder / "runs" / "encoder"


@pytest.fixture(scope="module")
def decoder(folder: Path) -> Path:
    files = f"custom.yaml+{folder / 'decoder.yaml'}"
    assert train.main(["-c", files, *settings(folder, "run.name=decoder")]) == 0
    return folder / "runs" / "decoder"


def test_a_loaded_run_answers_as_in_training(run: Path) -> None:
    """One batch mixes tags, trees, labels of pairs, and numbers."""
    built, texts, tasks, expected = mttl.load(run), [], [], []
    for task in built.tasks:
        for line in (run / "predictions" / f"{task}_test.jsonl").read_text().splitlines():
            row = json.loads(line)
            texts.append(row["input"])
            expected.append(row["prediction"])
            tasks.append(task)
    assert {*tasks} == {"ner", "trees", "pairs", "scores"}
    answers = built.predict(tasks, texts, batch_size=5)
    for task, text, answer, other in zip(tasks, texts, answers, expected, strict=True):
        if task == "scores":  # padding changes the order of sums
            assert float(answer) == pytest.approx(float(other), rel=1e-4)
        else:
            assert answer == other
            assert len(answer.split()) == (1 if task == "pairs" else len(text.split()))
    with pytest.raises(TaskError, match="no task 'gone'"):
        built.predict("gone", ["Bo"])


def test_a_decoder_has_heads_too(decoder: Path) -> None:
    assert mttl.load(decoder).predict("pairs", ["a [SEP] b"])[0] in ("same", "other")


def test_a_new_task_takes_the_head_with_its_labels(run: Path, folder: Path) -> None:
    """Without training, it answers with the head of the trained task."""
    given = ["--from", str(run), "--tasks", "new", "--out", str(folder / "zero"), "--save"]
    more = ("adapt.mode=zero_shot", "adapt.init=nearest_task")
    arguments = [*settings(folder)[:2], *more]
    assert adapt.main([*given, *arguments]) == 0
    adapted, trained = mttl.load(folder / "zero" / "models" / "new-100-13"), mttl.load(run)
    assert adapted.model.heads is not None
    assert trained.model.heads is not None
    own, heads = adapted.model.heads.of_task[0], trained.model.heads.of_task
    assert torch.equal(own.output.weight, heads[trained.tasks.index("ner")].output.weight)
    assert len(adapted.predict("new", ["Bo Berg sees Rome"])[0].split()) == 4
    assert (
        adapt.main([*given[:4], "--out", str(folder / "all"), *arguments[:2], "adapt.max_steps=2"])
        == 0
    )


def test_mistakes_are_said_before_training(folder: Path, refused) -> None:
    files = f"custom.yaml+{folder / 'encoder.yaml'}"
    for setting in ("data.packed_length=5000", "optim.label_smoothing=0.1"):
        given = settings(folder, "run.name=no", setting)
        message = f"tasks with heads do not work with {setting.partition('=')[0]}"
        assert message in refused(train.main, "-c", files, *given)
    bad = yaml.safe_load((folder / "tasks.yaml").read_text())["tasks"]
    bad = {"pairs": {**bad["pairs"], "kind": "tokens"}}
    (folder / "bad.yaml").write_text(yaml.safe_dump({"tasks": bad}))
    given = settings(folder, "run.name=bad", f"data.tasks={folder / 'bad.yaml'}")
    message = refused(train.main, "-c", files, *given)
    assert "it has 3 words, and the answer is for 1" in message
    plain = {"pairs": {**bad["pairs"], "kind": "text-to-text"}}
    (folder / "bad.yaml").write_text(yaml.safe_dump({"tasks": plain}))
    assert "give all tasks a head (kind: tokens, label or tree)" in refused(
        train.main, "-c", files, *given
    )


TREES = """# text = Bo Berg likes Oslo
1-2\tBo Berg\t_\t_\t_\t_\t_\t_\t_\t_
1\tBo\t_\tX\t_\tA=b\t{}\t{}\t_\t_
2\tBerg\t_\tX\t_\t_\t{}\t{}\t_\tSpaceAfter=No
2.1\tsees\t_\t_\t_\t_\t_\t_\t_\t_
3\tlikes\t_\tX\t_\t_\t{}\t{}\t_\t_
4\tOslo\t_\tX\t_\t_\t{}\t{}\t_\t_

1\tAnna\t_\tX\t_\t_\t{}\t{}\t_\t_
"""
TAGS = "-DOCSTART- -X- O\n\nAnna X {}\nlikes Y {}\r\n\n\nBo X {} \nBerg X {}"
SWAPPED = ["--columns", "tags", "words"]


@pytest.mark.parametrize(
    ("task", "text", "old", "name", "more", "score"),
    [
        ("ner", TAGS, ["B-PER", "O", "I-LOC", "B-PER"], "a.conll", [], "span-F1"),
        ("ner", TAGS, ["_"] * 4, "a.txt", ["--format", "conll"], ""),
        ("ner", "{}\tAnna\n{}\tBo\n", ["O", "O"], "a.conll", SWAPPED, "0.0"),
        ("ner", "Anna{}\nlikes{}\n\nBo{}", [""] * 3, "a.conll", [], ""),
        (
            "trees",
            TREES,
            ["3", "b", "1", "c", "0", "root", "3", "b", "0", "root"],
            "a.conllu",
            [],
            "LAS",
        ),
        ("trees", TREES, ["_"] * 10, "a.conllu", [], ""),
    ],
)
def test_files_of_words(run: Path, tmp_path, capsys, task, text, old, name, more, score) -> None:
    """Only the predicted column changes; references are scored."""
    source, target = tmp_path / name, tmp_path / f"out{Path(name).suffix}"
    source.write_bytes(text.format(*old).encode())
    given = ["--from", str(run), "--task", task, "--in", str(source), "--out", str(target), *more]
    assert predict.main(given) == 0
    sentences = ["Anna likes", "Bo Berg"] if text is TAGS else ["Bo Berg likes Oslo", "Anna"]
    sentences = {2: ["Anna Bo"], 3: ["Anna likes", "Bo"]}.get(len(old), sentences)
    answers = " ".join(mttl.load(run).predict(task, sentences))
    parts = re.split("[ :]" if task == "trees" else " ", answers)
    if not old[0]:
        parts = [f" {part}" for part in parts]
    assert target.read_bytes() == text.format(*parts).encode()
    told = capsys.readouterr().err
    assert (score in told) if score else "score" not in told


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--task", "pairs", "--in", "a.conll", "--out", "o"], "for tasks of the kind tokens, but"),
        (["--task", "trees", "--in", "a.conll", "--out", "o"], "'trees' has the kind tree; give a"),
        (["--task", "ner", "--in", "a.conll"], "the format conll needs files; give --in and --out"),
        (["--task", "ner", "--in", "a.tsv", "--columns", "words"], "--columns works only with"),
        (["--task", "ner", "--in", "a.tsv", "--beams", "2"], "heads neither choose nor generate"),
        (["--task", "ner", "--in", "a.tsv", "--choices", "a", "b"], "heads neither choose nor gen"),
    ],
)
def test_what_prediction_refuses(run, tmp_path, monkeypatch, refused, given, message) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.conll").write_text("Anna\n")
    Path("a.tsv").write_text("input\nAnna\n")
    assert message in refused(predict.main, "--from", run, *given)
    assert not Path("o").exists()


def test_the_server_answers_as_exported_models_in_pipelines(
    run, decoder, tmp_path, monkeypatch
) -> None:
    """Clients and pipelines are those of the hub."""
    texts = {"ner": "Anna sees  Rome", "pairs": "a", "scores": "a a"}
    # Slow tokenizers, as the decoder's, know no places of words.
    cells = [(run, task) for task in texts] + [(decoder, task) for task in ("pairs", "scores")]
    for source, task in cells:
        out = tmp_path / f"{source.name}-{task}"
        assert export.main([str(source), "--task", task, "--out", str(out)]) == 0
        printed = re.sub(r"np\.float32\((.*?)\)", r"\1", run_card(out, [texts[task]])[0])
        expected = ast.literal_eval(printed)
        with serving(mttl.load(source)) as served:
            client = InferenceClient(f"{served.address}/models/{task}")
            ask: Any = client.token_classification if task == "ner" else client.text_classification
            with monkeypatch.context() as patch:
                patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
                found = ask(texts[task])
        assert len(found) == {"ner": 2, "pairs": 2, "scores": 1}[task]
        for entry, due in zip(found, expected, strict=task == "ner"):  # pipelines keep one label
            own = {name: value for name, value in entry.items() if value is not None}
            assert own.pop("score") == pytest.approx(due.pop("score"), rel=1e-4)  # single precision
            assert own == due


def test_requests_for_heads(run: Path) -> None:
    built = mttl.load(run)
    with serving(built) as served:

        def ask(task: str, inputs: Any, **parameters: Any) -> Any:
            asked = {"inputs": inputs, "parameters": parameters, "options": {"wait": True}}
            return httpx.post(f"{served.address}/models/{task}", json=asked)

        texts = ["Bo  Berg", "Anna"]
        words = ask("ner", texts, aggregation_strategy="none", ignore_labels=[]).json()
        tags = [" ".join(entry["entity"] for entry in row) for row in words]
        assert tags == built.predict("ner", texts)
        assert [(one["word"], one["start"], one["end"]) for one in words[0]] == [
            ("Bo", 0, 2),
            ("Berg", 4, 8),
        ]
        rows = ask("trees", texts).json()
        assert [" ".join(f"{x['head']}:{x['relation']}" for x in row) for row in rows] == (
            built.predict("trees", texts)
        )
        assert ask("trees", "Anna").json() == rows[1]
        labels = ask("pairs", ["a [SEP] b"]).json()[0]
        assert sum(one["score"] for one in labels) == pytest.approx(1)
        assert ask("pairs", "a [SEP] b", top_k=1).json() == [labels[:1]]
        assert labels[0]["label"] == built.predict("pairs", ["a [SEP] b"])[0]
        long = "Anna " * 200
        for answer, status, message in (
            (ask("ner", "a", top_k=1), 400, "'top_k' (1) is not supported"),
            (ask("ner", long), 400, "Shorten it, or start mttl serve with --truncate"),
            (ask("trees", long), 400, "any of its words may be a head"),
        ):
            assert answer.status_code == status
            assert message in answer.json()["error"]["message"]
        asked = {"model": "ner", "prompt": "a"}
        answer = httpx.post(f"{served.address}/v1/completions", json=asked)
        assert "use POST /models/ner" in answer.json()["error"]["message"]


def test_heads_without_an_equal_are_not_exported(folder, tmp_path, refused) -> None:
    """BERT of transformers has a dense layer; trees have no class."""
    files = f"custom.yaml+{folder / 'encoder.yaml'}"
    short = settings(folder, "run.name=plain", "trainer.max_steps=1", "data.evaluate=[]")
    assert train.main(["-c", files, *short]) == 0
    for task in ("pairs", "scores", "trees"):
        given = [folder / "runs" / "plain", "--task", task, "--out", tmp_path / "out"]
        assert "transformers and PEFT have no equal of a" in refused(export.main, *given)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_plans_count_heads(folder: Path, run: Path, decoder: Path, capsys, kind: str) -> None:
    files = f"custom.yaml+{folder / kind}.yaml"
    dense = f"heads.dense={'true' if kind == 'encoder' else 'false'}"
    given = ["-c", files, *settings(folder, "run.name=planned", dense)]
    assert train.main(["--dry-run", *given]) == 0
    parameters = mttl.load(run if kind == "encoder" else decoder).model.parameters()
    total = sum(parameter.numel() for parameter in parameters)
    assert f" of {total:,} are trained" in " ".join(capsys.readouterr().out.split())
    assert plan.main(given) == 0
    assert "heads (float32)" in capsys.readouterr().out


def test_methods_are_compared(folder: Path, tmp_path: Path, commands) -> None:
    out = tmp_path / "out"
    given = ["-c", f"custom.yaml+{folder / 'encoder.yaml'}", "--out", str(out), "--seeds", "13"]
    given += ["--methods", "polytropon", "--modes", "--steps", "1", "--adapt-steps", "1"]
    given += ["--workers", "1", "-k", f"data.tasks={folder / 'tasks.yaml'}", *SHORT[1:]]
    assert compare.main(given) == 0
    assert len(commands) == 2
    scores = read_csv(out / "scores.csv")
    assert {(row["side"], row["task"]) for row in scores} == {
        *(("seen", task) for task in ("ner", "pairs", "scores", "trees")),
        ("unseen", "new"),
    }


def test_other_commands_say_that_they_need_generation(run: Path, tmp_path: Path, refused) -> None:
    out = ["--out", str(tmp_path / "out")]
    for command, given, message in (
        (merge_task, ["--task", "ner", *out], "these tasks have heads"),
        (export, ["--inventory", *out], "these tasks have heads"),
        (export, ["--all", *out], "export one of them with --task NAME"),
    ):
        assert message in refused(command.main, str(run), *given)
