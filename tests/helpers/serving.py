"""Random weights, a server of loaded models in a thread of the test's process, and commands."""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn

from helpers.command import ROOT
from helpers.gyms import TINY_LLAMA, TINY_T5
from mttl.serving.application import Service
from mttl.serving.request_queue import RequestQueue
from mttl.serving.run_server import listen, served_tasks, uvicorn_settings

# Random weights that are large: answers depend on the question without any training.
LARGE = {"initial_scale": {"*": 3.0}}
BACKBONES = {"t5": {**TINY_T5, **LARGE}, "llama": {**TINY_LLAMA, **LARGE}}


@dataclass
class Served:
    address: str
    service: Service
    server: uvicorn.Server
    thread: threading.Thread


@contextmanager
def serving(models: Any, **settings: Any) -> Iterator[Served]:
    """Serve a model, or several by task: ``with serving(run, batch_size=8) as served``."""
    by_task: dict[str, Any] = (
        models if isinstance(models, dict) else {task: models for task in models.tasks}
    )
    tasks = served_tasks(
        by_task,
        most_tokens=settings.get("most_tokens", 64),
        truncate=settings.get("truncate", False),
    )
    queue = RequestQueue(
        batch_size=settings.get("batch_size", 32),
        wait=0.005,
        most=settings.get("most", 512),
        **({"answer": settings["answer"]} if "answer" in settings else {}),
    )
    limits = {"most_bytes": settings.get("body", 1 << 16), "seconds": settings.get("seconds", 60.0)}
    service = Service(tasks, queue, **limits, key=settings.get("key"))
    routes = settings["add_routes"](tasks) if "add_routes" in settings else lambda *given: None
    server = uvicorn.Server(uvicorn_settings(service, routes))
    with listen("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            deadline = time.monotonic() + 60
            while not server.started and time.monotonic() < deadline:
                time.sleep(0.005)
            address = f"http://127.0.0.1:{listener.getsockname()[1]}"
            yield Served(address, service, server, thread)
        finally:
            queue.close(at_once=True)
            server.should_exit = True
            thread.join()
            queue.join()


@contextmanager
def started(*words: object) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Start a command that serves on a free port, in a process of its own; yield its address."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-m", "mttl", *map(str, words), "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        assert process.stderr
        for line in process.stderr:
            if found := re.search(r" at (http://[\d.]+:\d+)/", line):
                yield process, found[1]
                break
        else:
            raise AssertionError("the server did not start")
    finally:
        process.kill()
        process.wait()
