"""Answers of a loaded run are those of its evaluation, and choices are by likelihood."""

import json
import re
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
import torch

import mttl
from helpers.chat_templates import CHATML, save_tokenizer
from helpers.command import train
from helpers.gyms import TINY_LLAMA, TINY_T5, make_run, write_config, write_gym
from mttl.assembly.model import Built
from mttl.io.errors import TaskError

# Random weights that are large: answers depend on the question without any training.
LARGE = {"initial_scale": {"*": 3.0}}
SETTINGS: dict[str, dict] = {
    "t5": {
        "backbone": {**TINY_T5, **LARGE},
        "data": {"prefix": "code", "descriptions": True, "max_input_length": 48},
        "generation": {"num_beams": 3, "length_penalty": 0.5},
    },
    "llama": {"backbone": {**TINY_LLAMA, **LARGE}},
    "chat": {
        # Larger still: what differs stands far from the answer.
        "backbone": {**TINY_LLAMA, "initial_scale": {"*": 8.0}},
        "data": {"template": "chat", "descriptions": True, "max_input_length": 160},
    },
}


@pytest.fixture(scope="module", params=list(SETTINGS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp(request.param)
    gym = write_gym(root / "gym", description="what {} does")
    settings = SETTINGS[request.param]
    if request.param == "chat":
        tokenizer = str(save_tokenizer(root / "tokenizer"))
        settings = {**settings, "backbone": {**settings["backbone"], "tokenizer": tokenizer}}
    return make_run(root, "data.evaluate=[dev, test]", gym=gym, **settings)


@pytest.fixture
def run(folder: Path) -> Built:
    return mttl.load(folder)


def evaluated(folder: Path, run: Built) -> tuple[list[str], list[str], list[str]]:
    """Return task, question and answer of every scored row."""
    rows = [
        (path.stem.rpartition("_")[0], row["input"], row["prediction"])
        for path in sorted((folder / "predictions").glob("*.jsonl"))
        for row in map(json.loads, path.read_text().splitlines())
    ]
    questions = [shown.removeprefix(run.form.prompt_prefix(task).text) for task, shown, _ in rows]
    return [task for task, *_ in rows], questions, [answer for *_, answer in rows]


@pytest.mark.every(2)
def test_answers_are_those_of_evaluation(folder: Path, run: Built) -> None:
    tasks, questions, answers = evaluated(folder, run)
    assert len(set(answers)) > 2
    assert all(len(question) <= 4 for question in questions)
    assert run.predict(tasks, questions, batch_size=4) == answers


def test_a_chat_shows_the_day_on_which_its_run_began(tmp_path, monkeypatch) -> None:
    """Whenever it is resumed or asked, though the template shows the day of the call."""
    template = "{{ strftime_now('%d %b %Y') }}" + CHATML
    tokenizer = str(save_tokenizer(tmp_path / "tokenizer", template))
    backbone = {**TINY_LLAMA, "tokenizer": tokenizer}
    data = {"template": "chat", "max_input_length": 160}
    config = write_config(
        tmp_path / "tiny.yaml", write_gym(tmp_path / "gym"), backbone=backbone, data=data
    )
    for day, more in ((26, {}), (27, {"resume": True})):
        today = type("Day", (date,), {"today": classmethod(lambda cls, d=day: date(2024, 7, d))})
        monkeypatch.setattr("mttl.commands.train_tasks.datetime.date", today)
        path = train(config, "run", f"trainer.max_steps={day}", "data.validation=none", **more).path
    run = mttl.load(path)
    encoder = run.form.encoder(run.tokenizer, decoder_only=True)
    (ids,) = encoder.prompts(["abc"])
    assert run.tokenizer.decode(ids).startswith("26 Jul 2024")


@pytest.mark.every(2)
def test_a_chat_is_that_of_the_template(folder: Path, run: Built) -> None:
    """The ids that the model sees are those of `apply_chat_template`, and turns end answers."""
    if run.form.template != "chat":
        assert run.model.backbone.generation_config.eos_token_id == 1
        return
    turn_ends = run.tokenizer.convert_tokens_to_ids("<extra_id_2>")
    assert run.model.backbone.generation_config.eos_token_id == [1, turn_ends]
    said = (("system", "what copy does"), ("user", "[copy] ab"))
    asked = [{"role": role, "content": text} for role, text in said]
    seen: list[list[int]] = []
    run.model.backbone.register_forward_pre_hook(
        lambda model, args, inputs: seen.extend(inputs["input_ids"].tolist()), with_kwargs=True
    )
    run.predict("copy", [" ab "])
    prompt = run.tokenizer.apply_chat_template(asked, add_generation_prompt=True)["input_ids"]
    assert seen[0] == prompt
    run.choose("copy", ["ab"], ["a", "b"], batch_size=1)
    assert seen[-3] == prompt  # once for both answers, whose last tokens are only predicted
    for answer, ids in zip("ab", seen[-2:], strict=True):
        whole = [*asked, {"role": "assistant", "content": answer}]
        assert prompt + ids == run.tokenizer.apply_chat_template(whole)["input_ids"][:-1]
    # An adapted task asks in the same form, and so does what was kept of it.
    pairs = [("ab", "aba"), ("c", "cc"), ("b", "bb"), ("ca", "cac")]
    settings = {"mode": "router_only", "max_steps": 1, "eval_every": 1, "batch_size": 2}
    adapted = mttl.adapt_to(folder, pairs, task="new", description="what new does", **settings)
    answers = adapted(["abc"])
    assert adapted.form.prompt_prefix("new").system == "what new does"
    adapted.save(folder.parent / "new")
    assert mttl.load(folder.parent / "new").predict("new", ["abc"]) == answers


def test_one_task_as_a_function(run: Built) -> None:
    reverse = run.pipeline("reverse")
    run.model.train()
    both = run.predict("reverse", ["ab", " c "])
    assert not run.model.training
    assert reverse(["ab", "c"]) == both
    assert reverse("ab", max_new_tokens=6) == both[0]
    assert run.predict("reverse", []) == []
    counted: list[int] = []
    run.predict("reverse", ["ab", "c", "a"], batch_size=2, on_rows=counted.append)
    assert counted == [2, 1]


def test_answers_may_be_searched_otherwise(run: Built) -> None:
    words = ["ab", "c", "abc", "ca"] * 4
    torch.manual_seed(0)
    drawn = run.predict("copy", words, do_sample=True, temperature=5.0)
    assert drawn != run.predict("copy", words)
    short = run.predict("copy", words, max_new_tokens=1)
    assert all(len(answer.encode()) <= 3 for answer in short)  # a byte, maybe no UTF-8


@pytest.mark.parametrize("per_token", [False, True])
def test_choices_are_by_likelihood(run: Built, per_token: bool) -> None:
    """Compared with a loop over single answers, without padding."""
    words, given = ["ab", "c", "abca"], ["a", "cab", "bb"]
    found = run.choose("copy", words, given, per_token=per_token, batch_size=4)
    encoder = run.form.encoder(run.tokenizer, decoder_only=run.decoder_only)
    for word, choice in zip(words, found, strict=True):
        (prompt,) = encoder.prompts([run.form.text("copy", word)], [run.form.prompt_prefix("copy")])
        scores = []
        for answer in given:
            (labels,) = encoder.answers([answer])
            assert {*labels[-2:]} & {run.tokenizer.eos_token_id, *encoder.stops}
            with torch.no_grad():
                if run.decoder_only:
                    ids = torch.tensor([[*prompt, *labels]])
                    logits = run.model(torch.tensor([0]), input_ids=ids).logits
                    logits = logits[0, len(prompt) - 1 : -1]
                else:
                    inputs = {"input_ids": torch.tensor([prompt]), "labels": torch.tensor([labels])}
                    logits = run.model(torch.tensor([0]), **inputs).logits[0]
            rows = logits.log_softmax(-1)[range(len(labels)), labels]
            scores.append(rows.mean() if per_token else rows.sum())
        expected = torch.stack(scores).double().softmax(0).tolist()
        assert list(choice.probabilities) == given
        # Padding changes the order in which products are added.
        assert list(choice.probabilities.values()) == pytest.approx(expected, abs=1e-5)
        assert choice.answer == given[expected.index(max(expected))]


def test_every_text_may_have_choices_of_its_own(run: Built) -> None:
    found = run.choose(["copy", "reverse"], ["ab", "c"], [["a", "b"], ["c", "aa", "b"]])
    assert [list(choice.probabilities) for choice in found] == [["a", "b"], ["c", "aa", "b"]]
    (alone,) = run.choose("reverse", ["c"], ["c", "aa", "b"])
    assert alone.probabilities == pytest.approx(found[1].probabilities, abs=1e-5)


SHARES = {"copy": 0.7, "reverse": 0.3}


@pytest.mark.every(2)
def test_a_mixture_answers_as_the_mixed_row(run: Built) -> None:
    """Compared with a router whose rows are replaced by hand."""
    words = ["ab", "c", "abca", "ca"] * 3
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, value in run.model.named_parameters():
            if "inventory" in name or "router" in name:
                value.add_(torch.randn(value.shape, generator=generator))
    alone = [run.predict(task, words) for task in SHARES]
    rows = run.model.router.matrix().detach()
    mixed = run.predict(SHARES, words)
    chosen = run.choose(SHARES, words, ["a", "cab"], per_token=True)
    assert run.pipeline(SHARES)(words) == mixed
    assert run.predict({"copy": 7, "reverse": 3}, words) == mixed
    assert mixed not in alone  # or the shares would have no effect
    assert run.predict({"copy": 0.4}, words) == alone[0]
    assert run.predict({"reverse": 2, "copy": 0}, words) == alone[1]
    row = 0.7 * rows[:, 0] + 0.3 * rows[:, 1]
    hook = run.model.router.register_forward_hook(lambda _, given, out: row[:, None].expand_as(out))
    assert run.predict("copy", words) == mixed  # the task with the largest share asks
    expected = run.choose("copy", words, ["a", "cab"], per_token=True)
    for own, other in zip(chosen, expected, strict=True):
        assert own.probabilities == pytest.approx(other.probabilities, abs=1e-5)
    hook.remove()
    assert run.predict("copy", words) == alone[0]  # nothing is left behind


@pytest.mark.parametrize(
    ("name", "given", "kind", "message"),
    [
        ("predict", ("kopy", ["a"]), TaskError, "Did you mean 'copy'"),
        ("pipeline", ("kopy",), TaskError, "the model has no task 'kopy'."),
        ("predict", (["copy"], ["a", "b"]), TaskError, "there are 1 tasks and 2 texts"),
        ("predict", ("copy", "abc"), TypeError, "write ['abc']"),
        ("predict", ("copy", ["a", 3]), TypeError, "text 2 (3) must be a text"),
        ("choose", ("copy", ["a"], ["a" * 99 + "b", "a" * 99 + "c"]), TaskError, "text 1: choices"),
        ("choose", ("copy", ["a"], "rang"), TypeError, "must be a list of answers"),
        ("predict", ({"kopy": 1.0}, ["a"]), TaskError, "Did you mean 'copy'"),
        ("predict", ({"copy": 0.0}, ["a"]), TaskError, "at least 0, with one above 0"),
        ("predict", ({"copy": -1.0, "reverse": 3.0}, ["a"]), TaskError, "must be at least 0"),
        ("predict", ({"copy": float("nan")}, ["a"]), TaskError, "({'copy': nan})"),
        ("choose", ({}, ["a"], ["yes", "no"]), TaskError, "shares of tasks ({})"),
        ("choose", ("copy", ["a"], ["yes"]), TaskError, "there must be at least two"),
        ("choose", ("copy", ["a"], ["a", "a "]), TaskError, "or repeated ones"),
        ("choose", ("copy", ["a"], ["a", ""]), TaskError, "without empty or"),
        (
            "choose",
            ("copy", ["a"], [["a", "b"]] * 2),
            TaskError,
            "there are 2 lists of choices and 1 texts",
        ),
    ],
)
def test_mistakes_are_answered(run: Built, name, given, kind, message) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        getattr(run, name)(*given)
    with pytest.raises(ValueError, match=r"num_return_sequences \(2\) must be 1"):
        run.predict("copy", ["a"], num_return_sequences=2)


def test_answers_are_computed_in_the_precision_of_evaluation(tmp_path: Path) -> None:
    # One row at a time, as shapes change how half precision is rounded.
    mixed = ("trainer.precision=bf16-mixed", "data.eval_batch_size=1")
    folder = make_run(tmp_path, *mixed, **SETTINGS["llama"])
    run = mttl.load(folder)
    tasks, questions, answers = evaluated(folder, run)
    assert run.predict(tasks, questions, batch_size=1) == answers
    single = replace(run, mixed=None)
    chosen = [
        model.choose("copy", ["abc"], ["a", "b"])[0].probabilities["a"] for model in (run, single)
    ]
    assert chosen[0] != chosen[1]
    assert chosen[0] == pytest.approx(chosen[1], abs=0.05)  # bfloat16 has eight bits
