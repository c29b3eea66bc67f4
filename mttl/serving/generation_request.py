"""One requested answer, and the pieces in which it is sent."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ScoredToken:
    """A token of an answer, with the most probable alternatives."""

    text: str  # the joined texts are the answer
    offset: int  # start position in the answer
    logprob: float  # of the model, without temperature
    alternatives: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Piece:
    """A new part of an answer: its text, and its scored tokens if requested."""

    text: str = ""
    tokens: tuple[ScoredToken, ...] = ()
    finish: str | None = None  # in the last piece: "stop", or "length" if the answer was truncated
    n_tokens: int = 0  # of the whole answer, in the last piece
    failed: bool = False  # the model failed, and no more pieces follow


@dataclass(eq=False, kw_only=True)
class GenerationRequest:
    """One requested answer: a row of a batch."""

    task_id: int  # id in its model
    prompt: Sequence[int]  # ids of the formatted prompt
    added: Sequence[Sequence[int]] = ()  # the prompts of tasks whose logits are added
    most_tokens: int  # maximum length of the answer, end token included
    n_beams: int = 1  # with several, the answer is sent as one piece
    n_positions: int | None = None  # maximum of prompt and answer together; None: unlimited
    temperature: float = 0.0  # 0 takes the most probable token
    top_p: float = 1.0  # total probability of the sampled tokens
    seed: str | None = None  # None for a random one
    stop: tuple[str, ...] = ()  # texts that end the answer
    n_logprobs: int | None = None  # alternatives per token; None: tokens are not scored
    stream: bool = False
    # Ids of the answers to choose from, by text; empty to generate.
    options: Mapping[str, Sequence[int]] = field(default_factory=dict)
    # Receives the pieces in the model's thread.
    send: Callable[[Piece], object] = field(repr=False)
    # Computes the answer differently, in a separate batch; `send` reports its end.
    alone: Callable[[], object] | None = field(default=None, repr=False)
    dropped: bool = False  # the client has disconnected
