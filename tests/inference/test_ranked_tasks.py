"""Rank classification, from a gym's options to the answers of a run and of an adapted task."""

import json
from pathlib import Path

import pytest

import mttl
from helpers.command import train
from helpers.gyms import write_config, write_gym
from mttl.data.prompt_form import PromptForm
from mttl.inference.option_scores import OptionScorer
from mttl.inference.task_options import task_options, wanted_options
from mttl.io.errors import TaskError
from mttl.models.backbone import load_tokenizer
from mttl.runtime.command import USER_MISTAKE, run_command
from mttl.tasks.folder import Gym

TASKS = {
    "parity": ("ACC", lambda word: "odd" if len(word) % 2 else "even"),
    "copy": ("EM", lambda word: word),
    "first": ("Classification-F1", lambda word: f"begins with {word[0]}"),
}


def gym_of(folder: Path, options: str | None = None) -> Path:
    root = write_gym(folder / "gym", TASKS, sizes=(32, 5, 4))
    if options is not None:
        table = "task,metric,options\nparity,ACC,\ncopy,EM,{}\nfirst,Classification-F1,\n"
        (root / "TASKS.csv").write_text(table.format(options), encoding="utf-8")
    return root


def test_options_are_named_or_few_answers_of_training_rows(tmp_path: Path) -> None:
    gym = Gym(gym_of(tmp_path))
    assert task_options(gym, "parity", [100]) == ["even", "odd"]
    assert task_options(gym, "first", [100, 13]) == [f"begins with {letter}" for letter in "abc"]
    assert task_options(gym, "copy", [100]) == []
    samples = [(task, [100]) for task in TASKS]
    assert wanted_options(gym, samples, "both").keys() == {"parity", "first"}
    assert wanted_options(gym, samples, "generate") == {}
    with pytest.raises(TaskError, match=r"these tasks have no options to rank: copy. Add them to"):
        wanted_options(gym, samples, "rank")


@pytest.mark.parametrize("named", ["a| |b", "a|b|a"])
def test_wrong_options_are_refused(named: str, tmp_path: Path) -> None:
    gym = Gym(gym_of(tmp_path, named))
    with pytest.raises(TaskError, match=r"TASKS\.csv', options of 'copy': the choices are"):
        task_options(gym, "copy", [100])


def test_named_options_come_first_and_those_that_are_cut_alike_are_refused(tmp_path: Path) -> None:
    options = wanted_options(Gym(gym_of(tmp_path, "abcd| abce")), [("copy", [100])], "rank")
    assert options == {"copy": ["abcd", "abce"]}
    for length in (4, 5):
        form = PromptForm(max_output_length=length)
        encoder = form.encoder(load_tokenizer("byte"), decoder_only=False)
        if length == 5:
            OptionScorer.of(options, ["copy"], encoder, per_token=True)
            continue
        with pytest.raises(TaskError, match="options of 'copy' are identical after truncation to"):
            OptionScorer.of(options, ["copy"], encoder, per_token=True)


