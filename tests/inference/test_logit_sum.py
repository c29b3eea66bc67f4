"""Sums of logits against models that compute all logits in full passes, one row at a time."""

import copy
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import mttl
from helpers.backbones import tiny_llama, tiny_t5
from helpers.experts import token_model
from helpers.gyms import TINY_LLAMA, TINY_T5, make_run, write_gym
from helpers.skills import skilled
from inference.test_option_scores import MODELS, PROMPTS
from mttl.assembly.model import Built
from mttl.inference.logit_sum import AddedLogits, LogitSum
from mttl.io.errors import TaskError
from mttl.models.backbone import is_decoder_only
from mttl.routing import SmearRouter
from mttl.skills import SkilledModel

WORDS = ["c", "a", "ab", "bb", "ca", "abca"]  # batches are sorted by length
# Random weights that are large: answers depend on the prompt without any training.
KINDS = {"t5": {**TINY_T5, "initial_scale": {"*": 3.0}}}
KINDS["llama"] = {**TINY_LLAMA, "initial_scale": {"*": 3.0}}
SEARCHES: list[dict[str, Any]] = [
    {},
    {"num_beams": 3, "length_penalty": 0.5},
    {"do_sample": True, "temperature": 0.7},
]


def differing(run: Built, scale: float) -> Built:
    """Return a run whose tasks differ."""
    with torch.no_grad():
        for name, value in run.model.named_parameters():
            if "inventory" in name or "router" in name:
                value.normal_(std=scale)
    return run


@pytest.fixture(scope="module", params=list(KINDS))
def runs(request: Any, tmp_path_factory: pytest.TempPathFactory) -> list[Built]:
    root = tmp_path_factory.mktemp(request.param)
    gym, backbone = write_gym(root / "gym"), KINDS[request.param]
    folders = [
        make_run(root / name, f"run.seed={seed}", gym=gym, backbone=backbone)
        for seed, name in enumerate(("one", "other"))
        if not (root / name).mkdir()
    ]
    scale = 0.3 if request.param == "t5" else 1.0
    return [differing(mttl.load(folder), scale) for folder in folders]


def full_logits(run: Built, task: str, prompt: list[int], answer: list[int]) -> torch.Tensor:
    """Return the logits after a prompt and an answer, without padding and cache."""
    return whole_logits(run.model, run.tasks.index(task), prompt, answer)


@torch.no_grad()
def whole_logits(model: SkilledModel, task: int, prompt: list[int], answer: list[int]) -> Any:
    if is_decoder_only(model.backbone):
        given = {"input_ids": torch.tensor([prompt + answer])}
    else:
        start: Any = model.backbone.config.decoder_start_token_id
        given = {"decoder_input_ids": torch.tensor([[start, *answer]])}
        given["input_ids"] = torch.tensor([prompt])
    return model(torch.tensor([task]), **given, use_cache=False).logits[0, -1]


