"""The server, asked by OpenAI's own client and by clients that do what they should not."""

import asyncio
import gc
import json
import socket
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx2 as httpx
import openai
import pytest
import torch

import mttl
from helpers.chat_templates import INSTRUCTION, save_tokenizer
from helpers.gyms import TINY_LLAMA, make_run
from helpers.processes import wait_for
from helpers.serving import serving as serve
from mttl.assembly.model import Built
from mttl.serving.answer_batch import answer_batch
from mttl.serving.generation_request import Piece
from mttl.serving.protocol import Reply
from mttl.serving.run_server import allow_origins

WORDS = ["ab", "c", "abca", "bb", "ca", "a", "cab", "bc"]
JSON = {"Content-Type": "application/json"}


def client(address: str, key: str = "any") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0, timeout=60)


def chat(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def counters(address: str, **headers: str) -> dict[str, float]:
    text = httpx.get(f"{address}/metrics", headers=headers).text
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


class Slow:
    """A model that waits until it may, and then answers."""

    def __init__(self) -> None:
        self.may_go = threading.Event()
        self.began = threading.Event()
        self.n_answers = 0

    def __call__(self, predictor: Any, wanted: Any) -> None:
        self.began.set()
        assert self.may_go.wait(60)
        self.n_answers += sum(not row.dropped for row in wanted)
        answer_batch(predictor, wanted)


@pytest.mark.every(2)
def test_answers_are_those_of_the_run(run: Built) -> None:
    with serve(run) as served, client(served.address) as ask:
        for task in run.tasks:
            expected = run.predict(task, WORDS)
            found = ask.completions.create(model=task, prompt=WORDS)
            assert [choice.text for choice in found.choices] == expected
            for word, answer in zip(WORDS[:3], expected, strict=False):
                reply = ask.chat.completions.create(model=task, messages=chat(word))
                assert reply.choices[0].message.content == answer
        assert [model.id for model in ask.models.list()] == list(run.tasks)
        assert ask.models.retrieve("copy").id == "copy"


def test_tasks_with_options_choose_as_the_run_does(run: Built) -> None:
    """Sampling, log-probabilities and earlier turns generate; other parameters change nothing."""
    options = ["ab", "c", "bba"]
    run = replace(run, form=run.form.model_copy(update={"task_options": {"copy": options}}))
    expected = run.predict("copy", WORDS)
    assert set(expected) <= {*options}
    free = run.predict("copy", WORDS, max_new_tokens=6)
    assert free != expected
    same: list[dict[str, Any]] = [{}, {"temperature": 0, "max_tokens": 1, "stop": ["b"], "seed": 1}]
    others: list[dict[str, Any]] = [{"temperature": 1, "top_p": 1e-9}, {"logprobs": 1}]
    with serve(run) as served, client(served.address) as ask:
        for settings, answers in [(x, expected) for x in same] + [(x, free) for x in others]:
            given: dict[str, Any] = {"model": "copy", "prompt": WORDS, **settings}
            assert [choice.text for choice in ask.completions.create(**given).choices] == answers
        reply = ask.chat.completions.create(model="copy", messages=chat("ab"), n=2, max_tokens=5)
        assert {(c.message.content, c.finish_reason) for c in reply.choices} == {
            (expected[0], "stop")
        }
        assert reply.usage
        assert reply.usage.completion_tokens == 2 * len(expected[0])  # bytes
        parts = ask.completions.create(model="copy", prompt="ab", stream=True)
        assert "".join(part.choices[0].text for part in parts) == expected[0]
        plain = ask.completions.create(model="reverse", prompt=WORDS)
        assert [choice.text for choice in plain.choices] == run.predict("reverse", WORDS)


def test_mixtures_are_models(folders: dict[str, Path]) -> None:
    run = mttl.load(folders["t5"])
    with torch.no_grad():
        for name, value in run.model.named_parameters():
            if "inventory" in name or "router" in name:
                value.normal_()
    shares = {"copy": 0.3, "reverse": 0.7}
    expected = run.predict(shares, WORDS)
    assert expected not in [run.predict(task, WORDS) for task in run.tasks]
    with serve(run) as served, client(served.address) as ask:
        for model in ("mix:copy=0.3,reverse=0.7", shares):
            given: dict[str, Any] = {"model": model, "prompt": WORDS}
            reply = ask.completions.create(**given)
            assert [choice.text for choice in reply.choices] == expected
            assert reply.model == "mix:copy=0.3,reverse=0.7"
        said = ask.chat.completions.create(model=reply.model, messages=chat(WORDS[0]))
        assert said.choices[0].message.content == expected[0]
        plain = ask.completions.create(model="copy", prompt=WORDS)
        assert [choice.text for choice in plain.choices] == run.predict("copy", WORDS)
        counted = counters(served.address)
        assert counted['mttl_requests_total{model="mix:",status="200"}'] == 3  # one label for all
        for model, status, told in (
            ("mix:copy=1,kopy=1", 404, "no model 'kopy'. Did you mean 'copy'"),
            ("mix:copy=0", 400, "with one above 0"),
            ("mix:copy", 400, "must have the form mix:task_a=0.7"),
        ):
            with pytest.raises(openai.APIStatusError, match=told) as refused:
                ask.completions.create(model=model, prompt="a")
            assert refused.value.status_code == status


TOLD = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": " ab "},
    {"role": "assistant", "content": "<extra_id_2>ba"},  # no end of the turn, but its text
    {"role": "user", "content": "c"},
]