def predictions(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_run_ranks_what_has_options_and_so_does_what_is_adapted(tmp_path: Path, capsys) -> None:
    config = write_config(
        tmp_path / "tiny.yaml",
        gym_of(tmp_path),
        generation={"mode": "both"},
        data={"max_output_length": 16, "validation": "dev"},
    )
    (tmp_path / "gym" / "partition.json").write_text(
        json.dumps({"train": ["parity", "copy"], "dev": [], "test": ["first"]}), encoding="utf-8"
    )
    steps = ("trainer.max_steps=2", "trainer.val_check_interval=2")
    folder = train(config, "ranked", *steps)
    found = predictions(folder.predictions / "parity_test.jsonl")
    assert {row["prediction"] for row in found} <= {"even", "odd"}
    run = mttl.load(folder.path)
    assert run.form.task_options == {"parity": ["even", "odd"]}
    for task in ("parity", "copy"):  # in one list, ranked and generated
        rows = predictions(folder.predictions / f"{task}_test.jsonl")
        texts = [row["input"].removeprefix(f"[{task}] ") for row in rows]
        others = [task, "copy"] * len(texts)
        answers = run.predict(others[: 2 * len(texts)], [t for text in texts for t in (text, "b")])
        assert answers[::2] == [row["prediction"] for row in rows]
    choices = run.choose("parity", ["abc"], ["even", "odd"], per_token=True)
    assert run.predict("parity", ["abc"]) == [choices[0].answer]
    # A search that is asked for is made.
    assert run.predict("parity", ["abc"], num_beams=2) != [choices[0].answer]

    settings = {"mode": "router_only", "max_steps": 1, "eval_every": 1}
    (result,) = mttl.adapt(
        folder.path, gym=tmp_path / "gym", tasks=["first"], out=tmp_path / "out", **settings
    )
    assert result.n_empty == 0
    losses = {"unlikelihood": 1.0, "length_normalised": 1.0}
    (other,) = mttl.adapt(
        folder.path, gym=tmp_path / "gym", tasks=["first"], lr=0.1, **settings, **losses
    )
    assert other.step in (0, 1)
    with pytest.raises(TaskError, match=r"training rows each, or set generation.mode: both"):
        mttl.adapt(*(folder.path,), gym=tmp_path / "gym", tasks=["copy"], allow_seen=True, **losses)
    pairs = [(f"{letter}b", f"begins with {letter}") for letter in "abc" * 8]
    adapted = mttl.adapt_to(folder.path, pairs, task="new", **settings)
    answers = adapted(["ab", "cb"])
    assert set(answers) <= {f"begins with {letter}" for letter in "abc"}
    adapted.save(tmp_path / "new")
    assert mttl.load(tmp_path / "new").predict("new", ["ab", "cb"]) == answers

    few = [("ab", "yes"), ("b", "no"), ("cc", "yes"), ("a", "no")]
    named = mttl.adapt_to(folder.path, few, task="named", options=["yes", "no"], **settings)
    assert set(named(["c", "ca"])) <= {"yes", "no"}
    barred = mttl.adapt_to(
        *(folder.path, [(text, f"|{answer}") for text, answer in few]),
        task="barred",
        options=["|yes", "|no"],
        **settings,
    )
    assert set(barred(["c", "ca"])) <= {"|yes", "|no"}

    # All tasks are ranked, or the command ends before anything is built.
    status = run_command(lambda: train(config, "all", *steps, "generation.mode=rank") and 0)
    assert status == USER_MISTAKE
    assert "training rows each, or set generation.mode: both to rank" in capsys.readouterr().err


def test_rows_have_their_own_options(tmp_path: Path) -> None:
    """Each row is ranked among its choices only, and T-Few's losses use the same choices."""
    root = gym_of(tmp_path)
    words = ("ab", "bc", "ca", "b", "cc", "a", "ba", "c")
    rows = [
        {
            "input": word,
            "outputs": [f"{word}{word}"],
            "columns": {"choices": [f"{word}{word}", word]},
        }
        for word in words
    ]
    for split in ("train", "dev", "test"):
        path = root / "double" / f"double_8_100_{split}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    with (root / "TASKS.csv").open(encoding="utf-8") as file:
        (_, *others) = file.read().splitlines()
    table = ["task,metric,options", *(f"{one}," for one in others), "double,accuracy,from rows", ""]
    (root / "TASKS.csv").write_text("\n".join(table), encoding="utf-8")
    assert wanted_options(Gym(root), [("double", [100]), ("copy", [100])], "auto") == {"double": []}
    (root / "partition.json").write_text(
        json.dumps({"train": ["double", "copy"], "test": []}), encoding="utf-8"
    )
    config = write_config(tmp_path / "tiny.yaml", root, data={"max_output_length": 16})
    folder = train(config, "rows", "trainer.max_steps=1", "trainer.val_check_interval=1")
    found = predictions(folder.predictions / "double_test.jsonl")
    own = {row["input"]: row["columns"]["choices"] for row in rows}
    assert all(row["prediction"] in own[row["input"].removeprefix("[double] ")] for row in found)
    assert mttl.load(folder.path).form.task_options == {}

    settings = {"max_steps": 1, "eval_every": 1, "unlikelihood": 1.0, "length_normalised": 1.0}
    settings |= {"tasks": ["double"], "allow_seen": True, "out": tmp_path / "out"}
    (result,) = mttl.adapt(folder.path, gym=root, **settings)
    assert result.step in (0, 1)
    rows[0]["outputs"] = ["other"]
    train_file = root / "double" / "double_8_100_train.jsonl"
    train_file.write_text(f"{json.dumps(rows[0])}\n", encoding="utf-8")
    settings["out"] = tmp_path / "wrong"
    with pytest.raises(TaskError, match=r"training row is not among its options \(abab, ab\)"):
        mttl.adapt(folder.path, gym=root, **settings)
