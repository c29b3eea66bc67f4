"""Adaptation in one call."""

import json
import logging
import re
import shutil
from pathlib import Path

import pytest
import torch

import mttl
import mttl.adaptation.job
import mttl.adaptation.modes
from helpers.command import train
from helpers.gyms import TINY_LLAMA, make_run, store_backbone, write_config, write_gym
from helpers.new_tasks import NEW, PAIRS, STEPS, write_source
from mttl.adaptation.fine_tune import score_batches
from mttl.adaptation.new_tasks import split_examples, write_examples
from mttl.commands import adapt
from mttl.config.load import dump_config, load_config
from mttl.data.data_module import TextToTextDataModule
from mttl.data.prompt_form import task_code
from mttl.io.errors import CheckpointError, ConfigError, TaskError
from mttl.io.record import as_row

TASK_NAMES = ("a/b", "../up", "", "a b", ".hidden")


def test_the_call_is_not_hidden_by_the_module_of_its_name() -> None:
    """`mttl.adaptation.modes` is imported above."""
    assert mttl.adapt.__module__ == "mttl.adaptation.new_tasks"
    with pytest.raises(AttributeError, match="module 'mttl' has no attribute 'adopt'"):
        mttl.adopt  # noqa: B018


def test_the_call_and_the_command_agree(run: Path, tmp_path: Path) -> None:
    given = [f"adapt.{name}={value}" for name, value in STEPS.items()]
    config = str(run.parents[1] / "tiny.yaml")
    command = ["-c", config, "--from", str(run), "--out", str(tmp_path), "-k", *given]
    assert adapt.main([*command, "--tasks", "first"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    called = mttl.adapt(run, tasks=["first"], **STEPS)
    assert [as_row(result) for result in called] == rows
    assert len(rows) == 2
    # And so they do for a part of the jobs, with the files named, and the sample twice.
    assert mttl.adapt(run, tasks="first", samples=[100, 100], config=config, **STEPS) == called[1:]
    table = mttl.few_shot_table(called)
    assert list(table.columns[0].cells) == ["first", "mean"]


def test_a_second_call_repeats_no_finished_job(run: Path, tmp_path: Path) -> None:
    told: list = []
    first = mttl.adapt(run, out=tmp_path, on_result=told.append, samples=[13], **STEPS)
    assert told == first
    again = mttl.adapt(run, out=tmp_path, on_result=told.append, **STEPS)
    assert len(again) == len(told) == 2 * len(NEW)


def test_results_of_rows_that_changed_are_not_returned(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run.parents[1] / "gym", tmp_path / "gym")
    given = {"gym": tmp_path / "gym", "out": tmp_path / "out", "mode": "zero_shot"}
    first = mttl.adapt(run, tasks="first", **given)
    assert mttl.adapt(run, tasks="first", **given) == first
    table = tmp_path / "gym" / "first" / "first_16_13_test.tsv"
    table.write_text("ab\tb\n")
    with pytest.raises(ConfigError, match=r"rows or the metric of first have changed.* Use"):
        mttl.adapt(run, tasks="first", **given)
    # Those of another sample, or another task, are what they were.
    assert mttl.adapt(run, tasks="first", samples=[100], **given) == first[1:]
    assert mttl.adapt(run, tasks="twice", **given)


def test_new_tasks_of_expert_are_routed_as_its_matrix_says(run: Path, tmp_path: Path) -> None:
    matrix = tmp_path / "matrix.csv"
    matrix.write_text("task,a,b\ncopy,1,0\nreverse,1,0\nnumber,0,1\ntwice,0,1\n")
    expert = train(
        run.parents[1] / "tiny.yaml",
        "expert",
        *("trainer.max_steps=2", "trainer.val_check_interval=2", "skills.n_skills=2"),
        *("router.kind=expert", f"router.matrix={matrix}"),
    ).path
    given = {"init": "expert_row", "samples": [13], **STEPS}
    (result,) = mttl.adapt(expert, tasks="twice", **given)
    (mean,) = mttl.adapt(expert, tasks="twice", **(given | {"init": "mean"}))
    assert 2 * result.n_trained == mean.n_trained
    assert mttl.adapt_to(expert, PAIRS, task="twice", init="expert_row", **STEPS)(["ab"])
    matrix.write_text("task,a,b,c\ntwice,0,0,1\n")
    with pytest.raises(ConfigError, match="has columns for 3 skills"):
        mttl.adapt(expert, tasks="twice", **given)


def test_new_tasks_are_composed_of_factors(tmp_path: Path) -> None:
    """The gym's table says what tasks are made of: none of the training tasks has `of=first`."""
    write_source(tmp_path)
    table = tmp_path / "gym" / "TASKS.csv"
    made_of = {"copy": "of=all way=on", "reverse": "of=all way=back", "number": "of=size way=on"}
    made_of |= {"twice": "of=size way=back", "first": "of=first way=on"}
    rows = [f"{task},EM,{factors}\n" for task, factors in made_of.items()]
    table.write_text("task,metric,factors\n" + "".join(rows))
    short = ("trainer.max_steps=3", "trainer.val_check_interval=3", "router.kind=metadata")
    run = train(tmp_path / "tiny.yaml", "metadata", *short).path
    router = mttl.load(run).model.router
    assert router.logits.shape[1] == 4
    assert router.factors.tolist() == [[1, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1]]
    alone = {"mode": "zero_shot", "init": "factors", "samples": [13]}
    (result,) = mttl.adapt(run, tasks="twice", out=tmp_path / "out", **alone)
    assert result.n_trained == 0
    model = mttl.load(run).model
    mttl.adaptation.modes.apply_mode(
        model, "zero_shot", init="factors", rows=torch.tensor([[0.0, 0, 1, 1]])
    )
    torch.testing.assert_close(model.router.logits[:, 0], router.logits[:, 2:].sum(1))
    assert mttl.adapt(run, tasks="twice", init="factors", samples=[13], **STEPS)[0].n_trained
    known = {"init": "factors", **STEPS}
    adapted = mttl.adapt_to(run, PAIRS, task="other", factors=["of=size", "way=back"], **known)
    adapted.save(tmp_path / "other")
    assert mttl.load(tmp_path / "other").predict("other", ["ab"]) == adapted(["ab"])
    with pytest.raises(ConfigError, match="' has the factor 'of=first', which no training task"):
        mttl.adapt(run, tasks="first", **alone)
    assert mttl.adapt(run, tasks="first", **(alone | {"init": "mean"}))
    with pytest.raises(ConfigError, match="init='factors' needs the factors of the task:"):
        mttl.adapt_to(run, PAIRS, task="other", **known)
    table.write_text("task,metric,factors\n" + "".join(rows[:2]) + "number,EM,way\n")
    with pytest.raises(TaskError, match="has the factors 'way' for 'number'; write name=value"):
        train(tmp_path / "tiny.yaml", "broken", *short)
    own = "router.factors={copy: [a=b], reverse: [a=c]}"
    with pytest.raises(ConfigError, match=r"router\.factors has no task 'number'"):
        train(tmp_path / "tiny.yaml", "broken", *short, own)


def test_another_gym_may_be_given(run: Path, tmp_path: Path) -> None:
    gym = write_gym(tmp_path / "gym", {"double": NEW["twice"]}, samples=(21,))
    (result,) = mttl.adapt(run / "skills", gym=gym, tasks="double", **STEPS)
    assert (result.task, result.sample, result.metric) == ("double", 21, "EM")
    # A name is a name, whatever stands in it; `first` is a task of the run's own gym.
    gym = write_gym(tmp_path / "odd", {"a,b": NEW["twice"]}, samples=(21,))
    (gym / "TASKS.csv").write_text('task,metric\n"a,b",EM\n')
    own = tmp_path / "own.yaml"
    own.write_text(
        dump_config(load_config(str(run / "config.yaml"), ["data.metrics={first: ACC}"]))
    )
    (result,) = mttl.adapt(run / "skills", gym=gym, tasks=["a,b"], config=own, **STEPS)
    assert result.task == "a,b"


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"max_stops": 3}, ConfigError, "Did you mean 'max_steps'"),
        (
            {"init": "expert_row"},
            ConfigError,
            "' needs a run with router.kind 'expert', but this run",
        ),
        ({"init": "factors"}, ConfigError, "' needs a run with router.kind 'metadata', but this"),
        ({"examples": 17}, TaskError, "adapt.examples (17) must be at most 16, the training"),
        ({"tasks": ["copy"]}, TaskError, "allow_seen=True"),
        ({"gym": "nowhere"}, TaskError, "the folder of tasks 'nowhere' does not exist"),
    ],
)
def test_mistakes_are_answered(run: Path, given: dict, kind: type, message: str) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        mttl.adapt(run, **given)


