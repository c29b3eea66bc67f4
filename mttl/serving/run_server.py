"""The server: it loads the tasks, listens, and ends when it is asked to."""

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import FrameType

import uvicorn
from fastapi import FastAPI

from mttl.assembly.load_tasks import load_tasks
from mttl.errors import ConfigError
from mttl.inference.predictor import Predictor
from mttl.runtime.command import make_console
from mttl.runtime.stop_signals import StopRequest, handling
from mttl.serving.application import Limits, Service, allow_origins, make_application
from mttl.serving.metrics import Measures
from mttl.serving.request_queue import RequestQueue
from mttl.serving.served_task import ServedTask
from mttl.serving.shared_backbone import join_rows

KEY_VARIABLE = "MTTL_API_KEY"
LOCAL = ("127.0.0.1", "localhost", "::1")


def serve(
    *,
    source: str | None,
    adapted: Sequence[str],
    backbone: str | None,
    host: str,
    port: int,
    key: str | None,
    limits: Limits,
    batch_size: int,
    wait: float,
    most_waiting: int,
    most_tokens: int,
    truncate: bool,
    cors: Sequence[str] = (),
) -> None:
    """Serve until Ctrl-C or SIGTERM; what was accepted is answered first.

    Args:
        source: The folder of a run.
        adapted: Folders of tasks that were adapted from it.
        backbone: Where a pretrained backbone is now.
        host: The address to listen at.
        port: The port; 0 takes a free one.
        key: That requests have to name; else the one in the environment, if any.
        limits: Of a request.
        batch_size: The most answers of a batch.
        wait: Seconds that an answer waits for others while the model is idle.
        most_waiting: The most answers that wait.
        most_tokens: Of an answer that a request asks for.
        truncate: Cut questions that are too long as in training; else they are refused.
        cors: Origins whose pages may ask; ``*`` allows all.

    Raises:
        ConfigError: If nothing can be served, or not there.
        KeyboardInterrupt: If it was asked twice to end, and some requests were not answered.
    """
    key = os.environ.get(KEY_VARIABLE) if key is None else key
    if key is not None and not key.strip():
        raise ConfigError(f"--api-key and {KEY_VARIABLE} must not be empty: leave them out")
    with listen(host, port) as listener:
        models, _ = load_tasks(source, adapted, backbone)
        tasks = served_tasks(models, most_tokens=most_tokens, truncate=truncate)
        warn = host not in LOCAL and key is None
        warning = "warning: anybody who reaches this address may ask; see --api-key"
        answer_requests(
            listener,
            tasks,
            lambda place: [f"serving {len(tasks)} tasks at {place}v1", *[warning] * warn],
            key=key,
            limits=limits,
            batch_size=batch_size,
            wait=wait,
            most_waiting=most_waiting,
            add_routes=lambda _, application: allow_origins(cors, application) if cors else None,
        )


def answer_requests(
    listener: socket.socket,
    tasks: Mapping[str, ServedTask],
    notices: Callable[[str], Sequence[str]],
    *,
    limits: Limits,
    batch_size: int,
    wait: float,
    most_waiting: int,
    key: str | None = None,
    add_routes: Callable[[Service, FastAPI], object] = lambda service, application: None,
) -> None:
    """Answer until Ctrl-C or SIGTERM; what was accepted is answered first.

    Args:
        listener: Where requests arrive.
        tasks: By name.
        notices: What is printed before, given the address.
        limits: Of a request.
        batch_size: The most answers of a batch.
        wait: Seconds that an answer waits for others while the model is idle.
        most_waiting: The most answers that wait.
        key: That requests have to name.
        add_routes: Adds to the application what else it answers.

    Raises:
        KeyboardInterrupt: If it was asked twice to end, and some requests were not answered.
    """
    measures = Measures()
    queue = RequestQueue(
        batch_size=batch_size,
        wait=wait,
        most=most_waiting,
        on_batch=lambda batch: measures.add_batch(len(batch)),
    )
    service = Service(tasks, queue, limits, measures, key)
    server = Server(uvicorn_settings(service, partial(add_routes, service)), queue)
    host, port = listener.getsockname()[:2]
    first, *others = notices(f"http://{f'[{host}]' if ':' in host else host}:{port}/")
    console = make_console(stderr=True)
    console.print(f"{first} (Ctrl-C or SIGTERM ends)", markup=False)
    for line in others:
        console.print(line, markup=False)
    server.run(sockets=[listener])
    listener.close()
    queue.close(at_once=server.force_exit)
    queue.join()
    if server.force_exit:
        raise KeyboardInterrupt


def served_tasks(
    models: Mapping[str, Predictor], *, most_tokens: int, truncate: bool
) -> dict[str, ServedTask]:
    """Return the tasks of models; those that differ in rows only share one.

    Args:
        models: The model of every task.
        most_tokens: Of an answer.
        truncate: Cut questions that are too long.
    """
    models = join_rows(models)
    encoders = {
        id(predictor): predictor.form.encoder(
            predictor.tokenizer, decoder_only=predictor.decoder_only
        )
        for predictor in models.values()
    }
    for name, predictor in models.items():
        predictor.form.opening(name)  # raises where a description is missing
    return {
        name: ServedTask(name, predictor, encoders[id(predictor)], most_tokens, truncate)
        for name, predictor in models.items()
    }


def uvicorn_settings(
    service: Service, add_routes: Callable[[FastAPI], object] = lambda application: None
) -> uvicorn.Config:
    """Return how uvicorn serves; when it ends, clients that do not read are not waited for.

    Args:
        service: Its limits say how long a request may take.
        add_routes: As for `make_application`.
    """
    return uvicorn.Config(
        make_application(service, add_routes),
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",  # it would show a traceback where the server ends at once
        timeout_graceful_shutdown=int(service.limits.seconds) + 1,
    )


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        ConfigError: If the address is not this machine's, or taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"cannot listen at --host {host} --port {port}: {error}. Choose another port, or end "
            "what uses it"
        ) from error


class Server(uvicorn.Server):
    """Uvicorn's, which ends as the commands here do.

    Args:
        config: Of uvicorn.
        queue: Takes no more once the server ends.
    """

    def __init__(self, config: uvicorn.Config, queue: RequestQueue) -> None:
        super().__init__(config)
        self._queue = queue
        self._asked = StopRequest(
            "finishing what was accepted; the same again ends at once", self._at_once
        )

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        """Note signals; uvicorn would raise them again when it has ended."""
        return handling(self._asked)  # type: ignore[return-value]

    async def on_tick(self, counter: int) -> bool:
        """Tell whether to end."""
        self.should_exit = self.should_exit or self._asked.received is not None
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse what is new, and finish what was accepted."""
        self._queue.close()
        await super().shutdown(sockets)

    def _at_once(self, number: int, frame: FrameType | None) -> None:
        self.force_exit = True