def test_conversations_are_those_of_the_chat_template(tmp_path: Path) -> None:
    tokenizer = str(save_tokenizer(tmp_path / "tokenizer"))
    backbone = {**TINY_LLAMA, "tokenizer": tokenizer, "initial_scale": {"*": 8.0}}
    data = {"template": "chat", "max_input_length": 160, "prefix": "name"}
    run = mttl.load(make_run(tmp_path, backbone=backbone, data=data))
    options = {"task_options": {"copy": ["a", "b"]}}
    run = replace(run, form=run.form.model_copy(update=options))
    seen: list[list[int]] = []
    chose: list[bool] = []

    def answer(predictor: Any, wanted: Any) -> None:
        seen.extend(list(row.prompt) for row in wanted)
        chose.extend(bool(row.options) for row in wanted)
        answer_batch(predictor, wanted)

    with serve(run, answer=answer) as served, client(served.address) as ask:
        for messages in (TOLD, TOLD[1:], TOLD[:2], [*TOLD[:1], *TOLD[1:3] * 2, TOLD[3]]):
            seen.clear()
            ask.chat.completions.create(model="copy", messages=messages)  # type: ignore[arg-type]
            *before, last = [{**one, "content": one["content"].strip()} for one in messages]
            shown = [*before, {**last, "content": f"[copy] {last['content']}"}]
            text = run.tokenizer.apply_chat_template(
                shown, tokenize=False, add_generation_prompt=True
            )
            decoded = run.tokenizer.decode(seen[0])
            assert decoded == text
            # Special tokens that a client spells are ordinary text.
            ends = run.tokenizer.convert_tokens_to_ids("<extra_id_2>")
            assert seen[0].count(ends) == len(messages)
            assert chose[-1] is (len(messages) == 2)  # earlier turns generate
        with pytest.raises(openai.BadRequestError, match=r"longest input \(160 tokens\)"):
            ask.chat.completions.create(model="copy", messages=[*TOLD[1:3] * 20, TOLD[3]])  # type: ignore[list-item]
        encoder = served.service.tasks["copy"].predictor.encoder
        assert len(encoder._frames) == 1  # conversations are not kept
    template = INSTRUCTION
    run.tokenizer.chat_template = template
    with serve(replace(run), answer=answer) as served, client(served.address) as ask:
        ask.chat.completions.create(model="copy", messages=TOLD[1:])  # type: ignore[arg-type]
        with pytest.raises(openai.BadRequestError, match=r"chat template.*no system"):
            ask.chat.completions.create(model="copy", messages=TOLD)  # type: ignore[arg-type]