def test_a_folder_without_a_run_or_its_settings(run: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"' has no trained skills \(no meta.json, also not"):
        mttl.adapt(tmp_path)
    shutil.copytree(run / "skills", tmp_path / "skills")
    with pytest.raises(ConfigError, match="' does not exist, so the run's settings are unknown;"):
        mttl.adapt(tmp_path)
    config = run.parents[1] / "tiny.yaml"
    assert mttl.adapt(tmp_path, config=config, tasks="first", mode="zero_shot", samples=[13])


def test_a_model_for_a_few_examples_answers(run: Path) -> None:
    """Always 'b': a rule that a tiny model learns in seconds."""
    answers = mttl.adapt_to(
        run, PAIRS, task="always_b", mode="full", lr=2e-2, max_steps=60, batch_size=4
    )
    assert answers.result.dev == 1.0
    assert answers.result.step > 0
    assert answers(["cba", "bc "]) == ["b", "b"]
    assert answers([]) == []
    assert not answers.model.training
    assert answers.model.router.n_tasks == 1


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("kind", "prefix", "described"),
    [("t5", "code", True), ("llama", "name", True), ("llama", "none", False)],
)
def test_questions_look_as_in_training(kind, prefix, described, tmp_path) -> None:
    """Compared with rows prepared from a gym, and with the answers to them."""
    gym = write_gym(tmp_path / "gym", description="what {} does")
    backbone = {} if kind == "t5" else {"backbone": TINY_LLAMA}
    data = {"prefix": prefix, "descriptions": described, "max_input_length": 48}
    config = write_config(tmp_path / "tiny.yaml", gym, data=data, **backbone)
    run = train(config, "source", "trainer.max_steps=1", "trainer.val_check_interval=1").path
    given = {"description": "say b"} if described else {}
    adapted = mttl.adapt_to(run, PAIRS, task="new", **given, eval_every=30, lr=2e-2, max_steps=30)
    written = write_examples(tmp_path / "own", "new", PAIRS, PAIRS, description="say b")
    data = adapted.config.data.model_copy(update={"samples": [0], "eval_batch_size": 3})
    loader = TextToTextDataModule(
        written, ["new"], adapted.tokenizer, data, decoder_only=kind == "llama"
    )
    rows = loader.prepared("dev")
    before = adapted.form.prompt_prefix("new").text
    assert list(rows["input"]) == [before + text for text, _ in PAIRS]
    shown = {"name": "[new] ", "code": f"[{task_code('new')}] ", "none": ""}[prefix]
    assert before == shown + ("say b " if described else "")
    _, scored = score_batches(adapted.outcome.module, loader.evaluation_dataloader("dev"))
    assert adapted([text for text, _ in PAIRS]) == [row.prediction for row in scored]


