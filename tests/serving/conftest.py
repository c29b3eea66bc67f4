"""Trained runs, and a server of one in a thread of the test's process."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvicorn

import mttl
from helpers.command import train
from helpers.gyms import TINY_LLAMA, TINY_T5, write_config, write_gym
from mttl.build.model import Built
from mttl.serving.application import Limits, Service, make_application
from mttl.serving.measures import Measures
from mttl.serving.request_queue import RequestQueue
from mttl.serving.run_server import listen, served_tasks

# Random weights that are large: answers depend on the question without any training.
LARGE = {"initial_scale": {"*": 3.0}}
BACKBONES = {"t5": {**TINY_T5, **LARGE}, "llama": {**TINY_LLAMA, **LARGE}}


def make_run(root: Path, backbone: dict, **sections: dict) -> Path:
    gym = write_gym(root / "gym")
    config = write_config(root / "tiny.yaml", gym, backbone=backbone, **sections)
    return train(config, "source", "trainer.max_steps=1", "data.validation=none").path


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: make_run(tmp_path_factory.mktemp(kind), BACKBONES[kind]) for kind in BACKBONES}


@pytest.fixture(scope="session")
def beams(tmp_path_factory: pytest.TempPathFactory) -> Path:
    searches = {"num_beams": 3, "length_penalty": 0.5}
    backbone = {**TINY_T5, "initial_scale": {"*": 1.5}}  # less sure, so that beams find more
    return make_run(tmp_path_factory.mktemp("beams"), backbone, generation=searches)


@pytest.fixture(params=list(BACKBONES))
def folder(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Path:
    return folders[request.param]


@pytest.fixture
def run(folder: Path) -> Built:
    return mttl.load(folder)


@dataclass
class Served:
    address: str
    service: Service
    server: uvicorn.Server


Serve = Callable[..., "contextmanager[Served]"]


@pytest.fixture
def serve() -> Any:
    """Serve models in a thread: ``with serve({name: predictor}, **settings) as served``."""

    @contextmanager
    def _serve(models: Any, **settings: Any) -> Iterator[Served]:
        tasks = served_tasks(
            models if isinstance(models, dict) else dict.fromkeys(models.tasks, models),
            most_tokens=settings.get("most_tokens", 64),
            truncate=settings.get("truncate", False),
        )
        measures = Measures()
        queue = RequestQueue(
            batch_size=settings.get("batch_size", 32),
            wait=0.005,
            most=settings.get("most", 512),
            on_batch=lambda batch: measures.add_batch(len(batch)),
            **({"answer": settings["answer"]} if "answer" in settings else {}),
        )
        limits = Limits(body=settings.get("body", 1 << 16), seconds=settings.get("seconds", 60.0))
        service = Service(tasks, queue, limits, measures, settings.get("key"))
        config = uvicorn.Config(make_application(service), log_config=None, log_level="critical")
        server = uvicorn.Server(config)
        with listen("127.0.0.1", 0) as listener:
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
            thread.start()
            try:
                deadline = time.monotonic() + 60
                while not server.started and time.monotonic() < deadline:
                    time.sleep(0.005)
                yield Served(f"http://127.0.0.1:{listener.getsockname()[1]}", service, server)
            finally:
                queue.close(at_once=True)
                server.should_exit = True
                thread.join()
                queue.join()

    return _serve
