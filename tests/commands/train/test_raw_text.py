"""Tasks of raw text: training on languages, scores, what does not answer, merging and export."""

import csv
import json
import math
import random
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM

import mttl
from mttl.commands import adapt, export, merge_task, predict, serve, train
from mttl.io.errors import TaskError

BERT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 384}
BERT |= {"intermediate_size": 32}
MODELS = {
    "bert": BERT | {"max_position_embeddings": 128},
    "llama": BERT | {"num_key_value_heads": 2},
    "t5": {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    | {"vocab_size": 384, "decoder_start_token_id": 0},
}
CLASSES = {"bert": AutoModelForMaskedLM, "llama": AutoModelForCausalLM, "t5": AutoModelForSeq2SeqLM}
SHORT = (
    "trainer.max_steps=8",
    "trainer.accelerator=cpu",
    "optim.lr=0.01",
    "optim.schedule=constant",
)
SHORT += ("data.max_input_length=48", "data.max_output_length=8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, draw = tmp_path_factory.mktemp("text"), random.Random(0)
    for name, words in {"fr": ["le", "chat", "dort"], "es": ["el", "gato", "duerme"]}.items():
        lines = [" ".join(draw.choices(words, k=4)) for _ in range(40)]
        (folder / f"{name}.txt").write_text("\n\n".join(lines) + "\n")
    (folder / "it.jsonl").write_text(
        "".join(json.dumps({"body": f"il gatto {n}"}) + "\n" for n in range(20))
    )
    tasks = {
        "french": {"kind": "text", "source": {"train": "fr.txt"}},
        "spanish": {"kind": "text", "source": {"train": "es.txt"}},
        "italian": {"kind": "text", "source": {"train": "it.jsonl"}, "input": "{body}"}
        | {"side": "test"},
    }
    (folder / "tasks.yaml").write_text(yaml.safe_dump({"tasks": tasks}))
    for name, config in MODELS.items():
        settings = {"kind": "random", "model_type": name, "config": config, "tokenizer": "byte"}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({"backbone": settings}))
    return folder


def given(folder: Path, model: str, *more: str) -> list[str]:
    files = f"custom.yaml+{folder / model}.yaml"
    own = (f"data.tasks={folder / 'tasks.yaml'}", f"run.dir={folder / 'runs'}")
    return ["-c", files, "-k", *own, f"run.name={model}", *SHORT, *more]


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, Path]:
    for model in MODELS:
        assert train.main(given(folder, model)) == 0
    return {model: folder / "runs" / model for model in MODELS}


def test_scores_are_inverse_perplexities_of_both_languages(runs: dict[str, Path]) -> None:
    for run in runs.values():
        rows = {row["task"]: row for row in csv.DictReader((run / "results.csv").open())}
        assert {*rows} == {"french", "spanish", "mean"}
        for task in ("french", "spanish"):
            lines = (run / "predictions" / f"{task}_test.jsonl").read_text().splitlines()
            assert len(lines) == 8  # a fifth of 40
            losses = [float(x) for line in lines for x in json.loads(line)["prediction"].split()]
            score = math.exp(-sum(losses) / len(losses))
            assert float(rows[task]["score"]) == pytest.approx(score, rel=1e-4)  # six digits
            assert score > 1 / 384  # better than any token with equal probability


@pytest.mark.parametrize("model", MODELS)
def test_a_run_is_loaded_and_merged_but_answers_nothing(
    runs: dict[str, Path], tmp_path: Path, refused, model: str
) -> None:
    run, questions = runs[model], tmp_path / "in.csv"
    questions.write_text("input\nle chat\n")
    with pytest.raises(TaskError, match="'french' is raw text without answers; merge or export"):
        mttl.load(run).predict("french", ["le chat"])
    assert "raw text" in refused(predict.main, "--from", str(run), "--in", str(questions))
    assert "raw text" in refused(serve.main, str(run), "--port", "0")
    merged, loras = tmp_path / "merged", tmp_path / "loras"
    assert merge_task.main([str(run), "--task", "french", "--out", str(merged)]) == 0
    # Both commands compare the logits of what they wrote with those of the run.
    assert CLASSES[model].from_pretrained(merged).config.model_type == model
    assert export.main([str(run), "--all", "--out", str(loras)]) == 0
    for folder in (merged, loras):
        card = (folder / "README.md").read_text()
        assert "## Usage" not in card  # which would show an answer
        assert "french" in card


@pytest.mark.parametrize("model", ["bert", "t5"])
def test_a_resumed_training_is_identical(runs: dict[str, Path], folder: Path, model: str) -> None:
    short = (f"run.name={model}-stopped", "data.evaluate=[]")
    assert train.main(given(folder, model, *short, "trainer.max_steps=5")) == 0
    assert train.main([*given(folder, model, *short), "--resume"]) == 0
    one, other = (mttl.load(folder / "runs" / run).model for run in (model, f"{model}-stopped"))
    for (key, value), own in zip(
        one.state_dict().items(), other.state_dict().values(), strict=True
    ):
        assert torch.equal(value, own), key


def test_a_new_language_is_learnt_by_adaptation(runs: dict[str, Path], folder: Path) -> None:
    out = folder / "adapted"
    more = ("-k", f"data.tasks={folder / 'tasks.yaml'}", "adapt.max_steps=4", "adapt.mode=all")
    assert (
        adapt.main(["--from", str(runs["bert"]), "--tasks", "italian", "--out", str(out), *more])
        == 0
    )
    result = json.loads((out / "results.jsonl").read_text().splitlines()[-1])
    assert result["metric"] == "token-probability"
    assert 0 < result["test"] < 1


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (
            {"kind": "tokens", "output": "{text}", "k": 8},
            "'french' is raw text (kind: text), but 'other' has a head; train them in two runs",
        ),
        ({"output": "{text|lower}"}, "kind: 'text' has no output and no options; remove them"),
        ({"metric": "ACC"}, "the metric of 'other' ('ACC') must be 'token-probability' for tasks"),
        (
            {"kind": "text-to-text", "output": "x", "k": 8, "metric": "token-probability"},
            "'french' is raw text (kind: text), but 'other' has no head",
        ),
    ],
)
def test_wrong_tasks_are_refused(folder: Path, tmp_path: Path, refused, own, message) -> None:
    task = {"kind": "text", "source": {"train": str(folder / "fr.txt")}, "input": "{text}"}
    tasks = {"tasks": {"french": task, "other": task | own}}
    (tmp_path / "tasks.yaml").write_text(yaml.safe_dump(tasks))
    arguments = given(folder, "bert", f"data.tasks={tmp_path / 'tasks.yaml'}", "run.name=no")
    assert message in refused(train.main, *arguments)


def test_settings_that_do_not_apply_are_refused(folder: Path, refused) -> None:
    arguments = given(folder, "bert", "data.truncate=start", "run.name=no")
    assert "raw text do not work with data.truncate: start" in refused(train.main, *arguments)
