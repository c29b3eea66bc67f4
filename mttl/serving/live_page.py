"""The page of a run with the run behind it."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse

from mttl.assembly.load_tasks import load_tasks
from mttl.io.errors import MttlError
from mttl.serving.application import Limits, Service, arrivals
from mttl.serving.generation_request import GenerationRequest
from mttl.serving.live_model import LiveModel, LiveRequest
from mttl.serving.protocol import parse_part
from mttl.serving.run_server import LOCAL, answer_requests, listen, served_tasks
from mttl.serving.served_task import ServedTask

# The page holds all that it shows, and asks nobody but this server.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; img-src data:; connect-src 'self'"
}


class LivePage:
    """Sends a page, and answers its requests; without a model, the page reports the problem."""

    def __init__(self, page: str, model: LiveModel | None) -> None:
        self.page, self.model = page, model

    def add_to(self, service: Service, application: FastAPI) -> None:
        """Let an application answer ``/`` and ``/live``."""

        @application.get("/")
        async def page() -> Response:
            return HTMLResponse(self.page, headers=HEADERS)

        @application.post("/live")
        async def live(request: Request) -> Response:
            return await self._answer(service, request)

    async def _answer(self, service: Service, request: Request) -> Response:
        ends = time.monotonic() + service.limits.seconds
        asked = parse_part(LiveRequest, await service.body(request))
        task = service.task(asked.task)
        request.state.model = task.name
        assert self.model is not None  # else there is no task
        await asyncio.to_thread(task.encode, [asked.text])  # refuses what is empty or too long
        row = self.model.row(asked)
        answer = partial(self.model.answer, task, asked.text, row)
        found: dict[str, Any] = {}
        pieces, send = arrivals()
        wanted = GenerationRequest(
            task_id=0,
            prompt=(),
            most_tokens=0,
            send=partial(send, 0),
            alone=lambda: found.update(answer()),
        )
        service.queue.put(task.predictor, [wanted])
        async for _ in service.arriving(request, pieces, [wanted], ends):
            pass
        return JSONResponse(found)


def serve_page(
    run: str,
    adapted: Sequence[str],
    backbone: str | None,
    *,
    host: str,
    port: int,
    pairs: Any,
    make_page: Callable[[Mapping[str, Any]], str],
) -> None:
    """Serve the page of a run until Ctrl-C or SIGTERM; its tasks are served as by `serve`, too.

    Port 0 takes a free one. ``pairs`` are the skills of every group of layers in the page's order;
    ``make_page`` returns the page, given the facts of the model.

    Raises:
        ConfigError: If the address is not this machine's, or taken.
    """
    with listen(host, port) as listener:
        tasks: dict[str, ServedTask] = {}
        model = None
        try:
            models, _ = load_tasks(run, adapted, backbone)
            tasks = served_tasks(models, most_tokens=1024, truncate=False)
            model = LiveModel(tasks, pairs)
            facts = model.facts()
        except MttlError as error:
            facts = {"problem": f"The run cannot answer: {error}"}
        warnings = [facts["problem"]] if "problem" in facts else []
        if host not in LOCAL:
            warnings.append("warning: anybody who reaches this address may ask")
        answer_requests(
            listener,
            tasks,
            lambda place: [f"exploring '{run}' at {place}", *warnings],
            limits=Limits(body=1 << 20, seconds=120),
            batch_size=8,
            wait=0,
            most_waiting=64,
            add_routes=LivePage(make_page(facts), model).add_to,
        )
