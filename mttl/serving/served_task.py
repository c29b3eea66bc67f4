"""A served task: conversion of requests to generation requests."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Self

from mttl.data.encode import PromptPrefix
from mttl.data.prompt_form import PromptForm
from mttl.inference.predictor import Predictor
from mttl.io.errors import ConfigError, TaskError
from mttl.serving.generation_request import GenerationRequest, Piece
from mttl.serving.protocol import MOST_ANSWERS, ApiError, ChatRequest, CompletionRequest, Message
from mttl.tasks.dialogue import KNOWLEDGE, Dialogue
from mttl.tasks.filters import squeeze

TOO_LONG = "context_length_exceeded"  # error code of OpenAI


@dataclass(frozen=True)
class ServedTask:
    """A task and its model, which may have other tasks too."""

    name: str
    predictor: Predictor
    most_tokens: int  # largest ``max_tokens``; the training length is always allowed
    truncate: bool  # truncate long inputs as in training; otherwise they are rejected

    @cached_property
    def options(self) -> dict[str, list[int]]:
        """Ids of the options of the task by text; empty if it has none."""
        given = self.predictor.form.task_options.get(self.name)
        return self.predictor.choice_ids(given, self.name) if given else {}

    @property
    def added(self) -> list[Self]:
        """The tasks whose logits are added."""
        return [replace(self, name=task, predictor=run) for run, task, _ in self.predictor.added]

    def encode(
        self, questions: Sequence[str], prefix: PromptPrefix | None = None
    ) -> tuple[list[list[int]], int]:
        """Return the ids of inputs after a prefix, by default the task's, and how many are cut."""
        if self.predictor.model.heads is not None:
            problem = (
                f"'{self.name}' has a head and generates no text; use POST /models/{self.name}"
            )
            raise ApiError(400, problem, param="model")
        _require_text(questions)
        form, lost, encoder = self.predictor.form, [], self.predictor.encoder
        usual = form.prompt_prefix(self.name)
        prefix = prefix or usual
        if prefix[1:] != usual[1:]:  # an encoder keeps every conversation
            tokenizer = self.predictor.tokenizer
            encoder = form.encoder(tokenizer, decoder_only=self.predictor.decoder_only)
        try:
            texts = [prefix.text + question.strip() for question in questions]
            prompts = encoder.prompts(texts, [prefix] * len(texts), lost)
        except ConfigError as error:
            problem = "the messages do not fit the chat template of the run, or its longest input"
            problem += f" ({form.max_input_length} tokens): {error}"
            raise ApiError(400, problem, param="messages") from error
        self._check_lost(lost)
        return prompts, sum(lost)

    def headed(self, texts: Sequence[str]) -> tuple[list[dict[str, Any]], int]:
        """Return the encoded inputs of a head, and the number of truncated tokens."""
        if self.predictor.model.heads is None:
            problem = f"'{self.name}' has no head; use POST /v1/completions"
            raise ApiError(400, problem, param="model")
        _require_text(texts)
        try:
            pairs = self.predictor.headed_rows([self.name] * len(texts), texts)
        except TaskError as error:  # a tree whose text is too long
            raise ApiError(400, str(error), code=TOO_LONG) from error
        self._check_lost(lost := [n_cut for _, n_cut in pairs if n_cut])
        return [row for row, _ in pairs], sum(lost)

    def _check_lost(self, lost: Sequence[int]) -> None:
        if lost and not self.truncate:
            most = self.predictor.form.max_input_length
            problem = (
                f"an input has {most + max(lost)} tokens with its prefix and template; the maximum "
                f"is {most}, as in training. Shorten it, or start mttl serve with --truncate"
            )
            raise ApiError(400, problem, code=TOO_LONG)

    def wanted(
        self,
        request: CompletionRequest | ChatRequest,
        prompts: Sequence[Sequence[int]],
        send: Callable[[int, Piece], object],
        added: Sequence[Sequence[Sequence[int]]] = (),
    ) -> list[GenerationRequest]:
        """Return the requested answers, ``n`` for each input.

        A task with options answers one of them, unless the request samples, asks for
        log-probabilities or has earlier turns. ``send`` receives the pieces of each answer, with
        its index. ``added`` are the prompts of the `added` tasks.
        """
        if (n_wanted := len(prompts) * request.n) > MOST_ANSWERS:
            problem = f"{len(prompts)} inputs with n={request.n} need {n_wanted} answers"
            raise ApiError(400, f"{problem}; the maximum is {MOST_ANSWERS}", param="n")
        asked, several = request.max_tokens, False
        if isinstance(request, ChatRequest):
            asked = asked or request.max_completion_tokens
            several = any(message.role == "assistant" for message in request.messages)
        usual, decoder_only = self.predictor.search["max_new_tokens"], self.predictor.decoder_only
        most_tokens, allowed = asked or usual, max(self.most_tokens, usual)
        runs = [self.predictor, *(one.predictor for one in self.added)]
        configs = [run.model.backbone.config for run in runs]
        known = [getattr(config, "max_position_embeddings", None) for config in configs]
        n_positions = min(filter(None, known), default=None)
        if n_positions is not None:
            n_before = max(len(ids) for own in (prompts, *added) for ids in own)
            n_before = n_before if decoder_only else 0
            allowed = min(allowed, n_positions - n_before)
        if most_tokens > allowed:
            problem = f"max_tokens ({most_tokens}) must be at most {allowed} for this input"
            raise ApiError(400, problem, param="max_tokens", code=TOO_LONG)
        temperature = request.temperature
        if temperature is None:  # OpenAI's default if top_p is given; otherwise the run's search
            temperature = 0.0 if request.top_p is None else 1.0
        generates = temperature > 0 or request.n_logprobs is not None or several or bool(added)
        n_beams = 1 if temperature > 0 else self.predictor.search["num_beams"]
        if n_beams > 1 and request.n_logprobs is not None:
            problem = f"no logprobs for the {n_beams} beams of the run; set a temperature above 0"
            raise ApiError(400, problem, param="logprobs")
        settings = {
            "task_id": int(self.predictor.task_ids([self.name])),
            "most_tokens": most_tokens,
            "n_beams": n_beams,
            "n_positions": n_positions if decoder_only else None,
            "temperature": temperature,
            "top_p": request.top_p or 1.0,
            "stop": tuple(request.stop),
            "n_logprobs": request.n_logprobs,
            "stream": request.stream,
            "options": {} if generates else self.options,
        }
        rows = zip(prompts, *added, strict=True)
        return [
            GenerationRequest(
                prompt=prompt,
                added=others,
                seed=None if request.seed is None else f"{request.seed}/{place}",
                send=partial(send, place),
                **settings,
            )
            for place, (prompt, *others) in enumerate(own for own in rows for _ in range(request.n))
        ]


