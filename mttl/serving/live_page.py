"""Page of a run with live answers of tasks, or of mixtures of skills.

A mixture has routing weights for every group of layers. Skills are numbered as on the page: matched
across the groups.
"""

import asyncio
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import torch
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from mttl.analysis.token_record import quoted
from mttl.assembly.load_tasks import load_tasks
from mttl.data.collate import pad, pad_id_of, padded_inputs
from mttl.inference.predictor import Predictor
from mttl.io.errors import MttlError
from mttl.models.teacher_forcing import forced_inputs
from mttl.routing.task.fixed import GivenRows
from mttl.serving.application import Service
from mttl.serving.protocol import ApiError, Part, Text, parse_part
from mttl.serving.request_queue import RequestQueue
from mttl.serving.run_server import LOCAL, answer_requests, listen, served_tasks
from mttl.serving.served_task import ServedTask

# The page is self-contained and connects only to this server.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; img-src data:; connect-src 'self'"
}


class LiveRequest(Part):
    """A query of the page, in the prompt form of a task, by default with its weights."""

    task: Text
    text: str
    tasks: dict[Text, Annotated[float, Field(ge=0)]] | None = None  # fractions of a mixture
    skills: list[float] | None = None  # a weight per skill
    start: Text | None = None  # task whose weights `skills` modifies; by default all are replaced


class LiveModel:
    """Answers queries of the page; ``pairs`` are each group's skills in the page's order."""

    def __init__(self, tasks: Mapping[str, ServedTask], pairs: Any) -> None:
        self.tasks = tasks
        self._pairs = torch.as_tensor(pairs)
        self._rows = {  # routing weights by predictor, (G, T, H, K)
            id(task.predictor): task.predictor.model.router.matrix().detach()
            for task in tasks.values()
            if not self._unmixed(task.predictor)
        }

    def _unmixed(self, predictor: Predictor) -> str:
        """Return the reason why routing weights cannot be mixed; empty if they can."""
        router = predictor.model.router
        if predictor.unmixed:
            return predictor.unmixed
        if (router.n_groups * router.n_heads, router.n_skills) != tuple(self._pairs.shape):
            return "The router's groups or skills differ from those on the page."
        return ""

    def facts(self) -> dict[str, Any]:
        """Return the data about tasks for the page."""
        return {"tasks": [*map(self._facts, self.tasks.values())]}

    def _facts(self, task: ServedTask) -> dict[str, Any]:
        predictor, name = task.predictor, task.name
        mixed = id(predictor) in self._rows
        return {
            "name": name,
            "prompt_prefix": predictor.form.prompt_prefix(name).text,
            "options": predictor.form.task_options.get(name, []),
            "unmixed": self._unmixed(predictor),
            "row": self._shown(self._row(task, name)).tolist() if mixed else [],
            "mixes": list(predictor.tasks) if mixed else [],
            "routesTokens": predictor.model.routes_tokens,
        }

    def row(self, request: LiveRequest) -> Float[Tensor, "G H K"] | None:
        """Return the requested mixture, or None for the task's own routing weights."""
        task = self.tasks[request.task]
        if request.tasks is None and request.skills is None:
            return None
        if reason := self._unmixed(task.predictor):
            raise ApiError(400, f"{reason} Use the task's own weights")
        if request.tasks is not None:
            total = sum(request.tasks.values())
            if not total:
                raise ApiError(400, "all fractions of tasks are 0; set at least one above 0")
            rows = [share / total * self._row(task, x) for x, share in request.tasks.items()]
            return torch.stack(rows).sum(0)
        weights = request.skills or []
        n_skills = self._pairs.shape[1]
        if len(weights) != n_skills:
            problem = f"there are {len(weights)} weights, but {n_skills} skills; send one per skill"
            raise ApiError(400, problem)
        own = self._rows[id(task.predictor)]
        start = self._row(task, request.start) if request.start else torch.zeros_like(own[:, 0])
        wanted, pairs = own.new_tensor(weights), self._pairs.to(own.device)
        change = (wanted - self._shown(start)).expand_as(pairs)
        return start + torch.zeros_like(change).scatter(1, pairs, change).view_as(start)

    def _row(self, task: ServedTask, other: str) -> Float[Tensor, "G H K"]:
        predictor = task.predictor
        if other not in predictor.tasks:
            problem = f"'{other}' cannot be mixed into '{task.name}', only tasks of one model: "
            raise ApiError(400, problem + ", ".join(predictor.tasks))
        return self._rows[id(predictor)][:, predictor.tasks.index(other)]

    def _shown(self, row: Float[Tensor, "G H K"]) -> Float[Tensor, "K"]:
        """Return the mean over groups of layers with matched skills."""
        return row.flatten(0, 1).gather(1, self._pairs.to(row.device)).mean(0)

    def answer(
        self, task: ServedTask, text: str, row: Float[Tensor, "G H K"] | None
    ) -> dict[str, Any]:
        """Return the answer with a mixture or the task's weights; runs in the model's thread."""
        predictor = task.predictor
        if row is not None:
            model = predictor.model.with_router(GivenRows(row[:, None]))
            predictor = replace(predictor, model=model, tasks=(task.name,))
        answer = predictor.predict(task.name, [text])[0]
        found: dict[str, Any] = {"answer": answer, "read": predictor.form.text(task.name, text)}
        if predictor.model.routes_tokens:
            found["tokens"] = token_experts(predictor, task.name, text, answer)
        return found


