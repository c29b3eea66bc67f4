"""The command that serves: it starts, answers, and ends as it is asked to."""

import signal
import socket
from pathlib import Path

import httpx2 as httpx
import openai
import pytest

import mttl
from helpers.gyms import TINY_LLAMA, make_run
from helpers.serving import started
from mttl.commands import serve


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("serve")
    # Without an end token an answer goes on until it is as long as it may be.
    config = {**TINY_LLAMA["config"], "eos_token_id": None}
    backbone = {**TINY_LLAMA, "config": config, "initial_scale": {"*": 3.0}}
    return make_run(root, backbone=backbone)


@pytest.mark.slow
def test_what_was_accepted_is_answered_before_it_ends(run: Path) -> None:
    given = ("--most-tokens", "300", "--cors", "http://page/", "--load-from", str(run.parent))
    with (
        started("serve", "--from", run, *given) as one,
        openai.OpenAI(base_url=f"{one[1]}/v1", api_key="x", max_retries=0) as ask,
    ):
        process, address = one
        page = {"Origin": "http://page", "Access-Control-Request-Method": "POST"}
        assert httpx.options(f"{address}/v1/completions", headers=page).status_code == 200
        load = {"lora_name": "mine", "lora_path": run.name}
        told = httpx.post(f"{address}/v1/load_lora_adapter", json=load, timeout=60)
        assert "is a run, not an adapted task" in told.text
        parts = ask.completions.create(model="copy", prompt="ab", max_tokens=300, stream=True)
        text = next(parts).choices[0].text
        process.send_signal(signal.SIGTERM)
        ends = []
        for part in parts:
            text += part.choices[0].text
            ends.append(part.choices[0].finish_reason)
        assert ends[-1] == "length"
        assert text == mttl.load(run).predict("copy", ["ab"], max_new_tokens=300)[0]
        assert process.wait(60) == 0
        assert process.stderr
        assert "finishing accepted requests; press again to stop" in process.stderr.read()
        with pytest.raises(openai.APIConnectionError):
            ask.models.list()


@pytest.mark.slow
def test_open_to_all_it_says_so_and_asked_twice_it_ends_at_once(run: Path) -> None:
    with (
        started("serve", "--from", run, "--most-tokens", 2000, "--host", "0.0.0.0") as (
            process,
            url,
        ),
        openai.OpenAI(base_url=url.replace("0.0.0.0", "127.0.0.1") + "/v1", api_key="x") as ask,
    ):
        assert process.stderr
        assert "warning: everyone who can reach this address can send" in process.stderr.readline()
        parts = ask.completions.create(model="copy", prompt="ab", max_tokens=2000, stream=True)
        next(parts)
        process.send_signal(signal.SIGINT)
        assert "finishing" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        told = process.stderr.read()
        assert "loop is closed" not in told
        assert "Task was destroyed" not in told


def test_what_cannot_be_served_is_told(run, monkeypatch, refused) -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    port = str(taken.getsockname()[1])
    with taken:
        for given, message in (
            (["--from", run, "--api-key", " "], "--api-key and MTTL_API_KEY must not be empty"),
            (["--from", run, "--load-from", run / "x"], "/x' is not a folder"),
            (["--from", run, "--port", port], f"listen at --host 127.0.0.1 --port {port}"),
            (["--port", "65536"], "and at most 65535"),
            (["--cors", "page:3000"], "' must have the form http://HOST[:PORT], or be *"),
        ):
            assert message in refused(serve.main, *given)
    monkeypatch.setattr("mttl.runtime.libraries.missing_libraries", lambda *names: ["fastapi"])
    told = refused(serve.main, "--from", str(run))
    assert "missing libraries; install them with: pip install fastapi" in told
