"""Requests, responses and errors of OpenAI's completions and chat API.

Unsupported parameters are rejected, unless their value has no effect, because many clients send
default values of all parameters.
"""

import time
import uuid
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveInt,
    ValidationError,
    model_validator,
)

from mttl.inference.mixture_name import MIXTURE
from mttl.io.errors import MttlError, nearest
from mttl.io.reading import shown
from mttl.serving.generation_request import Piece, ScoredToken


class ApiError(MttlError):
    """A rejected request, with an HTTP status, the wrong parameter and an error code."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    @property
    def body(self) -> dict[str, Any]:
        """Error object of OpenAI's API."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        kind = "rate_limit_error" if self.status == 429 else kind
        found = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": found}

    @property
    def headers(self) -> dict[str, str]:
        """Retry-After header for busy servers; a batch takes about a second."""
        return {"Retry-After": "1"} if self.status in (429, 503) else {}


MOST_ANSWERS = 128  # maximum answers per request


# Unsupported parameters, with the values that have no effect; None for all values.
NEUTRAL: dict[str, Container[Any] | None] = {
    **dict.fromkeys(("metadata", "safety_identifier", "user")),
    # These affect only speed.
    **dict.fromkeys(("prediction", "prompt_cache_key", "prompt_cache_options")),
    "prompt_cache_retention": None,
    **dict.fromkeys(("frequency_penalty", "presence_penalty"), (0,)),
    **dict.fromkeys(("echo", "store"), (False,)),
    **dict.fromkeys(("function_call", "tool_choice"), ("none", "auto")),
    **dict.fromkeys(("functions", "tools"), ([],)),
    "best_of": (1,),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "suffix": ("",),
    "verbosity": ("medium",),
}


def mixture_name(model: Any) -> Any:
    """Return the name of a mixture that is given as an object of shares."""
    if not isinstance(model, dict):
        return model
    return MIXTURE + ",".join(f"{task}={share}" for task, share in model.items())


Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[list[Text], BeforeValidator(lambda x: [x] if isinstance(x, str) else x)]


class Part(BaseModel):
    """A part of a request; values without effect are dropped."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
    neutral: ClassVar[Mapping[str, Container[Any] | None]] = {}

    @model_validator(mode="before")
    @classmethod
    def _without_defaults(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values

        def asks(name: str, value: Any) -> bool:
            neutral = cls.neutral.get(name, ())
            return not (value is None or neutral is None or value in neutral)

        return {name: value for name, value in values.items() if asks(name, value)}


class StreamOptions(Part):
    """Options of a stream."""

    neutral = {"include_obfuscation": (False,)}
    include_usage: bool = False


class _Request(Part):
    neutral = NEUTRAL
    model: Annotated[Text, BeforeValidator(mixture_name)]
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=MOST_ANSWERS)] = 1
    stop: Annotated[Texts, Field(max_length=4)] = []
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    max_tokens: PositiveInt | None = None
    control: dict[str, int] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None


class CompletionRequest(_Request):
    """A request of ``/v1/completions``, with text prompts."""

    prompt: Annotated[Texts, Field(min_length=1, max_length=MOST_ANSWERS)]
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None

    @property
    def n_logprobs(self) -> int | None:
        """Number of alternatives per token; None if tokens are not scored."""
        return self.logprobs


class TextPart(Part):
    """A part of a message."""

    neutral = {"prompt_cache_breakpoint": None}
    type: Literal["text"]
    text: str


class Message(Part):
    """A message of a chat."""

    neutral = {"name": None}
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]

    @property
    def text(self) -> str:
        """Joined text of all parts."""
        parts = self.content
        return parts if isinstance(parts, str) else "".join(part.text for part in parts)


class ChatRequest(_Request):
    """A request of ``/v1/chat/completions``, with messages."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: PositiveInt | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @property
    def n_logprobs(self) -> int | None:
        """Number of alternatives per token; None if tokens are not scored."""
        return (self.top_logprobs or 0) if self.logprobs else None


SomePart = TypeVar("SomePart", bound=Part)
Kind = TypeVar("Kind", bound=_Request)


