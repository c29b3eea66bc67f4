"""Web application: routes, limits and error responses."""

import asyncio
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, TypeVar

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mttl.inference.mixture_name import is_combined
from mttl.inference.predictor import Predictor, combined
from mttl.io.errors import MttlError, TaskError, nearest, raised_as
from mttl.io.reading import parse_json
from mttl.serving.generation_request import GenerationRequest, Piece
from mttl.serving.inference_protocol import InferenceRequest, response_form
from mttl.serving.protocol import (
    ApiError,
    ChatRequest,
    CompletionRequest,
    Reply,
    parse_part,
    parse_request,
)
from mttl.serving.request_queue import RequestQueue, ServerMetrics
from mttl.serving.served_task import ServedTask, conversation

CLIENT_GONE = 499  # status code of proxies
TRUNCATED = "X-Truncated-Tokens"
ROUTES = "/v1/completions, /v1/chat/completions, /v1/models, /models/TASK, /metrics, /health"
Value = TypeVar("Value")
Pieces = asyncio.Queue[tuple[int, Piece] | None]  # None if the client has disconnected


class Measured:
    """Middleware that counts completed requests by task and status.

    A request's state has its start ``began``, and optionally its ``model``, the ``status`` of a
    stream (unknown at its headers), and the ``events`` of a stream, which are closed here.
    """

    def __init__(self, application: ASGIApp, metrics: ServerMetrics) -> None:
        self.application, self.metrics = application, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Process a request, and count it."""
        if scope.get("method") != "POST":
            await self.application(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["began"] = time.monotonic()

        async def noting(message: Message) -> None:
            if "status" in message:
                state.setdefault("status", message["status"])
            await send(message)

        try:
            await self.application(scope, receive, noting)
        except Exception as error:
            state["status"] = CLIENT_GONE if isinstance(error, ClientDisconnect) else 500
            raise
        finally:
            if "events" in state:
                await state["events"].aclose()
            status, seconds = state.get("status", CLIENT_GONE), time.monotonic() - state["began"]
            self.metrics.add_request(state.get("model", ""), status, seconds)


class Service:
    """Handles requests; a ``key``, if given, is required in every request.

    A request body has at most ``most_bytes``, and a request may take ``seconds``.
    """

    def __init__(
        self,
        tasks: dict[str, ServedTask],
        queue: RequestQueue,
        *,
        most_bytes: int,
        seconds: float,
        key: str | None = None,
    ) -> None:
        self.tasks, self.queue, self.most_bytes, self.seconds = tasks, queue, most_bytes, seconds
        # Requests for one mixture or sum share batches.
        self.combinations = lru_cache(64)(self._combination)
        self._key = None if key is None else key.strip()  # key files end with a line break
        self._since = int(time.time())

    async def models(self) -> Response:
        """List the tasks."""
        return JSONResponse({"object": "list", "data": [*map(self._model, self.tasks)]})

    async def model(self, name: str) -> Response:
        """Describe one task."""
        self.task(name)
        return JSONResponse(self._model(name))

    async def health(self) -> Response:
        """Report whether requests are accepted; needs no key."""
        status = "ok" if self.queue.is_open else "closing"
        return JSONResponse({"status": status}, 200 if self.queue.is_open else 503)

    async def metrics(self) -> Response:
        """Return the metrics in Prometheus format."""
        text = self.queue.metrics.text(len(self.queue))
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    def _model(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._since, "owned_by": "mttl"}

    def task(self, name: str) -> ServedTask:
        """Return the task, mixture or sum of logits; raises an `ApiError` for unknown names."""
        if name not in self.tasks:
            if is_combined(name):
                return self.combinations(name)
            problem = f"there is no model '{name}'.{nearest(name, self.tasks)} Models are tasks: "
            problem += ", ".join(self.tasks)
            raise ApiError(404, problem, param="model", code="model_not_found")
        return self.tasks[name]

    def _combination(self, name: str) -> ServedTask:
        """Return a mixture of tasks, or a sum of their logits."""

        def find(task: str) -> tuple[Predictor, str]:
            return (served := self.task(task)).predictor, served.name

        with raised_as(TaskError, f"'{name}'", TaskError):
            predictor, task = combined(name, find)
        return replace(next(iter(self.tasks.values())), name=task, predictor=predictor)

    def _label(self, name: str) -> str:
        """Return the name of a model in metrics."""
        return name if name in self.tasks else f"{name.partition(':')[0]}:"

    async def check_key(self, request: Request) -> None:
        """Raise an `ApiError` if the key is missing or wrong."""
        if self._key is None:
            return
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        right = hmac.compare_digest(given.strip().encode("latin-1"), self._key.encode())
        if not (kind.lower() == "bearer" and right):
            problem = "the API key is missing or wrong; send the header 'Authorization: Bearer KEY'"
            raise ApiError(401, problem, code="invalid_api_key")

    async def answer(
        self, kind: type[CompletionRequest] | type[ChatRequest], request: Request
    ) -> Response:
        """Answer text prompts, or one chat."""
        asked = parse_request(kind, await self.body(request))
        task = await asyncio.to_thread(self.task, asked.model)
        request.state.model = self._label(asked.model)

        def encoded(task: ServedTask, codes: Any) -> tuple[list[list[int]], int]:
            form, name = task.predictor.form, task.name
            if isinstance(asked, CompletionRequest):
                return task.encode(asked.prompt, form.prompt_prefix(name, codes))
            question, prefix = conversation(asked.messages, form, name, codes)
            return task.encode([question], prefix)

        # Tasks whose logits are added have their highest codes.
        read = [(task, asked.control), *((one, None) for one in task.added)]
        each = [await asyncio.to_thread(encoded, *own) for own in read]
        n_lost, (prompts, *added) = sum(lost for _, lost in each), [ids for ids, _ in each]
        pieces, send = arrivals()
        wanted = task.wanted(asked, prompts, send, added)
        self.queue.put(task.predictor, wanted)
        arriving = self.arriving(request, pieces, wanted)
        reply = Reply(
            model=asked.model,
            chat=isinstance(asked, ChatRequest),
            scored=asked.n_logprobs is not None,
            n_prompt_tokens=sum(map(len, prompts)),
        )
        self.queue.metrics.add_tokens(prompt=reply.n_prompt_tokens)
        headers = {TRUNCATED: str(n_lost)} if n_lost else {}
        if asked.stream:
            usage = asked.stream_options is not None and asked.stream_options.include_usage
            events = _events(request, arriving, reply, len(wanted), usage)
            request.state.events, request.state.status = events, CLIENT_GONE  # until the end
            return StreamingResponse(events, media_type="text/event-stream", headers=headers)
        answers = [Piece()] * len(wanted)
        async for place, piece in arriving:
            answers[place] = piece
        return JSONResponse(reply.whole(answers), headers=headers)

    async def classify(self, name: str, request: Request) -> Response:
        """Return the scored answers of a task's head, as the hub's inference API."""
        body = await self.body(request)
        asked = parse_part(InferenceRequest, body)
        task = await asyncio.to_thread(self.task, name)
        request.state.model = self._label(name)
        rows, n_lost = await asyncio.to_thread(task.headed, asked.inputs)
        kind = task.predictor.form.task_heads[task.name].kind
        entries = response_form(kind, asked.parameters)
        self.queue.metrics.add_tokens(prompt=sum(len(row["input_ids"]) for row in rows))
        work = partial(task.predictor.from_heads, rows, scored=True)
        scored = await self.in_model_thread(request, work)
        found = [entries(*pair) for pair in zip(asked.inputs, scored, strict=True)]
        headers = {TRUNCATED: str(n_lost)} if n_lost else {}
        # The hub answers a single text with a list of labels in a list.
        flat = kind != "label" and isinstance(body["inputs"], str)
        return JSONResponse(found[0] if flat else found, headers=headers)

    async def in_model_thread(self, request: Request, work: Callable[[], Value]) -> Value:
        """Return what a function returns in the model's thread, between two batches."""
        found: list[Value | MttlError] = []

        def alone() -> None:
            try:
                found.append(work())
            except MttlError as error:
                found.append(error)

        pieces, send = arrivals()
        wanted = GenerationRequest(
            task_id=0, prompt=(), most_tokens=0, send=partial(send, 0), alone=alone
        )
        self.queue.put(next(iter(self.tasks.values())).predictor, [wanted])
        async for _ in self.arriving(request, pieces, [wanted]):
            pass
        if isinstance(found[0], MttlError):
            raise found[0]
        return found[0]

    async def arriving(
        self, request: Request, pieces: Pieces, wanted: Sequence[GenerationRequest]
    ) -> AsyncIterator[tuple[int, Piece]]:
        """Yield the pieces of answers until all are complete; drop them if the client leaves."""

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            pieces.put_nowait(None)

        watching, n_open = asyncio.ensure_future(watch()), len(wanted)
        ends = request.state.began + self.seconds
        try:
            while n_open:
                try:
                    async with asyncio.timeout(max(ends - time.monotonic(), 0.0)):
                        arrived = await pieces.get()
                except TimeoutError as error:
                    problem = f"the answer took more than {self.seconds:g} seconds; request fewer "
                    problem += "tokens, or try again later"
                    raise ApiError(504, problem, code="timeout") from error
                if arrived is None:
                    raise ClientDisconnect
                place, piece = arrived
                if piece.failed:
                    raise ApiError(500, "the model failed; see the log of the server")
                n_open -= piece.finish is not None
                self.queue.metrics.add_tokens(answer=piece.n_tokens)
                yield place, piece
        finally:
            watching.cancel()
            for row in wanted:
                row.dropped = True

    async def body(self, request: Request) -> dict[str, Any]:
        """Return the JSON parameters of a request."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise ApiError(415, f"the content type must be application/json, not '{kind}'")
        body = bytearray()
        try:
            async with asyncio.timeout(self.seconds):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > self.most_bytes:
                        problem = f"the request has more than {self.most_bytes:,} bytes; send less"
                        raise ApiError(413, problem)
        except TimeoutError as error:
            raise ApiError(408, "the request did not arrive in time; send it again") from error
        return parse_json(bytes(body), "the request", MttlError, dict)


async def _events(
    request: Request,
    arriving: AsyncIterator[tuple[int, Piece]],
    reply: Reply,
    n_answers: int,
    usage: bool,
) -> AsyncIterator[str]:
    n_tokens = 0
    try:
        for index in range(n_answers if reply.chat else 0):
            yield _event(reply.part(index, Piece(), role="assistant"))
        async for place, piece in arriving:
            n_tokens += piece.n_tokens
            yield _event(reply.part(place, piece))
        if usage:
            yield _event(reply.counts(n_tokens))
        yield "data: [DONE]\n\n"
        request.state.status = 200
    except ApiError as api_error:  # the headers are already sent
        request.state.status = api_error.status
        yield _event(api_error.body)
    except ClientDisconnect:
        pass
    finally:
        await arriving.aclose()  # type: ignore[attr-defined]


def arrivals() -> tuple[Pieces, Callable[[int, Piece], None]]:
    """Return a queue for pieces of answers, and a thread-safe function that adds to it."""
    loop, pieces = asyncio.get_running_loop(), Pieces()

    def send(place: int, piece: Piece) -> None:
        with suppress(RuntimeError):  # the server has stopped, and its loop is closed
            loop.call_soon_threadsafe(pieces.put_nowait, (place, piece))

    return pieces, send


def make_application(
    service: Service, add_routes: Callable[[Service, FastAPI], object] = lambda *given: None
) -> FastAPI:
    """Return the web application."""
    application = FastAPI(title="mttl", openapi_url=None)
    application.add_middleware(Measured, metrics=service.queue.metrics)
    guarded = APIRouter(dependencies=[Depends(service.check_key)])

    guarded.post("/v1/completions")(partial(service.answer, CompletionRequest))
    guarded.post("/v1/chat/completions")(partial(service.answer, ChatRequest))
    guarded.post("/models/{name:path}")(service.classify)
    guarded.get("/v1/models")(service.models)
    guarded.get("/v1/models/{name:path}")(service.model)
    guarded.get("/metrics")(service.metrics)
    application.include_router(guarded)
    application.get("/health")(service.health)
    add_routes(service, application)

    async def refuse(request: Request, error: Exception) -> Response:
        headers = None
        if isinstance(error, ClientDisconnect):
            return Response(status_code=CLIENT_GONE)
        if isinstance(error, HTTPException):
            message = f"{request.method} {request.url.path}: {error.detail}; routes: {ROUTES}"
            error, headers = ApiError(error.status_code, message), error.headers
        elif not isinstance(error, MttlError):
            error = ApiError(500, "internal error; see the log of the server")
        elif not isinstance(error, ApiError):
            error = ApiError(400, str(error))
        return JSONResponse(error.body, error.status, headers=headers or error.headers)

    for kind in (MttlError, HTTPException, ClientDisconnect, Exception):
        application.add_exception_handler(kind, refuse)
    return application


def _event(part: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(part, ensure_ascii=False)}\n\n"
