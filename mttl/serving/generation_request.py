"""One answer that a request wants, and the pieces in which it is sent."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ScoredToken:
    """A token of an answer, with the likeliest tokens of its place."""

    text: str  # all texts together are the answer
    offset: int  # where in the answer it begins
    logprob: float  # by the model, whatever the temperature
    alternatives: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Piece:
    """What is new of an answer: its text, and its tokens where they are scored."""

    text: str = ""
    tokens: tuple[ScoredToken, ...] = ()
    finish: str | None = None  # of the last piece: "stop", or "length" where the answer was cut
    n_tokens: int = 0  # of the whole answer, in the last piece
    failed: bool = False  # nothing more comes: the model failed


@dataclass(eq=False, kw_only=True)
class GenerationRequest:
    """One answer that a request wants: a row of some batch."""

    task_id: int  # in its model
    prompt: Sequence[int]  # ids of the question, as the model reads it
    most_tokens: int  # of the answer, the end included
    n_beams: int = 1  # with several, the answer is sent as a whole
    n_positions: int | None = None  # of prompt and answer together; None sets no limit
    temperature: float = 0.0  # 0 takes the likeliest token
    top_p: float = 1.0  # probability of the likeliest tokens, from which is drawn
    seed: str | None = None  # None for a random one
    stop: tuple[str, ...] = ()  # texts before which the answer ends
    n_logprobs: int | None = None  # alternatives to name with each token; None scores no token
    stream: bool = False
    # Gets the pieces; called by the thread that runs the model.
    send: Callable[[Piece], object] = field(repr=False)
    # Computes the answer in another way, in a separate batch; `send` reports its end.
    alone: Callable[[], object] | None = field(default=None, repr=False)
    dropped: bool = False  # the client is gone