def _require_text(questions: Sequence[str]) -> None:
    if empty := [str(place) for place, text in enumerate(questions) if not text.strip()]:
        places = f"number {', '.join(empty)} of {len(questions)}, counted from 0"
        raise ApiError(400, f"an input is empty ({places}); every input must contain text")


def conversation(
    messages: Sequence[Message],
    form: PromptForm,
    task: str,
    control: Mapping[str, int] | None = None,
) -> tuple[str, PromptPrefix]:
    """Return the task's input, and the text before it, from the messages of a chat."""
    prompt_prefix, knowledge = form.prompt_prefix(task, control), ""
    chat = form.template == "chat" or prompt_prefix.dialogue
    if messages[0].role in ("system", "developer"):
        text = messages[0].text.strip()
        if text in ("", prompt_prefix.system):  # empty, or already in the prompt
            messages = messages[1:]
        elif prompt_prefix.dialogue:
            knowledge, messages = squeeze(text), messages[1:]
        elif chat:
            prompt_prefix, messages = prompt_prefix._replace(system=text), messages[1:]
    roles = [message.role for message in messages]
    n_turns = len(messages) // 2 if chat else 0
    if roles != [*["user", "assistant"] * n_turns, "user"]:
        found = f"the roles are {', '.join(roles)}" if roles else "there is no user message"
        asked = (
            "user and assistant must alternate, and the user has the last message"
            if chat
            else "the task was trained on single inputs, so there must be exactly one message "
            "with the role user. Put all information into it"
        )
        raise ApiError(400, f"{found}; {asked}", param="messages")
    if prompt_prefix.dialogue and messages[-1].text.strip():
        dialogue = Dialogue.parse(messages[-1].text)  # may be the whole input
        if knowledge or n_turns:
            said = tuple((message.role, squeeze(message.text)) for message in messages)
            dialogue = Dialogue(f"{KNOWLEDGE}{knowledge}" if knowledge else "", said)
        return dialogue.text, prompt_prefix
    texts = [message.text.strip() for message in messages[:-1]]
    turns = tuple(zip(texts[::2], texts[1::2], strict=True))
    return messages[-1].text, prompt_prefix._replace(turns=prompt_prefix.turns + turns)