def test_a_seed_decides_what_a_model_learns(run: Path) -> None:
    first, second, other = (
        mttl.adapt_to(run, PAIRS, task="new", seed=seed, init="fresh", **STEPS)
        for seed in (1, 1, 2)
    )
    values = [next(iter(x.model.router.parameters())) for x in (first, second, other)]
    assert torch.equal(values[0], values[1])
    assert not torch.equal(values[0], values[2])


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        *(({"task": task}, TaskError, f"task ('{task}') must be a name") for task in TASK_NAMES),
        ({"metric": "rouge-l"}, TaskError, "Did you mean 'rouge' or 'Rouge-L'"),
        ({"seeds": [1]}, ConfigError, "adapt_to takes one seed=NUMBER instead of seeds"),
        ({"description": "say b"}, ConfigError, "was trained without descriptions of tasks"),
        ({"examples": []}, TaskError, "examples has 0 pairs; at least one pair is needed for"),
        ({"dev": []}, TaskError, "examples has 8 pairs; at least one pair is needed for training"),
        ({"examples": ["ab", "cd"]}, TaskError, "examples must be pairs (input, output): 0:"),
        ({"examples": [("a", "b", "c")]}, TaskError, "examples must be pairs (input, output): 0:"),
        (
            {"examples": [PAIRS[0], ("a", 3)]},
            TaskError,
            "examples must be pairs (input, output): 1.1:",
        ),
        ({"dev": [("a", " ")]}, TaskError, "dev must be pairs (input, output): 0.1:"),
    ],
)
def test_mistakes_in_examples_are_answered(run, given, kind, message) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        mttl.adapt_to(run, **{"examples": PAIRS, "task": "new", **given})