def parse_part(kind: type[SomePart], values: dict[str, Any]) -> SomePart:
    """Return JSON values as a model; raises an `ApiError` if they are invalid."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        problems = [_problem(kind, problem) for problem in error.errors(include_url=False)]
        first = ".".join(map(str, error.errors()[0]["loc"])) or None
        raise ApiError(400, "; ".join(problems), param=first) from error


def parse_request(kind: type[Kind], values: dict[str, Any]) -> Kind:
    """Return a request, validated as in `parse_part`."""
    request = parse_part(kind, values)
    chat = request if isinstance(request, ChatRequest) else None
    most = chat and chat.max_completion_tokens
    problems = {
        "stream_options needs stream; set stream or remove it": not request.stream
        and request.stream_options is not None,
        "max_completion_tokens is another name of max_tokens; use only one": most
        and request.max_tokens not in (None, most),
        "top_logprobs needs logprobs; set it or remove both": chat
        and chat.top_logprobs
        and not chat.logprobs,
    }
    for problem, wrong in problems.items():
        if wrong:
            raise ApiError(400, problem, param=problem.partition(" ")[0])
    return request


def _problem(kind: type[BaseModel], problem: Any) -> str:
    place = ".".join(map(str, problem["loc"]))
    if problem["type"] == "extra_forbidden":
        text = f"'{place}' ({shown(problem['input'])}) is not supported; remove it"
        known = sorted(kind.model_fields)
        if len(problem["loc"]) > 1 or place in NEUTRAL:
            return text
        return f"{text}.{nearest(place, known)} Supported: {', '.join(known)}"
    if problem["type"] == "missing":
        return f"'{place}' is missing"
    return f"'{place}' ({shown(problem['input'])}): {problem['msg']}"


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The common fields of a request's responses, for chats or completions."""

    model: str
    chat: bool
    scored: bool
    n_prompt_tokens: int
    created: int = field(default_factory=lambda: int(time.time()))
    unique: str = field(default_factory=lambda: uuid.uuid4().hex)

    def whole(self, answers: Sequence[Piece]) -> dict[str, Any]:
        """Return the response with all complete answers."""
        choices = []
        for index, answer in enumerate(answers):
            message = {"role": "assistant", "content": answer.text, "refusal": None}
            content = {"message": message} if self.chat else {"text": answer.text}
            choices.append(self._choice(index, content, answer))
        usage = self.usage(sum(answer.n_tokens for answer in answers))
        return self._object(choices, stream=False) | {"usage": usage}

    def part(self, index: int, piece: Piece, **role: str) -> dict[str, Any]:
        """Return an event with a part of an answer; the first one of a chat has a role."""
        content = {"delta": {**role, "content": piece.text}} if self.chat else {"text": piece.text}
        return self._object([self._choice(index, content, piece)], stream=True)

    def counts(self, n_tokens: int) -> dict[str, Any]:
        """Return the event with token counts."""
        return self._object([], stream=True) | {"usage": self.usage(n_tokens)}

    def usage(self, n_tokens: int) -> dict[str, int]:
        """Return token counts; end tokens of answers are not counted."""
        return {
            "prompt_tokens": self.n_prompt_tokens,
            "completion_tokens": n_tokens,
            "total_tokens": self.n_prompt_tokens + n_tokens,
        }

    def _object(self, choices: list[dict[str, Any]], *, stream: bool) -> dict[str, Any]:
        kind = "text_completion"
        if self.chat:
            kind = "chat.completion.chunk" if stream else "chat.completion"
        return {
            "id": f"{'chatcmpl' if self.chat else 'cmpl'}-{self.unique}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    def _choice(self, index: int, content: dict[str, Any], piece: Piece) -> dict[str, Any]:
        scores = None
        if self.scored:
            scores = _chat_scores(piece.tokens) if self.chat else _scores(piece.tokens)
        return {"index": index, **content, "logprobs": scores, "finish_reason": piece.finish}


def _scores(tokens: Sequence[ScoredToken]) -> dict[str, Any]:
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        # Several tokens may have the same text; the most probable one is kept.
        "top_logprobs": [dict(reversed(token.alternatives)) for token in tokens],
        "text_offset": [token.offset for token in tokens],
    }


def _chat_scores(tokens: Sequence[ScoredToken]) -> dict[str, Any]:
    return {
        "content": [
            _chat_score(token.text, token.logprob)
            | {"top_logprobs": [_chat_score(*other) for other in token.alternatives]}
            for token in tokens
        ],
        "refusal": None,
    }


def _chat_score(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}