@torch.no_grad()
def token_experts(predictor: Predictor, task: str, text: str, answer: str) -> dict[str, Any]:
    """Return the tokens of an input and its answer, and the experts of each token.

    The answer is run through the model again by teacher forcing, without its end. Each layer has
    its name, number of experts, and the experts of each token, in order of preference if any.
    """
    form, model, encoder = predictor.form, predictor.model, predictor.encoder
    (prompt,) = encoder.prompts([form.text(task, text)], [form.prompt_prefix(task)])
    read = encoder.answers([answer])[0][:-1]
    tokenizer: Any = predictor.tokenizer
    if predictor.decoder_only:
        inputs = padded_inputs([[*prompt, *read]], pad_id_of(tokenizer))
    else:
        batch = padded_inputs([prompt], pad_id_of(tokenizer))
        labels = pad([[*read, tokenizer.eos_token_id]], pad_id_of(tokenizer))
        inputs = forced_inputs(model.backbone, {**batch, "labels": labels})
    inputs = {name: ids.to(predictor.device) for name, ids in inputs.items()}
    task_ids = predictor.task_ids([task]).to(predictor.device)
    with predictor.autocast(), model.slot.use(model.route(task_ids, inputs=inputs)) as routing:
        model.backbone(**inputs, use_cache=False)
    layers = []
    for record in routing.records:
        # A separate decoder reads a start token before the answer.
        apart = record.stack == "decoder" and "decoder_input_ids" in inputs
        first = len(prompt) - 1 if apart else 0
        chose: list[list[int]] = [[] for _ in (*prompt, *read)]
        kept = slice(None) if record.kept is None else record.kept
        pairs = zip(record.tokens[kept].tolist(), record.experts[kept].tolist(), strict=True)
        for token, expert in pairs:
            if token or not apart:
                chose[first + token].append(expert)
        layers.append({"name": record.layer, "experts": record.n_experts, "chose": chose})
    names = [[quoted(x) for x in tokenizer.convert_ids_to_tokens(ids)] for ids in (prompt, read)]
    return {"prompt": names[0], "answer": names[1], "layers": layers}


def add_page(page: str, model: LiveModel | None, service: Service, application: FastAPI) -> None:
    """Add the page at ``/`` and its queries at ``/live`` to an application.

    Without a model there are no tasks, and the page shows the problem.
    """

    @application.get("/")
    async def show() -> Response:
        return HTMLResponse(page, headers=HEADERS)

    @application.post("/live")
    async def live(request: Request) -> Response:
        asked = parse_part(LiveRequest, await service.body(request))
        task = service.task(asked.task)
        request.state.model = task.name
        assert model is not None  # otherwise there is no task
        await asyncio.to_thread(task.encode, [asked.text])  # rejects empty and long inputs
        answer = partial(model.answer, task, asked.text, model.row(asked))
        return JSONResponse(await service.in_model_thread(request, answer))


def serve_page(
    options: Namespace, pairs: Any, make_page: Callable[[Mapping[str, Any]], str]
) -> None:
    """Serve the page of a run until Ctrl-C or SIGTERM, together with the routes of `serve`.

    The options are those of `mttl explore`. ``pairs`` are each group's skills in the page's order;
    ``make_page`` returns the page from the model's data.
    """
    (run,) = options.runs
    with listen(options.host, options.port) as listener:
        tasks: dict[str, ServedTask] = {}
        model = None
        try:
            models, _ = load_tasks(run, options.adapted, options.backbone)
            for built in models.values():
                built.require(generates="mttl explore --serve", answers="mttl explore --serve")
            tasks = served_tasks(models, most_tokens=1024, truncate=False)
            model = LiveModel(tasks, pairs)
            facts = model.facts()
        except MttlError as error:
            facts = {"problem": f"The run cannot answer: {error}"}
        warnings = [facts["problem"]] if "problem" in facts else []
        if options.host not in LOCAL:
            warnings.append("warning: everyone who can reach this address can send requests")
        queue = RequestQueue(batch_size=8, wait=0, most=64)
        answer_requests(
            listener,
            Service(tasks, queue, most_bytes=1 << 20, seconds=120),
            lambda place: [f"exploring '{run}' at {place}", *warnings],
            partial(add_page, make_page(facts), model),
        )
