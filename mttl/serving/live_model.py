"""What the served page of a run asks its model: an answer of a task, or of mixtures of its skills.

A mixture is one routing row for every group of layers. Skills are numbered as the page numbers
them: matched across the groups of layers.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from mttl.analysis.token_record import quoted
from mttl.data.collate import pad, pad_id_of, padded_inputs
from mttl.data.encode import TextEncoder
from mttl.inference.predictor import Predictor
from mttl.models.teacher_forcing import forced_inputs
from mttl.routing.task.fixed import GivenRows
from mttl.serving.protocol import ApiError, Part, Text
from mttl.serving.served_task import ServedTask
from mttl.skills.attention import AttendedInventory
from mttl.skills.skilled_model import SkilledModel


class LiveRequest(Part):
    """A question of the page, in the prompt form of a task, and by default with its weights.

    Attributes:
        tasks: Shares of tasks in a mixture of routing weights.
        skills: A weight for every skill.
        start: The task whose routing weights `skills` changes; by default all are replaced.
    """

    task: Text
    text: str
    tasks: dict[Text, Annotated[float, Field(ge=0)]] | None = None
    skills: list[float] | None = None
    start: Text | None = None


class LiveModel:
    """Answers the page; ``pairs`` are the skills of every group of layers in the page's order."""

    def __init__(self, tasks: Mapping[str, ServedTask], pairs: Any) -> None:
        self.tasks = tasks
        self._pairs = torch.as_tensor(pairs)
        self._models: dict[int, SkilledModel] = {}  # with given rows, by their predictor
        self._rows = {  # of every model that has some, (G, T, H, K)
            id(task.predictor): task.predictor.model.router.matrix().detach()
            for task in tasks.values()
            if not self._unmixed(task.predictor)
        }

    def _unmixed(self, predictor: Predictor) -> str:
        """Tell why rows of a model cannot be mixed; nothing if they can."""
        model, router = predictor.model, predictor.model.router
        if not router.n_groups:
            return "The run routes tokens only: its tasks have no rows that could be mixed."
        if "prompts" in router.seen:
            return "The router reads every prompt: tasks have no rows that could be mixed."
        if any(isinstance(x.inventory, AttendedInventory) for x in model.skilled_layers().values()):
            return "Every token attends to the skills: tasks have no rows that could be mixed."
        if (router.n_groups * router.n_heads, router.n_skills) != tuple(self._pairs.shape):
            return "The router has other groups of layers, or other skills, than the page shows."
        return ""

    def facts(self) -> dict[str, Any]:
        """Return what the page has to know."""
        return {"tasks": [*map(self._facts, self.tasks.values())]}

    def _facts(self, task: ServedTask) -> dict[str, Any]:
        predictor, name = task.predictor, task.name
        rows = self._rows.get(id(predictor))
        own = None if rows is None else self._row(task, name)
        return {
            "name": name,
            "prompt_prefix": task.form.prompt_prefix(name).text,
            "options": task.form.task_options.get(name, []),
            "unmixed": self._unmixed(predictor),
            "row": [] if own is None else self._shown(own).tolist(),
            "mixes": [] if rows is None else list(predictor.tasks),
            "routesTokens": predictor.model.routes_tokens,
        }

    def row(self, request: LiveRequest) -> Float[Tensor, "G H K"] | None:
        """Return the mixture that a request wants, None for the task's own row."""
        task = self.tasks[request.task]
        if request.tasks is None and request.skills is None:
            return None
        if reason := self._unmixed(task.predictor):
            raise ApiError(400, f"{reason} Let the task's own skills answer")
        if request.tasks is not None:
            total = sum(request.tasks.values())
            if not total:
                raise ApiError(400, "all shares of tasks are 0; one of them must be above it")
            rows = [share / total * self._row(task, x) for x, share in request.tasks.items()]
            return torch.stack(rows).sum(0)
        weights = request.skills or []
        n_skills = self._pairs.shape[1]
        if len(weights) != n_skills:
            raise ApiError(
                400,
                f"{len(weights)} weights are given; the run has {n_skills} skills, so give as many",
            )
        own = self._rows[id(task.predictor)]
        start = self._row(task, request.start) if request.start else torch.zeros_like(own[:, 0])
        wanted, pairs = own.new_tensor(weights), self._pairs.to(own.device)
        change = (wanted - self._shown(start)).expand_as(pairs)
        return start + torch.zeros_like(change).scatter(1, pairs, change).view_as(start)

    def _row(self, task: ServedTask, other: str) -> Float[Tensor, "G H K"]:
        predictor = task.predictor
        if other not in predictor.tasks:
            raise ApiError(
                400,
                f"'{other}' cannot be mixed into '{task.name}': rows of one model can be, and this "
                f"one has {', '.join(predictor.tasks)}",
            )
        return self._rows[id(predictor)][:, predictor.tasks.index(other)]

    def _shown(self, row: Float[Tensor, "G H K"]) -> Float[Tensor, "K"]:
        """Return the mean over groups of layers, whose skills are matched."""
        return row.flatten(0, 1).gather(1, self._pairs.to(row.device)).mean(0)

    def answer(
        self, task: ServedTask, text: str, row: Float[Tensor, "G H K"] | None
    ) -> dict[str, Any]:
        """Answer a question with a mixture or the task's routing weights, in the model's thread."""
        predictor = task.predictor if row is None else self._mixed(task, row)
        answer = predictor.predict(task.name, [text])[0]
        found: dict[str, Any] = {"answer": answer, "read": task.form.text(task.name, text)}
        if predictor.model.routes_tokens:
            found["tokens"] = token_experts(predictor, task.encoder, task.name, text, answer)
        return found

    def _mixed(self, task: ServedTask, row: Float[Tensor, "G H K"]) -> Predictor:
        """Return the model with a row in its router's place."""
        predictor = task.predictor
        if id(predictor) not in self._models:
            model = predictor.model
            given = GivenRows(row[:, None])
            self._models[id(predictor)] = SkilledModel(model.backbone, given, model.slot)
        model = self._models[id(predictor)]
        model.router.rows.copy_(row[:, None])  # type: ignore[operator, union-attr]
        return replace(predictor, model=model, tasks=(task.name,))


@torch.no_grad()
def token_experts(
    predictor: Predictor, encoder: TextEncoder, task: str, text: str, answer: str
) -> dict[str, Any]:
    """Return the tokens of a question and of its answer, and the experts that took each.

    The model reads the answer once more, as it reads right answers in training, without its end.

    Returns:
        ``prompt`` and ``answer``, texts of tokens; and ``layers``, each with its ``name``, its
        number of ``experts``, and what tokens ``chose``: a list of experts, the preferred one first
        where the router has one, for every token of the prompt and then of the answer.
    """
    form, model = predictor.form, predictor.model
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
    with (
        predictor.precision.forward_context(),
        model.slot.use(model.route(task_ids, inputs=inputs)) as routing,
    ):
        model.backbone(**inputs, use_cache=False)
    layers = []
    for record in routing.records:
        # A decoder of its own reads a start token, and then the answer.
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
