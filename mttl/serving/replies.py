"""The answers of OpenAI's protocols: completions and chat, whole or as a stream."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mttl.serving.generation_request import Piece, ScoredToken


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The common parts of one request's reply, in the protocol of chats or of completions."""

    model: str
    chat: bool
    scored: bool
    n_prompt_tokens: int
    created: int = field(default_factory=lambda: int(time.time()))
    unique: str = field(default_factory=lambda: uuid.uuid4().hex)

    def whole(self, answers: Sequence[Piece]) -> dict[str, Any]:
        """Return the reply that holds all answers, each in one piece."""
        choices = []
        for index, answer in enumerate(answers):
            message = {"role": "assistant", "content": answer.text, "refusal": None}
            content = {"message": message} if self.chat else {"text": answer.text}
            choices.append(self._choice(index, content, answer))
        usage = self.usage(sum(answer.n_tokens for answer in answers))
        return self._object(choices, stream=False) | {"usage": usage}

    def first_event(self, index: int) -> dict[str, Any]:
        """Return the first part of an answer in a stream of a chat."""
        delta = {"delta": {"role": "assistant", "content": ""}}
        return self._object([self._choice(index, delta, Piece())], stream=True)

    def part(self, index: int, piece: Piece) -> dict[str, Any]:
        """Return a part of a stream."""
        content = {"delta": {"content": piece.text}} if self.chat else {"text": piece.text}
        return self._object([self._choice(index, content, piece)], stream=True)

    def counts(self, n_tokens: int) -> dict[str, Any]:
        """Return the part of a stream that counts its tokens."""
        return self._object([], stream=True) | {"usage": self.usage(n_tokens)}

    def usage(self, n_tokens: int) -> dict[str, int]:
        """Return the counts of tokens; those of answers are without the end."""
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
        # Several tokens may have one text; the likeliest comes first, and stays.
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
