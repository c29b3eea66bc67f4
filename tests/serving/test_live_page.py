"""The page with the run behind it: its requests and their replies."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2 as httpx
import numpy as np
import pytest
import torch

import mttl
from helpers.gyms import TINY_LLAMA, make_run
from helpers.serving import BACKBONES, Served, serving
from mttl.assembly.model import Built
from mttl.routing.task.fixed import GivenRows
from mttl.serving.live_page import LiveModel, LiveRequest, add_page
from mttl.serving.run_server import served_tasks

WORDS = ["ab", "cab", "bbc", "a"]
EXPERTS = ("moe.n_experts=4", "moe.targets=[mlp]", "moe.experts.rank=2")


def pairs_of(run: Built, seed: int = 0) -> np.ndarray:
    """Return another order of the skills for every group of layers and head."""
    router, generator = run.model.router, np.random.default_rng(seed)
    n_groups = router.n_groups * router.n_heads
    return np.stack([generator.permutation(router.n_skills) for _ in range(n_groups)])


@contextmanager
def page(run: Built, pairs: Any, **settings: Any) -> Iterator[tuple[Served, LiveModel]]:
    models: list[LiveModel] = []

    def routes(tasks: Any) -> Any:
        models.append(LiveModel(tasks, pairs))
        return partial(add_page, "<p>A page</p>", models[0])

    with serving(run, add_routes=routes, **settings) as served:
        yield served, models[0]


def live_model(run: Built, pairs: Any) -> LiveModel:
    tasks = served_tasks(dict.fromkeys(run.tasks, run), most_tokens=64, truncate=False)
    return LiveModel(tasks, pairs)


@pytest.fixture(scope="module")
def run(folders: dict[str, Path]) -> Built:
    return mttl.load(folders["t5"])


def test_it_answers_as_the_run_and_with_mixtures_of_rows(run: Built) -> None:
    other = deepcopy(run)
    with torch.no_grad():  # the first task with the row of the second
        logits: Any = other.model.router.logits
        logits[:, 0] = logits[:, 1]
    first, second = run.tasks[:2]
    pairs = pairs_of(run)
    with page(run, pairs) as (served, model), httpx.Client(base_url=served.address) as client:
        assert "A page" in client.get("/").text
        assert "connect-src 'self'" in client.get("/").headers["Content-Security-Policy"]
        shown = {task["name"]: task["row"] for task in model.facts()["tasks"]}

        def ask(word: str, **mixture: Any) -> str:
            reply = client.post("/live", json={"task": first, "text": word, **mixture})
            assert reply.status_code == 200, reply.text
            assert reply.json()["read"] == run.form.text(first, word)
            return reply.json()["answer"]

        for word in WORDS:
            (own,), (others,) = run.predict(first, [word]), other.predict(first, [word])
            assert ask(word) == own
            assert ask(word, tasks={first: 0.3}) == own
            assert ask(word, skills=shown[first], start=first) == own
            assert ask(word, tasks={second: 1, first: 0}) == others
            assert ask(word, skills=shown[second], start=second) == others
        assert ask(WORDS[0]) == run.predict(first, WORDS)[0]  # nothing is left behind
        counted = client.get("/metrics").text
        assert f'mttl_requests_total{{model="{first}",status="200"}} 21' in counted
        assert client.post("/v1/completions", json={"model": first, "prompt": "ab"}).is_success


def test_rows_are_mixed_group_by_group_as_a_plain_loop_does(run: Built) -> None:
    """Two heads: a group of the page is one of the model and a head."""
    rows = torch.rand(2, 3, 2, 4)
    fake = replace(run, model=SimpleNamespace(router=GivenRows(rows), routes_tokens=False))
    fake.model.backbone, fake.model.skilled_layers = run.model.backbone, dict
    fake.model.heads = None
    fake.model.eval, fake.model.parameters = lambda: fake.model, run.model.parameters
    pairs = np.stack([np.random.default_rng(n).permutation(4) for n in range(4)])
    model = live_model(fake, pairs)
    first, second = run.tasks[:2]

    def row(**mixture: Any) -> Any:
        return model.row(LiveRequest(task=first, text="a", **mixture))

    assert row() is None
    mixed = row(tasks={first: 1.0, second: 3.0})
    torch.testing.assert_close(mixed, 0.25 * rows[:, 0] + 0.75 * rows[:, 1])
    weights = [0.5, -1.0, 2.0, 0.0]
    same, moved = row(skills=weights), row(skills=weights, start=second)
    for group in range(2):
        for head in range(2):
            for skill in range(4):
                own = pairs[2 * group + head][skill]
                mean = np.mean([rows[n // 2, 1, n % 2, pairs[n][skill]].item() for n in range(4)])
                assert same[group, head, own] == weights[skill]
                change = weights[skill] - mean
                expected = rows[group, 1, head, own].item() + change
                assert moved[group, head, own].item() == pytest.approx(expected, abs=1e-6)
                assert model.facts()["tasks"][1]["row"][skill] == pytest.approx(mean, abs=1e-6)


@pytest.fixture(scope="module")
def refusing(run: Built) -> Iterator[httpx.Client]:
    with page(run, pairs_of(run)) as (served, _), httpx.Client(base_url=served.address) as client:
        yield client


def test_a_fault_of_the_model_is_told_in_words(run, monkeypatch, caplog) -> None:
    with page(run, pairs_of(run)) as (served, model):
        monkeypatch.setattr(model, "answer", lambda *given: 1 / 0)
        reply = httpx.post(f"{served.address}/live", json={"task": "copy", "text": "ab"})
        assert reply.status_code == 500
        assert "see the log of the server" in reply.json()["error"]["message"]
        assert "Traceback" not in reply.text
    assert "division by zero" in caplog.text


@pytest.mark.parametrize("kind", list(BACKBONES))
def test_tokens_name_the_experts_that_took_them(kind: str, tmp_path: Path) -> None:
    fragment = "+router/token_top2.yaml"
    run = mttl.load(make_run(tmp_path, *EXPERTS, fragment=fragment, backbone=BACKBONES[kind]))
    model = live_model(run, np.zeros((1, 1), int))
    (task, *_), word = model.tasks.values(), "cab"
    (facts, *_) = model.facts()["tasks"]
    assert facts["routesTokens"]
    assert "The run routes only tokens" in facts["unmixed"]
    with pytest.raises(Exception, match="The run routes only tokens, so tasks have no routing"):
        model.row(LiveRequest(task=task.name, text=word, skills=[1.0]))
    found = model.answer(task, word, None)
    assert found["answer"] == run.predict(task.name, [word])[0]
    tokens = found["tokens"]

    # By hand: what the layers' routers choose when the model reads question and answer.
    chosen: dict[str, list[tuple[int, int]]] = {}

    def note(name: str, out: Any) -> None:
        chosen[name] = list(zip(out.tokens.tolist(), out.experts.tolist(), strict=True))

    for name, layer in run.model.token_layers().items():
        layer.router.register_forward_hook(lambda _, given, out, name=name: note(name, out))
    tokenizer: Any = run.tokenizer
    text, answer = run.form.text(task.name, word), found["answer"]
    read = tokenizer(answer, add_special_tokens=False)["input_ids"]
    if kind == "t5":
        prompt = tokenizer(text)["input_ids"]
        inputs = {"input_ids": [prompt], "decoder_input_ids": [[0, *read]]}
    else:
        prompt = tokenizer(f"{text}\n", add_special_tokens=False)["input_ids"]
        inputs = {"input_ids": [[*prompt, *read]]}
    assert (len(tokens["prompt"]), len(tokens["answer"])) == (len(prompt), len(read))
    with torch.no_grad():
        ids = {name: torch.tensor(rows) for name, rows in inputs.items()}
        run.model(torch.zeros(1, dtype=torch.long), **ids)
    assert [layer["name"] for layer in tokens["layers"]] == list(chosen)
    for layer in tokens["layers"]:
        apart = kind == "t5" and layer["name"].startswith("decoder")
        expected: list[list[int]] = [[] for _ in (*prompt, *read)]
        for token, expert in chosen[layer["name"]]:
            if apart and token == 0:
                continue
            expected[token + (len(prompt) - 1 if apart else 0)].append(expert)
        assert layer["chose"] == expected
        assert layer["experts"] == 4
    assert any(any(layer["chose"]) for layer in tokens["layers"])


def test_routers_that_read_prompts_have_no_rows_to_mix(tmp_path: Path) -> None:
    run = mttl.load(make_run(tmp_path, backbone=TINY_LLAMA, router={"kind": "smear"}))
    model = live_model(run, pairs_of(run))
    (facts, *_) = model.facts()["tasks"]
    assert facts["unmixed"].startswith("The router reads every prompt")
    assert facts["row"] == []
    assert model.answer(model.tasks["copy"], "ab", None)["answer"] == run.predict("copy", ["ab"])[0]


@pytest.mark.parametrize(
    ("asked", "status", "told"),
    [
        ({"task": "revers"}, 404, "there is no model 'revers'. Did you mean 'reverse'"),
        ({"text": " "}, 400, "; every input must contain text"),
        ({"skills": [1.0, None, 0.0]}, 400, "'skills.1' (null): Input should be a valid number"),
        ({"skills": [1.0]}, 400, "1 weights, but 3 skills; send one per skill"),
        ({"tasks": {"copy": -1.0}}, 400, "'tasks.copy' (-1.0): Input should be greater"),
        ({"tasks": {"copy": 0.0}}, 400, "all fractions of tasks are 0; set at least one above 0"),
        ({"tasks": {"nothing": 1.0}}, 400, "'nothing' cannot be mixed into 'copy'"),
    ],
)
def test_what_cannot_be_answered_is_told(refusing, asked, status, told) -> None:
    reply = refusing.post("/live", json={"task": "copy", "text": "ab", **asked})
    assert (reply.status_code, told in reply.json()["error"]["message"]) == (status, True)
