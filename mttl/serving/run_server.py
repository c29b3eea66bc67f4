"""HTTP server: loads tasks, listens, and shuts down on a signal."""

import os
import socket
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from mttl.assembly.load_tasks import load_tasks
from mttl.inference.predictor import Predictor
from mttl.io.errors import ConfigError
from mttl.routing.task.fixed import GivenRows
from mttl.runtime.command import make_console
from mttl.runtime.stop_signals import StopRequest, handling
from mttl.serving.application import TRUNCATED, Service, make_application
from mttl.serving.request_queue import RequestQueue
from mttl.serving.runtime_tasks import add_loading
from mttl.serving.served_task import ServedTask

KEY_VARIABLE = "MTTL_API_KEY"
LOCAL = ("127.0.0.1", "localhost", "::1")


def serve(options: Namespace) -> None:
    """Serve with the options of `mttl serve` until Ctrl-C or SIGTERM.

    Accepted requests are answered first; KeyboardInterrupt if a second signal prevents it.
    """
    key = os.environ.get(KEY_VARIABLE) if options.api_key is None else options.api_key
    if key is not None and not key.strip():
        raise ConfigError(f"--api-key and {KEY_VARIABLE} must not be empty; set or remove them")
    if options.load_from is not None and not Path(options.load_from).is_dir():
        raise ConfigError(f"--load-from '{options.load_from}' is not a folder")
    with listen(options.host, options.port) as listener:
        models, _ = load_tasks(options.source, options.adapted, options.backbone)
        for built in models.values():
            built.require(answers="mttl serve")
        tasks = served_tasks(models, most_tokens=options.most_tokens, truncate=options.truncate)
        warning = "warning: everyone who can reach this address can send requests; see --api-key"
        warnings = [warning] * (options.host not in LOCAL and key is None)
        version = "models" if any(built.model.heads for built in models.values()) else "v1"
        size, wait = options.batch_size, options.wait / 1000
        queue = RequestQueue(batch_size=size, wait=wait, most=options.most_waiting)

        def add_routes(*application: Any) -> None:
            allow_origins(options.cors, *application)
            if options.load_from is not None:
                places = Path(options.load_from), options.source, options.backbone
                add_loading(*places, *application)

        limits = {"most_bytes": options.most_bytes, "seconds": options.timeout}
        answer_requests(
            listener,
            Service(tasks, queue, **limits, key=key),
            lambda place: [f"serving {len(tasks)} tasks at {place}{version}", *warnings],
            add_routes,
        )


def allow_origins(origins: Sequence[str], service: Service, application: FastAPI) -> None:
    """Allow browser requests from other origins (CORS)."""
    if origins:
        allowed = {"allow_origins": origins, "allow_methods": ["*"], "allow_headers": ["*"]}
        application.add_middleware(CORSMiddleware, **allowed, expose_headers=[TRUNCATED])


def answer_requests(
    listener: socket.socket,
    service: Service,
    notices: Callable[[str], Sequence[str]],
    add_routes: Callable[[Service, FastAPI], object],
) -> None:
    """Run the server; ``notices`` returns the lines to print first, given the address."""
    server = Server(uvicorn_settings(service, add_routes), service.queue)
    host, port = listener.getsockname()[:2]
    first, *others = notices(f"http://{f'[{host}]' if ':' in host else host}:{port}/")
    lines = [f"{first} (stop with Ctrl-C or SIGTERM)", *others]
    make_console(stderr=True).print("\n".join(lines), markup=False)
    server.run(sockets=[listener])
    listener.close()
    service.queue.close(at_once=server.force_exit)
    service.queue.join()
    if server.force_exit:
        raise KeyboardInterrupt


def served_tasks(
    models: Mapping[str, Predictor], *, most_tokens: int, truncate: bool
) -> dict[str, ServedTask]:
    """Return the tasks of models; models that differ only in routing weights are merged."""
    models = share_backbone(models)
    for name, predictor in models.items():
        predictor.form.prompt_prefix(name)  # raises if a description is missing
    return {name: ServedTask(name, own, most_tokens, truncate) for name, own in models.items()}


def uvicorn_settings(
    service: Service, add_routes: Callable[[Service, FastAPI], object]
) -> uvicorn.Config:
    """Return uvicorn's settings; on shutdown, clients that do not read are not waited for."""
    return uvicorn.Config(
        make_application(service, add_routes),
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",  # avoids a traceback on immediate shutdown
        timeout_graceful_shutdown=int(service.seconds) + 1,
    )


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        where = f"--host {host} --port {port}"
        raise ConfigError(f"cannot listen at {where}: {error}. Choose another port") from error


class Server(uvicorn.Server):
    """Uvicorn server that closes the queue and handles signals like other commands."""

    def __init__(self, config: uvicorn.Config, queue: RequestQueue) -> None:
        super().__init__(config)
        self._queue = queue
        notice = "finishing accepted requests; press again to stop immediately"
        self._asked = StopRequest(notice, self._at_once)

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        """Handle signals without uvicorn's raising them again afterwards."""
        return handling(self._asked)  # type: ignore[return-value]

    async def on_tick(self, counter: int) -> bool:
        """Return whether to shut down."""
        self.should_exit = self.should_exit or self._asked.received is not None
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Reject new requests, and finish accepted ones."""
        self._queue.close()
        await super().shutdown(sockets)

    def _at_once(self, number: int, frame: FrameType | None) -> None:
        self.force_exit = True


def share_backbone(predictors: Mapping[str, Predictor]) -> dict[str, Predictor]:
    """Return the model of every task, with as few different models as possible.

    Equal tensors of the models already share memory (`mttl.assembly.load_tasks`).
    """
    groups: dict[Any, dict[str, Predictor]] = {}
    for name, predictor in predictors.items():
        groups.setdefault(_all_but_rows(predictor), {})[name] = predictor
    joined: dict[str, Predictor] = {}
    for group in groups.values():
        several = len(set(map(id, group.values()))) > 1
        joined |= dict.fromkeys(group, _join(group)) if several else group
    return {name: joined[name] for name in predictors}


def _all_but_rows(predictor: Predictor) -> Any:
    """Return a key that is equal for models that can be merged."""
    model, router = predictor.model, predictor.model.router
    # Token routers, routers that read the text and heads use more than routing weights.
    if model.routes_tokens or router.reads_text or model.heads is not None:
        return id(predictor)
    form = predictor.form.model_copy(update={"task_descriptions": {}})
    tensors = model.backbone.state_dict(keep_vars=True)
    places = tuple((name, tensor.data_ptr()) for name, tensor in tensors.items())
    search, sizes = sorted(predictor.search.items()), (router.n_groups, router.n_heads)
    common = places, form.model_dump_json(), *search, predictor.mixed, *sizes, router.n_skills
    known = torch.arange(router.n_tasks, device=predictor.device)
    with torch.no_grad():
        by_rows = torch.equal(model.eval().router.mix(known), router.matrix())
    return common if by_rows else id(predictor)


def _join(group: Mapping[str, Predictor]) -> Predictor:
    first = next(iter(group.values()))
    rows = [
        predictor.model.router.matrix()[:, predictor.task_ids([name]).to(predictor.device)]
        for name, predictor in group.items()
    ]
    known = {name: predictor.form.task_descriptions for name, predictor in group.items()}
    descriptions = {name: own[name] for name, own in known.items() if name in own}
    return replace(
        first,
        model=first.model.with_router(GivenRows(torch.cat(rows, dim=1))),
        tasks=tuple(group),
        form=first.form.model_copy(update={"task_descriptions": descriptions}),
    )