def test_examples_are_split_written_and_read_back(tmp_path: Path) -> None:
    pairs = [("def f():\n\treturn 1", '{\n  "a": "b\\n"\n}'), ("x\r\ny", "é"), ("c", "3")]
    assert split_examples(pairs) == ([pairs[0], pairs[2]], [pairs[1]])
    assert split_examples(pairs, pairs[:1]) == (pairs, pairs[:1])
    labels = [(str(place), "ab"[place % 2]) for place in range(8)]  # both parts have both labels
    assert [[a for _, a in part] for part in split_examples(labels)] == [[*"aabb"]] * 2
    name, about = "new-task_1.5", 'a "quoted", one'
    gym = write_examples(tmp_path, name, pairs, pairs[:1], metric="ACC", description=about)
    assert gym.tasks() == [name]
    assert (gym.metric(name), gym.description(name)) == ("ACC", about)
    assert [(row.input, *row.outputs) for row in gym.rows(name, "train", 0)] == pairs
    assert len(gym.rows(name, "dev", 0)) == 1


def test_a_backbone_that_has_moved_is_named(tmp_path: Path) -> None:
    path = make_run(tmp_path, backbone=store_backbone(tmp_path / "base"))
    (tmp_path / "base").rename(tmp_path / "there")
    with pytest.raises(ConfigError, match="base"):
        mttl.adapt_to(path, PAIRS, task="new", max_steps=1)
    given = {"max_steps": 1, "mode": "router_only", "backbone": tmp_path / "there"}
    assert mttl.adapt_to(path, PAIRS, task="new", **given)(["ab"])
    (result,) = mttl.adapt(path, tasks=["copy"], allow_seen=True, **given)
    assert result.task == "copy"


@pytest.mark.slow
def test_few_examples_choose_their_start_by_leave_one_out(run: Path, caplog) -> None:
    """A model that is adapted to the others, in a quarter of the steps, answers each example."""
    pairs = [("ab", "a"), ("ba", "b"), ("ac", "a"), ("bc", "b")]
    settings = {**STEPS, "max_steps": 7}
    with caplog.at_level(logging.INFO, "mttl.adaptation.new_tasks"):
        found = mttl.adapt_to(run, pairs, task="start", options=["a", "b"], **settings)
    estimate = found.left_out
    by_hand = {}
    for init in ("nearest_task", "mean"):
        right, sure = [], []
        for place, (text, answer) in enumerate(pairs):
            rest = pairs[:place] + pairs[place + 1 :]
            given = {"dev": rest, "init": init, **settings, "max_steps": 2}
            one = mttl.adapt_to(run, rest, task="start", options=["a", "b"], **given)
            assert one.left_out is None
            choice = one.choose("start", [text], ["a", "b"], per_token=True)[0]
            right.append(choice.answer == answer)
            sure.append(choice.probabilities[answer])
        by_hand[init] = (sum(right) / 4, pytest.approx(sum(sure) / 4))
    assert by_hand[estimate.init] == (estimate.score, estimate.confidence)
    assert estimate.score == found.result.dev == max(score for score, _ in by_hand.values())
    assert f"leave-one-out on 4 examples: score {100 * estimate.score:.0f} %, con" in caplog.text
    # Then all examples are trained on.
    last = mttl.adapt_to(
        *(run, pairs), dev=pairs, task="start", options=["a", "b"], init=estimate.init, **settings
    )
    texts = [text for text, _ in pairs]
    assert last.choose("start", texts, ["a", "b"]) == found.choose("start", texts, ["a", "b"])
    generated = mttl.adapt_to(run, pairs[:2], task="start", **STEPS)
    assert (generated.left_out.n, generated.left_out.confidence) == (2, None)