def test_streams_join_to_the_answer(run: Built) -> None:
    drawn: dict[str, Any] = {"temperature": 1.2, "top_p": 0.9, "seed": 5, "max_tokens": 20}
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    with serve(run) as served, client(served.address) as ask:
        for settings in ({}, drawn, {"stop": ["a", "~~~"], "max_tokens": 20}):
            given: dict[str, Any] = {"model": "copy", "prompt": WORDS, "n": 2, **settings}
            whole = ask.completions.create(**given)
            texts, ends, counts = dict.fromkeys(range(16), ""), {}, []
            for part in ask.completions.create(**given, **usage):
                counts += [part.usage] if part.usage else []
                for choice in part.choices:
                    texts[choice.index] += choice.text
                    if choice.finish_reason:
                        ends[choice.index] = choice.finish_reason
            assert [texts[place] for place in range(16)] == [c.text for c in whole.choices]
            assert [ends[place] for place in range(16)] == [c.finish_reason for c in whole.choices]
            assert counts == [whole.usage]
        given = {"model": "reverse", "messages": chat("ab"), "logprobs": True, "top_logprobs": 2}
        (whole,) = ask.chat.completions.create(**given, **drawn).choices
        text, tokens, roles = "", [], []
        for part in ask.chat.completions.create(**given, **drawn, stream=True):
            (choice,) = part.choices
            text += choice.delta.content or ""
            roles += [choice.delta.role] if choice.delta.role else []
            tokens += (choice.logprobs and choice.logprobs.content) or []
        assert (text, roles) == (whole.message.content, ["assistant"])
        assert whole.logprobs
        assert [(t.token, t.logprob) for t in tokens] == [
            (t.token, pytest.approx(t.logprob, abs=1e-4)) for t in whole.logprobs.content or []
        ]
        assert "".join(token.token for token in tokens) == text


@pytest.mark.slow
def test_a_hundred_requests_of_all_tasks_at_once(folders) -> None:
    run = mttl.load(folders["llama"])
    tasks = [run.tasks[number % 3] for number in range(100)]
    words = [WORDS[number % 8] * (1 + number % 2) for number in range(100)]
    lengths = [4 + number % 3 for number in range(100)]

    async def ask(client: openai.AsyncOpenAI, task: str, word: str, length: int) -> str:
        parts = await client.chat.completions.create(
            model=task, messages=chat(word), stream=True, max_tokens=length
        )
        return "".join([part.choices[0].delta.content or "" async for part in parts])

    async def ask_all(address: str) -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="x", timeout=120) as client:
            calls = zip(tasks, words, lengths, strict=True)
            return await asyncio.gather(*(ask(client, *call) for call in calls))

    with serve(run) as served:
        found = asyncio.run(ask_all(served.address))
        counted = counters(served.address)
    of_length = {n: run.predict(tasks, words, max_new_tokens=n) for n in set(lengths)}
    assert found == [of_length[length][place] for place, length in enumerate(lengths)]
    done = [counted[f'mttl_requests_total{{model="{task}",status="200"}}'] for task in run.tasks]
    assert sum(done) == 100 == counted["mttl_request_seconds_count"]
    assert counted["mttl_batch_answers_sum"] == 100
    assert counted["mttl_batch_answers_count"] < 40  # they shared batches


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"model": "copi"}, 404, "no model 'copi'. Did you mean 'copy'.* copy, reverse, number"),
    ({"prompt": "a" * 40}, 400, r"input has \d+ tokens .* maximum is 24"),
    ({"prompt": ["a", " "]}, 400, r"an input is empty \(number 1 of 2, counted from 0\)"),
    ({"n": 65, "prompt": ["a", "b"]}, 400, "2 inputs with n=65 need 130 answers; the maximum is "),
]


def test_what_cannot_be_answered_is_refused(folders) -> None:
    with serve(mttl.load(folders["t5"])) as served, client(served.address) as ask:
        for stream in (False, True):
            for call, status, told in REFUSED:
                given = {"model": "copy", "prompt": "a", "stream": stream, **call}
                with pytest.raises(openai.APIStatusError, match=told) as refused:
                    ask.completions.create(**given)
                assert refused.value.status_code == status
                assert isinstance(refused.value.body, dict)  # OpenAI's error object
                assert set(refused.value.body) == {"message", "type", "param", "code"}
        with pytest.raises(openai.NotFoundError, match="no model 'x'"):
            ask.models.retrieve("x")
        counted = counters(served.address)
        assert sum(n for name, n in counted.items() if 'status="400"' in name) == 6
        assert counted['mttl_requests_total{model="",status="404"}'] == 2


def test_requests_that_are_none(folders: dict[str, Path]) -> None:
    with serve(mttl.load(folders["t5"]), body=200) as served, httpx.Client() as raw:
        url = f"{served.address}/v1/completions"

        def told(status: int, **request: Any) -> str:
            answer = raw.post(url, **request)
            assert answer.status_code == status
            return answer.json()["error"]["message"]

        assert "line 1, column 2: not valid JSON" in told(400, content="{,}", headers=JSON)
        assert ": contains [1]; it must contain an object" in told(400, content="[1]", headers=JSON)
        assert "'' ; it" not in told(415, content="{}")
        assert "must be application/json" in told(415, content="{}")
        assert "more than 200 bytes" in told(413, content="x" * 201, headers=JSON)
        parts = (b"x" * 50 for _ in range(10_000))  # without a Content-Length
        assert "more than 200 bytes" in told(413, content=parts, headers=JSON)
        missing = raw.get(f"{served.address}/v1/engines")
        assert missing.status_code == 404
        assert "routes: /v1/completions" in missing.json()["error"]["message"]
        assert raw.get(url).status_code == 405


