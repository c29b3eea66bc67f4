"""One answer that a request wants, and the pieces in which it is sent."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ScoredToken:
    """A token of an answer.

    Attributes:
        text: Its part of the answer; all parts together are the answer.
        offset: Where in the answer it begins.
        logprob: How likely the model found it, whatever the temperature.
        alternatives: The likeliest tokens of this place, each with its log-probability.
    """

    text: str
    offset: int
    logprob: float
    alternatives: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Piece:
    """What is new of an answer.

    Attributes:
        text: All pieces together are the answer.
        tokens: Scored, where that was asked for.
        finish: Of the last piece: ``stop``, or ``length`` where the answer was cut.
        n_tokens: Of the whole answer, in the last piece.
        failed: Nothing more is going to come: the model failed.
    """

    text: str = ""
    tokens: tuple[ScoredToken, ...] = ()
    finish: str | None = None
    n_tokens: int = 0
    failed: bool = False


@dataclass(eq=False, kw_only=True)
class GenerationRequest:
    """One answer that a request wants: a row of some batch.

    Attributes:
        task_id: Id of the task in its model.
        prompt: Ids of the question, as the model reads it.
        most_tokens: Largest number of tokens of the answer, the end included.
        n_beams: Number of beams; with several, the answer is sent as a whole.
        n_positions: Positions of the model for prompt and answer together; None sets no limit.
        temperature: Temperature of sampling; 0 takes the likeliest token.
        top_p: Total probability of the likeliest tokens, from which is drawn.
        seed: Seed of the draws; None for a random one.
        stop: Texts before which the answer ends.
        n_logprobs: Number of alternatives to name with each token; None scores no token.
        stream: Whether parts of the answer are sent.
        send: Gets the pieces; called by the thread that runs the model.
        alone: Computes the answer in another way, in a separate batch; `send` reports its end.
        dropped: Whether the client is gone.
    """

    task_id: int
    prompt: Sequence[int]
    most_tokens: int
    n_beams: int = 1
    n_positions: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    seed: str | None = None
    stop: tuple[str, ...] = ()
    n_logprobs: int | None = None
    stream: bool = False
    send: Callable[[Piece], object] = field(repr=False)
    alone: Callable[[], object] | None = field(default=None, repr=False)
    dropped: bool = False
