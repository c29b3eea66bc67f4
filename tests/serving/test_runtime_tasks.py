"""Adapted tasks that are loaded and unloaded while the server runs."""

import threading
from functools import partial
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import torch

import mttl
from helpers.new_tasks import adapted, train_source
from helpers.serving import serving
from mttl.serving.runtime_tasks import add_loading

WORDS = ["ab", "c", "abca", "bb"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runtime")
    path = train_source(root)
    for task, mode in (("new", "router_only"), ("copy", "all")):
        adapted(path, mode, task).save(root / "models" / task)
    return path


def ask(raw: httpx.Client, path: str, status: int, **values: Any) -> str:
    reply = raw.post(f"/v1/{path}", json=values, headers={"Authorization": "Bearer k"})
    assert reply.status_code == status, reply.text
    return reply.text


def names(raw: httpx.Client) -> list[str]:
    reply = raw.get("/v1/models", headers={"Authorization": "Bearer k"})
    return [model["id"] for model in reply.json()["data"]]


def test_tasks_are_loaded_and_unloaded(run: Path) -> None:
    models = run.parents[1] / "models"
    own = mttl.load(run)
    routes = partial(add_loading, models, str(run), None)
    with (
        serving(own, key="k", add_routes=lambda _: routes) as served,
        httpx.Client(base_url=served.address, timeout=60) as raw,
    ):
        assert raw.post("/v1/load_lora_adapter", json={}).status_code == 401
        for name, folder in (("mine", "new"), ("another", "copy")):
            said = ask(raw, "load_lora_adapter", 200, lora_name=name, lora_path=folder)
            assert said == f"Success: LoRA adapter '{name}' added successfully."
        assert names(raw) == [*own.tasks, "mine", "another"]
        places = [
            {tensor.data_ptr() for tensor in task.predictor.model.backbone.parameters()}
            for task in served.service.tasks.values()
        ]
        assert places[-2] <= places[0]  # a trained row shares the backbone and the skills
        assert places[-1] & places[0]
        for name, folder in (("mine", "new"), ("another", "copy")):
            expected = mttl.load(models / folder).predict(folder, WORDS)
            reply = ask(raw, "completions", 200, model=name, prompt=WORDS)
            assert [
                x["text"] for x in httpx.Response(200, text=reply).json()["choices"]
            ] == expected
            assert f'"model":"{name}"' in reply.replace(" ", "")
        told = ask(raw, "load_lora_adapter", 400, lora_name="mine", lora_path="new")
        assert "there is a model 'mine' already" in told
        told = ask(raw, "completions", 400, model="mix:mine=1,copy=1", prompt="a")
        assert "different models cannot be mixed" in told
        ask(raw, "completions", 200, model="mix:mine=1", prompt="a")
        said = ask(raw, "unload_lora_adapter", 200, lora_name="mine")
        assert said == "Success: LoRA adapter 'mine' removed successfully."
        assert names(raw) == [*own.tasks, "another"]
        ask(raw, "completions", 404, model="mine", prompt="a")
        ask(raw, "completions", 404, model="mix:mine=1", prompt="a")
        ask(raw, "unload_lora_adapter", 404, lora_name="mine")
        assert "not loaded at run time" in ask(raw, "unload_lora_adapter", 400, lora_name="copy")
        ask(raw, "load_lora_adapter", 200, lora_name="mine", lora_path=str(models / "new"))
        for path, told in (
            ("../runs/source", "must be a folder below"),
            ("/etc", "must be a folder below"),
            ("nothing", "nothing"),
        ):
            found = ask(raw, "load_lora_adapter", 400, lora_name="other", lora_path=path)
            assert told in found
        (models / "link").symlink_to(run)
        found = ask(raw, "load_lora_adapter", 400, lora_name="other", lora_path="link")
        assert "must be a folder below" in found
        assert names(raw) == [*own.tasks, "another", "mine"]
    routes = partial(add_loading, run.parents[1], None, None)
    with (
        serving(own, key="k", add_routes=lambda _: routes) as served,
        httpx.Client(base_url=served.address, timeout=60) as raw,
    ):
        told = ask(raw, "load_lora_adapter", 400, lora_name="x", lora_path="runs/source")
        assert "has 3 tasks; name one adapted task" in told
    with serving(own, key="k") as served, httpx.Client(base_url=served.address) as raw:
        ask(raw, "load_lora_adapter", 404, lora_name="mine", lora_path="new")  # not allowed


def test_loading_waits_for_the_batch_that_runs(run: Path, monkeypatch) -> None:
    """Loading sets PyTorch's default type for a moment, which a running batch must not see."""
    busy: list[str] = []

    def load(*given: Any, **named: Any) -> Any:
        busy.append(threading.current_thread().name)
        return real(*given, **named)

    real = mttl.load
    monkeypatch.setattr("mttl.serving.runtime_tasks.load_run", load)
    routes = partial(add_loading, run.parents[1] / "models", str(run), None)
    with (
        serving(mttl.load(run), add_routes=lambda _: routes) as served,
        httpx.Client(base_url=served.address, timeout=60) as raw,
    ):
        ask(raw, "load_lora_adapter", 200, lora_name="mine", lora_path="new")
    assert busy == ["model"]
    assert torch.get_default_dtype() == torch.float32
