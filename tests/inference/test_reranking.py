"""Candidates are ranked as in a loop over tasks and candidates that are scored one by one."""

from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.dialogues import train_dialogues
from inference.test_logit_sum import full_logits
from mttl.assembly.model import Built
from mttl.io.errors import TaskError
from training.test_text_to_text import answer_losses

TASKS = """
k: 4
source: {train: talk.jsonl}
tasks:
  guide: {kind: dialogue}
  reverse: {kind: text-to-text, input: "{response} | {history|turns}", output: "{knowledge}"}
  lm: {kind: text-to-text, input: "{history|turns}", output: "{response}"}
  joined: {kind: text-to-text, input: "{history|turns}", output: "{response} {knowledge}"}
"""
WEIGHTS = {"reverse": 3.0, "lm": -2.0}


def record(number: int) -> dict[str, Any]:
    knowledge = f"{number} m tall"
    return {"history": ["Hi.", f"{number}?"], "knowledge": knowledge, "response": f"{number} m"}


RECORDS = [record(number) for number in (1, 4, 30)]


@pytest.fixture(scope="module", params=["t5", "llama"])
def run(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Built:
    root: Path = tmp_path_factory.mktemp(request.param)
    data = {"max_input_length": 80, "max_output_length": 8, "validation": "none", "evaluate": []}
    return train_dialogues(root, TASKS, map(record, range(20)), request.param, **data)


def encoded(run: Built, task: str, text: str) -> list[list[int]]:
    return run.prompts([text], [run.form.prompt_prefix(task)])


def prompt(run: Built, task: str, given: dict[str, Any]) -> list[list[int]]:
    return encoded(run, task, run.form.filled(task, given, ""))


def log_probability(run: Built, task: str, text: str, answer: str) -> float:
    (ids,), (labels,) = encoded(run, task, text), run.encoder.answers([answer])
    row = {"input_ids": ids, "labels": labels, "task_id": run.tasks.index(task)}
    return -float(answer_losses(run.model, row).sum())


def candidates_of(run: Built, record: dict[str, Any], n: int, **search: Any) -> list[str]:
    """Return candidates by the model's own `generate`."""
    ids = torch.tensor(prompt(run, "guide", record))
    found = run.model.generate(
        run.task_ids(["guide"]), input_ids=ids, attention_mask=torch.ones_like(ids),
        **{**run.search, **search}, num_return_sequences=n,
    )  # fmt: skip
    start = ids.shape[1] if run.decoder_only else 0
    texts = run.tokenizer.batch_decode(found[:, start:], skip_special_tokens=True)
    return [text.strip() for text in texts if text.strip()]


@pytest.mark.parametrize("search", [{"num_beams": 4}, {"do_sample": True, "temperature": 2.0}])
def test_the_best_candidate_has_the_largest_sum(run: Built, search: dict[str, Any]) -> None:
    due: dict[str, list[str]] = {"one": [], "all": []}
    torch.manual_seed(0)
    for given in RECORDS:
        best = {"one": (-torch.inf, ""), "all": (-torch.inf, "")}
        for answer in candidates_of(run, given, 4, **search):
            turns = run.form.filled("lm", given, "")
            own = log_probability(run, "guide", run.form.filled("guide", given, ""), answer)
            back = log_probability(run, "reverse", f"{answer} | {turns}", given["knowledge"])
            total = own + 3 * back - 2 * log_probability(run, "lm", turns, answer)
            best["one"] = max(best["one"], (own, answer))
            best["all"] = max(best["all"], (total, answer))
        for kind, (_, answer) in best.items():
            due[kind].append(answer)
    for kind, weights in (("one", {}), ("one", dict.fromkeys(WEIGHTS, 0.0)), ("all", WEIGHTS)):
        torch.manual_seed(0)
        found = run.predict("guide", RECORDS, candidates=4, rerank=weights, batch_size=1, **search)
        assert found == due[kind]
    assert due["one"] != due["all"]


def test_one_candidate_is_the_answer(run: Built) -> None:
    due = run.predict("guide", RECORDS, num_beams=1)
    assert run.predict("guide", RECORDS, candidates=1, rerank=WEIGHTS) == due


@pytest.mark.parametrize(
    ("task", "records", "weights", "problem"),
    [
        ("guide", ["user: Hi."], {"lm": 1}, "text 1: .*history"),
        ("joined", RECORDS, {"lm": 1}, "the answer of 'joined' must be a column of its records"),
        ("guide", RECORDS, {"ml": 1}, "no task 'ml'. Did you mean 'lm'"),
        ("lm", [{"history": ["Hi."]}], {"reverse": 1}, "'reverse', {knowledge}, is missing"),
        ("logits:guide=1,lm=1", RECORDS, {"lm": 1}, "cannot rank any"),
    ],
)
def test_what_cannot_be_ranked(run: Built, task, records, weights, problem) -> None:
    with pytest.raises(TaskError, match=problem):
        run.predict(task, records, candidates=2, rerank=weights)


def test_added_tasks_read_records_with_their_own_templates(run: Built) -> None:
    found = run.predict("logits:guide=1,lm=-0.5", RECORDS)
    for given, answer in zip(RECORDS, found, strict=True):
        prompts = [prompt(run, task, given)[0] for task in ("guide", "lm")]
        ids: list[int] = []
        while len(ids) < 8 and ids[-1:] != [run.tokenizer.eos_token_id]:
            own = full_logits(run, "guide", prompts[0], ids)
            ids.append(int((own - 0.5 * full_logits(run, "lm", prompts[1], ids)).argmax()))
        assert run.tokenizer.decode(ids, skip_special_tokens=True).strip() == answer
    texts = [run.form.filled("guide", given, "") for given in RECORDS]
    assert found != run.predict("logits:guide=1,lm=-0.5", texts)