def test_pages_of_other_origins_may_ask_where_they_are_allowed(folders) -> None:
    """A browser sends a preflight request first, without the key."""
    page = {"Origin": "http://page", "Access-Control-Request-Method": "POST"}
    page["Access-Control-Request-Headers"] = "authorization,content-type"
    allow = partial(allow_origins, ["http://page"])
    run, given = mttl.load(folders["t5"]), {"model": "copy", "prompt": "a"}
    with serve(run, key="k", add_routes=lambda _: allow) as served, httpx.Client() as raw:
        url = f"{served.address}/v1/completions"
        found = raw.options(url, headers=page)
        assert found.status_code == 200
        assert found.headers["access-control-allow-origin"] == "http://page"
        other = raw.options(url, headers={**page, "Origin": "http://other"})
        assert "access-control-allow-origin" not in other.headers
        answer = raw.post(url, json=given, headers={"Origin": "http://page"})
        assert answer.status_code == 401  # refusals are shown to pages too
        assert answer.headers["access-control-allow-origin"] == "http://page"
    nobody = partial(allow_origins, [])
    with serve(run, add_routes=lambda _: nobody) as served, httpx.Client() as raw:
        url = f"{served.address}/v1/completions"
        assert raw.options(url, headers=page).status_code == 405
        answer = raw.post(url, json=given, headers={"Origin": "http://page"})
        assert answer.status_code == 200
        assert "access-control-allow-origin" not in answer.headers


def test_long_questions_are_cut_where_the_server_may(folders: dict[str, Path]) -> None:
    run = mttl.load(folders["llama"])
    with serve(run, truncate=True) as served, client(served.address) as ask:
        raw = ask.completions.with_raw_response.create(model="copy", prompt=["abc" * 9, "a"])
        assert int(raw.headers["X-Truncated-Tokens"]) > 0
        expected = run.predict("copy", ["abc" * 9, "a"])
        assert [choice.text for choice in raw.parse().choices] == expected
        raw = ask.completions.with_raw_response.create(model="copy", prompt="a")
        assert "X-Truncated-Tokens" not in raw.headers


def test_positions_of_the_model_limit_answers(folders: dict[str, Path]) -> None:
    run = mttl.load(folders["llama"])
    run.model.backbone.config.max_position_embeddings = 30  # type: ignore[union-attr]
    rows: list[Any] = []

    def answer(predictor: Any, wanted: Any) -> None:
        rows.extend(wanted)
        answer_batch(predictor, wanted)

    with serve(run, answer=answer) as served, client(served.address) as ask:
        (prompt,), _ = served.service.tasks["copy"].encode(["ab"])
        most = 30 - len(prompt)
        with pytest.raises(openai.BadRequestError, match=f"must be at most {most} for this"):
            ask.completions.create(model="copy", prompt="ab", max_tokens=most + 1)
        assert ask.completions.create(model="copy", prompt="ab", max_tokens=most).choices
    assert [row.n_positions for row in rows] == [30]  # which limit batches, too


def test_scores_are_the_models_where_a_token_is_forced(folders) -> None:
    run = mttl.load(folders["t5"])
    (prompt,) = run.form.encoder(run.tokenizer, decoder_only=False).prompts(["[copy] ab"])
    start = {"input_ids": torch.tensor([prompt]), "decoder_input_ids": torch.tensor([[0]])}
    with torch.no_grad():
        own = run.model(run.task_ids(["copy"]), **start).logits[0, -1].log_softmax(0)
    run.model.backbone.generation_config.forced_bos_token_id = 70  # type: ignore[union-attr]
    with serve(run) as served, client(served.address) as ask:
        reply = ask.completions.create(model="copy", prompt="ab", logprobs=3, max_tokens=2)
        scores = reply.choices[0].logprobs
        assert scores
        assert [len(others) for others in scores.top_logprobs or []] == [3, 3]
        assert (scores.token_logprobs or [])[0] == pytest.approx(float(own[70]), abs=1e-4)


