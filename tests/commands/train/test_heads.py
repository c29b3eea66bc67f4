"""Tasks with heads: from files of words to predictions and new tasks."""

import json
import random
from pathlib import Path

import pytest
import torch
import yaml

import mttl
from mttl.commands import adapt, export, serve, train
from mttl.io.errors import TaskError

ENCODER = {
    "kind": "random",
    "model_type": "bert",
    "config": {
        **{"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
        **{"intermediate_size": 32, "vocab_size": 384, "max_position_embeddings": 128},
    },
    "tokenizer": "byte",
}
DECODER = {
    "kind": "random",
    "model_type": "llama",
    "config": {
        **{"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
        **{"num_key_value_heads": 2, "intermediate_size": 32, "vocab_size": 384},
    },
    "tokenizer": "byte",
}
SHORT = ("trainer.max_steps=8", "trainer.accelerator=cpu", "optim.lr=0.01", "data.prefix=none")


def sentence(draw: random.Random) -> tuple[list[str], list[str], list[str]]:
    """Return words, tags and arcs; the second or third word is the root."""
    name = draw.choice([["Anna"], ["Bo", "Berg"]])
    words = [*name, draw.choice(["sees", "likes"]), draw.choice(["Rome", "Oslo"])]
    root = len(name) + 1
    tags = [*["B-PER", "I-PER"][: len(name)], "O", "B-LOC"]
    arcs = [f"{root}:nsubj"] * len(name) + ["0:root", f"{root}:obj"]
    return words, tags, arcs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, draw = tmp_path_factory.mktemp("heads"), random.Random(0)
    conll, conllu, pairs, scores = [], [], [], []
    for _ in range(24):
        words, tags, arcs = sentence(draw)
        conll.append("".join(f"{w} _ {t}\n" for w, t in zip(words, tags, strict=True)))
        rows = []
        for number, (word, arc) in enumerate(zip(words, arcs, strict=True), 1):
            head, relation = arc.split(":")
            rows.append(
                "\t".join([str(number), word, "_", "X", "_", "_", head, relation, "_", "_"])
            )
        conllu.append("\n".join(rows) + "\n")
        one, other = draw.choice("ab"), draw.choice("ab")
        label = "same" if one == other else "other"
        pairs.append(json.dumps({"one": one, "other": other, "label": label}))
        scores.append(json.dumps({"text": "a" * len(words), "label": str(len(words) / 2)}))
    (folder / "ner.conll").write_text("-DOCSTART- _ O\n\n" + "\n".join(conll))
    (folder / "trees.conllu").write_text("\n".join(conllu) + "\n")
    (folder / "pairs.jsonl").write_text("\n".join(pairs))
    (folder / "scores.jsonl").write_text("\n".join(scores))
    tasks = {
        "ner": {
            "kind": "tokens",
            "metric": "span-F1",
            "source": {
                **{"train": "ner.conll", "format": "conll"},
                "columns": ["words", "_", "tags"],
            },
        },
        "trees": {"kind": "tree", "source": {"train": "trees.conllu", "format": "conllu"}},
        "pairs": {
            **{"kind": "label", "source": {"train": "pairs.jsonl"}},
            **{"input": "{one} [SEP] {other}", "output": "{label}"},
        },
        "scores": {
            **{"kind": "label", "options": "number", "metric": "Pearson-Correlation"},
            **{"source": {"train": "scores.jsonl"}, "input": "{text}", "output": "{label}"},
        },
    }
    tasks |= {"new": {**tasks["ner"], "side": "test"}}
    both = {task: {"k": 8, **keys} for task, keys in tasks.items()}
    (folder / "tasks.yaml").write_text(yaml.safe_dump({"tasks": both}))
    for name, backbone in {"encoder": ENCODER, "decoder": DECODER}.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({"backbone": backbone}))
    return folder


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
    assert train.main(["-c", files, *settings(folder, "run.name=encoder")]) == 0
    return folder / "runs" / "encoder"


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


def test_a_decoder_has_heads_too(folder: Path) -> None:
    files = f"custom.yaml+{folder / 'decoder.yaml'}"
    assert train.main(["-c", files, *settings(folder, "run.name=decoder")]) == 0
    assert mttl.load(folder / "runs" / "decoder").predict("pairs", ["a [SEP] b"])[0] in (
        "same",
        "other",
    )


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


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["data.packed_length=5000"], "tasks with heads do not work with data.packed_length"),
        (["optim.label_smoothing=0.1"], "tasks with heads do not work with optim.label_smoothing"),
    ],
)
def test_what_does_not_work_is_said_before_training(folder, refused, more, message) -> None:
    files = f"custom.yaml+{folder / 'encoder.yaml'}"
    assert message in refused(train.main, "-c", files, *settings(folder, "run.name=no", *more))


def test_wrong_answers_are_errors(folder: Path, refused) -> None:
    bad = yaml.safe_load((folder / "tasks.yaml").read_text())["tasks"]
    bad = {"pairs": {**bad["pairs"], "kind": "tokens"}}
    (folder / "bad.yaml").write_text(yaml.safe_dump({"tasks": bad}))
    files = f"custom.yaml+{folder / 'encoder.yaml'}"
    given = settings(folder, "run.name=bad", f"data.tasks={folder / 'bad.yaml'}")
    message = refused(train.main, "-c", files, *given)
    assert "it has 3 words, and the answer is for 1" in message
    files = f"custom.yaml+{folder / 'encoder.yaml'}"
    plain = {"pairs": {**bad["pairs"], "kind": "text-to-text"}}
    (folder / "bad.yaml").write_text(yaml.safe_dump({"tasks": plain}))
    assert "generates no answers; give all tasks a head" in refused(train.main, "-c", files, *given)


def test_other_commands_say_that_they_need_generation(run: Path, tmp_path: Path, refused) -> None:
    for command, given in (
        (export, ["--task", "ner", "--out", str(tmp_path / "out")]),
        (serve, ["--port", "0"]),
    ):
        assert "these tasks have heads" in refused(command.main, str(run), *given)