def expected(run: Built, added: Any, weight: float, **search: Any) -> list[str]:
    """Generate by transformers with a model whose own logits are the sum."""
    parts = [(run, "copy"), *((other, task) for other, task, _ in added)]
    own, *prompts = (
        one.prompts(WORDS, [one.form.prompt_prefix(task)] * len(WORDS)) for one, task in parts
    )
    width = max(map(len, own))

    def add(_: Any, args: Any, given: dict[str, Any], output: Any) -> Any:
        ids = (
            given["input_ids"][:, width:] if run.decoder_only else given["decoder_input_ids"][:, 1:]
        )
        n = len(ids) // len(WORDS)
        total = weight * output.logits[:, -1]
        for (other, task, factor), own in zip(added, prompts, strict=True):
            for row, answer in enumerate(ids.tolist()):
                total[row] += factor * full_logits(other, task, own[row // n], answer)
        output.logits[:, -1] = total
        return output

    backbone: Any = run.model.backbone
    handle = backbone.register_forward_hook(Once(add), with_kwargs=True)
    try:
        return run.predict("copy", WORDS, use_cache=False, **search)
    finally:
        handle.remove()


class Once:
    """A hook that passes of its own do not call."""

    def __init__(self, hook: Any) -> None:
        self.hook, self.running = hook, False

    def __call__(self, *given: Any) -> Any:
        if self.running:
            return None
        self.running = True
        try:
            return self.hook(*given)
        finally:
            self.running = False


@pytest.mark.parametrize("search", SEARCHES, ids=["greedy", "beams", "samples"])
def test_answers_are_those_of_a_model_that_adds_the_logits(runs, search) -> None:
    run, other = runs
    added = [(run, "reverse", 1.5), (other, "number", -0.5)]
    torch.manual_seed(0)
    due = expected(run, added, 0.8, **search)
    torch.manual_seed(0)
    assert run.with_logits(*added, weight=0.8).predict("copy", WORDS, **search) == due
    assert len(set(due)) > 2
    torch.manual_seed(0)
    assert run.predict("copy", WORDS, **search) != due


def test_names(runs) -> None:
    run, _ = runs
    due = run.with_logits((run, "reverse", -0.5), weight=1.0).predict("copy", WORDS)
    assert run.predict("logits:copy=1,reverse=-0.5", WORDS, batch_size=4) == due
    assert run.pipeline("logits: copy=1, reverse=-0.5")(WORDS) == due
    for name, problem in (
        ("logits:copy=0,reverse=1", "and the first weight above 0"),
        ("logits:copy=1,copy=1", "must have the form logits:task_a=1,task_b=-0.5"),
        ("logits:copy=1,kopy=1", "no task 'kopy'. Did you mean 'copy'"),
    ):
        with pytest.raises(TaskError, match=problem):
            run.predict(name, WORDS)
    other = copy.deepcopy(run.tokenizer)
    other.add_tokens(["<knowledge>"])
    with pytest.raises(TaskError, match="the logits of 'copy' cannot be added: its model has an"):
        run.with_logits((replace(run, tokenizer=other), "copy", -1.0))
    with pytest.raises(TaskError, match="cannot rank"):
        run.choose("logits:copy=1,reverse=1", ["a"], ["a", "b"])


def smear(n_groups: int, n_tasks: int, *sizes: int) -> SmearRouter:
    width = tiny_t5().config.d_model
    router = SmearRouter(n_groups, n_tasks, *sizes, n_features=width)
    router.show("examples", torch.randn(n_tasks, width))
    return router


KINDS_OF_MODELS: dict[str, Any] = {
    name: lambda make=make, settings=settings: skilled(make(), **settings).eval()
    for name, (make, settings) in MODELS.items()
}
KINDS_OF_MODELS |= {
    "token experts": lambda: token_model(tiny_llama()),
    "token experts of t5": lambda: token_model(tiny_t5()),
    "a router of prompts": lambda: skilled(tiny_t5(), router=smear),
}


@pytest.mark.parametrize("kind", KINDS_OF_MODELS)
def test_added_logits_are_those_of_full_passes(kind: str) -> None:
    """For two answers of each prompt, at every step, whatever the beams did in between."""
    model = KINDS_OF_MODELS[kind]()
    tokenizer = SimpleNamespace(pad_token_id=0, eos_token_id=1)
    run = SimpleNamespace(model=model, tokenizer=tokenizer, autocast=nullcontext)
    added = AddedLogits(run, 2, 1.0, PROMPTS)
    answers = torch.randint(3, 20, (2 * len(PROMPTS), 4))
    with torch.no_grad():
        for length in (0, 1, 3, 4):
            answers = answers.flip(1)
            found = added.after(answers[:, :length])
            for row, answer in enumerate(answers[:, :length].tolist()):
                due = whole_logits(model, 2, PROMPTS[row // 2], answer)
                # The same float32 products in batches of other sizes.
                torch.testing.assert_close(found[row], due, rtol=1e-4, atol=1e-5)


def test_vocabularies_may_be_padded_differently() -> None:
    wide, narrow = torch.randn(2, 9), torch.randn(2, 7)
    added = SimpleNamespace(weight=-0.5, after=lambda answers: narrow)
    found = LogitSum(2.0, [added], 1)(torch.zeros(2, 3, dtype=torch.long), wide)
    torch.testing.assert_close(found[:, :7], (2 * wide[:, :7] - 0.5 * narrow).log_softmax(1))
    assert found[:, 7:].isneginf().all()