def test_beams_have_no_scores_and_one_piece(beams: Path) -> None:
    run = mttl.load(beams)
    with serve(run) as served, client(served.address) as ask:
        expected = run.predict("reverse", WORDS)
        found = ask.completions.create(model="reverse", prompt=WORDS, temperature=0)
        assert [choice.text for choice in found.choices] == expected
        assert expected != run.predict("reverse", WORDS, num_beams=1)
        parts = list(ask.completions.create(model="reverse", prompt="ab", stream=True))
        assert [part.choices[0].text for part in parts] == run.predict("reverse", ["ab"])
        with pytest.raises(openai.BadRequestError, match="no logprobs for the 3 beams"):
            ask.completions.create(model="reverse", prompt="ab", logprobs=1)
        assert ask.completions.create(model="copy", prompt="a", logprobs=1, top_p=0.9).choices


def test_a_key_is_asked_for(folders: dict[str, Path]) -> None:
    with serve(mttl.load(folders["t5"]), key=" säsame\n") as served:
        with client(served.address, "wrong") as ask:
            for call in (
                lambda: ask.completions.create(model="copy", prompt="a"),
                ask.models.list,
                lambda: ask.models.retrieve("copy"),
            ):
                with pytest.raises(openai.AuthenticationError, match="key is missing or wrong"):
                    call()
        url = f"{served.address}/metrics"
        assert httpx.get(url).status_code == 401
        right = {"Authorization": "Bearer säsame".encode()}
        assert httpx.get(url, headers=right).status_code == 200
        body = {"model": "copy", "prompt": "a"}
        answer = httpx.post(f"{served.address}/v1/completions", json=body, headers=right)
        assert answer.status_code == 200
        assert httpx.get(f"{served.address}/health").json() == {"status": "ok"}


def test_a_full_queue_and_a_closing_server_say_when_to_come_back(folders) -> None:
    slow = Slow()
    run = mttl.load(folders["t5"])
    with serve(run, answer=slow, most=2) as served, client(served.address) as ask:
        first = threading.Thread(target=lambda: ask.completions.create(model="copy", prompt="a"))
        first.start()
        assert slow.began.wait(60)
        with pytest.raises(openai.BadRequestError, match="3 answers; the queue holds 2"):
            ask.completions.create(model="copy", prompt=["a", "b", "c"])
        waiting = ask.completions.create(model="copy", prompt=["a", "b"], stream=True)
        with pytest.raises(openai.RateLimitError, match="are queued already") as refused:
            ask.completions.create(model="copy", prompt="a", stream=True)
        assert refused.value.response.headers["Retry-After"] == "1"
        served.service.queue.close()
        with pytest.raises(openai.InternalServerError, match="shutting down") as closing:
            ask.completions.create(model="copy", prompt="a")
        assert closing.value.status_code == 503
        assert closing.value.response.headers["Retry-After"] == "1"
        assert httpx.get(f"{served.address}/health").status_code == 503
        slow.may_go.set()
        first.join()
        assert len(list(waiting)) >= 2


def test_who_hangs_up_leaves_the_queue(folders, caplog) -> None:
    slow = Slow()
    with serve(mttl.load(folders["t5"]), answer=slow, batch_size=1) as served:
        queue, url = served.service.queue, f"{served.address}/v1/completions"
        for stream in (False, True):
            body = {"model": "copy", "prompt": ["a", "b"], "stream": stream}
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(url, json=body, timeout=0.5)
        gone = 'mttl_requests_total{model="copy",status="499"}'
        wait_for(lambda: counters(served.address).get(gone) == 2)
        assert len(queue) == 0
        slow.may_go.set()
        with client(served.address) as ask:
            ask.completions.create(model="copy", prompt="a")
        assert slow.n_answers == 1
    gc.collect()
    assert "Task was destroyed" not in caplog.text


def test_who_does_not_read_is_not_waited_for(folders: dict[str, Path]) -> None:
    sent = threading.Event()

    def answer(predictor: Any, wanted: Any) -> None:
        for row in wanted:
            row.send(Piece(text="x" * 20_000_000, finish="stop"))  # more than sockets hold
        sent.set()

    with serve(mttl.load(folders["t5"]), answer=answer, seconds=1.0) as served:
        url = httpx.URL(served.address)
        asker = socket.create_connection((url.host, url.port))
        with asker:
            body = json.dumps({"model": "copy", "prompt": "a", "stream": True}).encode()
            head = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            asker.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{head}".encode() + body)
            assert sent.wait(60)
            served.server.should_exit = True
            wait_for(lambda: not served.thread.is_alive())


def test_a_request_may_take_so_long(folders: dict[str, Path]) -> None:
    slow = Slow()
    with serve(mttl.load(folders["t5"]), answer=slow, seconds=0.3) as served:
        with client(served.address) as ask:
            with pytest.raises(openai.InternalServerError, match=r"more than 0\.3 sec") as late:
                ask.completions.create(model="copy", prompt="a")
            assert late.value.status_code == 504
            with pytest.raises(openai.APIError, match=r"more than 0\.3 seconds"):
                list(ask.completions.create(model="copy", prompt="a", stream=True))
        late_ones = 'mttl_requests_total{model="copy",status="504"}'
        wait_for(lambda: counters(served.address).get(late_ones) == 2)
        slow.may_go.set()


def test_a_model_that_fails_ends_no_server(folders: dict[str, Path]) -> None:
    failures = iter([True, True, False])

    def answer(predictor: Any, wanted: Any) -> None:
        if next(failures):
            raise RuntimeError("out of memory")
        answer_batch(predictor, wanted)

    run = mttl.load(folders["t5"])
    with serve(run, answer=answer) as served, client(served.address) as ask:
        with pytest.raises(openai.InternalServerError, match="the model failed; see the log"):
            ask.completions.create(model="copy", prompt="a")
        with pytest.raises(openai.APIError, match="the model failed"):
            list(ask.completions.create(model="copy", prompt="a", stream=True))
        found = ask.completions.create(model="copy", prompt="a")
        assert found.choices[0].text == run.predict("copy", ["a"])[0]


def test_a_slow_body_is_not_waited_for(folders: dict[str, Path]) -> None:
    def slowly() -> Any:
        yield b"{"
        time.sleep(1)
        yield b"}"

    with serve(mttl.load(folders["t5"]), seconds=0.2) as served:
        url = f"{served.address}/v1/completions"
        assert httpx.post(url, content=slowly(), headers=JSON).status_code == 408


def test_a_fault_is_told_without_its_traceback_and_counted(folders, monkeypatch) -> None:
    with serve(mttl.load(folders["t5"])) as served:
        with client(served.address) as ask, monkeypatch.context() as patch:
            patch.setattr(served.service.queue, "put", None)
            with pytest.raises(openai.InternalServerError, match="internal error") as fault:
                ask.completions.create(model="copy", prompt="a")
            assert "NoneType" not in str(fault.value)
        monkeypatch.setattr(Reply, "part", None)
        with client(served.address) as ask, pytest.raises((openai.APIError, httpx.TransportError)):
            list(ask.completions.create(model="copy", prompt="a", stream=True))
        faults = 'mttl_requests_total{model="copy",status="500"}'
        wait_for(lambda: counters(served.address).get(faults) == 2)


def test_sums_of_logits_are_models(folders: dict[str, Path], run: Built) -> None:
    """Of two runs, each with its own prompt; streamed, sampled and as a chat."""
    other, name = (
        mttl.load(folders["llama" if run.decoder_only else "t5"]),
        "logits:copy=1,other=-0.5",
    )
    with torch.no_grad():
        for each in (run, other):
            for key, value in each.model.named_parameters():
                if "inventory" in key or "router" in key:
                    value.normal_()
    expected = run.with_logits((other, "reverse", -0.5)).predict("copy", WORDS)
    assert expected != run.predict("copy", WORDS)
    with serve({"copy": run}) as served, client(served.address) as ask:
        served.service.tasks["other"] = replace(
            served.service.tasks["copy"], name="reverse", predictor=other
        )  # a task that was loaded under another name
        found = ask.completions.create(model=name, prompt=WORDS, seed=1)
        assert [choice.text for choice in found.choices] == expected
        parts = ask.completions.create(model=name, prompt=WORDS[0], stream=True)
        assert "".join(part.choices[0].text for part in parts) == expected[0]
        said = ask.chat.completions.create(model=name, messages=chat(WORDS[1]))
        assert said.choices[0].message.content == expected[1]
        drawn: dict[str, Any] = {"model": name, "temperature": 1.5, "seed": 3, "logprobs": 1}
        several = ask.completions.create(prompt=WORDS, **drawn).choices
        alone = ask.completions.create(prompt=WORDS[0], **drawn).choices
        assert alone[0].text == several[0].text
        assert 'mttl_requests_total{model="logits:",status="200"}' in counters(served.address)
