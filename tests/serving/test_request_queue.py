"""What waits is collected into batches of one kind, first come first."""

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from mttl.serving.generation_request import GenerationRequest, Piece
from mttl.serving.protocol import ApiError
from mttl.serving.request_queue import RequestQueue

ONE, OTHER = "one model", "another"


class Model:
    """Answers with the names of a batch, once it may, but fails at a bad one."""

    def __init__(self) -> None:
        self.batches: list[tuple[Any, list[str]]] = []
        self.may_go = threading.Event()
        self.began = threading.Event()

    def __call__(self, predictor: Any, wanted: Sequence[GenerationRequest]) -> None:
        self.began.set()
        assert self.may_go.wait(60)
        self.batches.append((predictor, [str(row.seed) for row in wanted]))
        if any(row.seed == "bad" for row in wanted):
            raise RuntimeError("a bad batch")
        for row in wanted:
            row.send(Piece(finish="stop"))


def row(name: str, **settings: Any) -> GenerationRequest:
    settings = {"prompt": [], "most_tokens": 5, "send": [].append, **settings}
    return GenerationRequest(task_id=0, seed=name, **settings)


@pytest.fixture
def model() -> Model:
    return Model()


def start(model: Model, *, most: int = 100, wait: float = 0.0) -> Any:
    """Return a queue whose model is busy with a first batch."""
    queue: Any = RequestQueue(batch_size=3, wait=wait, most=most, answer=model)
    queue.put(ONE, [row("first")])
    assert model.began.wait(60)
    return queue


def finish(queue: RequestQueue, model: Model) -> list[tuple[Any, list[str]]]:
    model.may_go.set()
    queue.close()
    queue.join()
    return model.batches[1:]


def test_what_waits_is_collected_by_model_and_search(model: Model) -> None:
    queue = start(model)
    queue.put(ONE, [row("a"), row("b", most_tokens=9, temperature=1.0)])
    queue.put(OTHER, [row("c")])
    queue.put(ONE, [row("d", n_beams=2), row("e", n_beams=2, most_tokens=6)])
    queue.put(ONE, [row("f", n_beams=2), row("g"), row("h")])
    queue.put(ONE, [row("i", options={"a": [1]}), row("j", n_beams=2, options={"b": [2]})])
    assert len(queue) == 10
    assert finish(queue, model) == [
        (ONE, ["a", "b", "g"]),
        (OTHER, ["c"]),
        (ONE, ["d", "f"]),
        (ONE, ["e"]),
        (ONE, ["h"]),
        (ONE, ["i", "j"]),
    ]


def test_what_shares_a_batch_fits_the_positions_together(model: Model) -> None:
    """The longest prompt and the longest answer: with padding, each row goes that far."""
    queue = start(model)
    limit: dict[str, Any] = {"n_positions": 10}
    queue.put(ONE, [row("a", prompt=[2] * 8, most_tokens=2, **limit)])
    queue.put(ONE, [row("b", prompt=[2], most_tokens=9, **limit)])
    queue.put(ONE, [row("c", prompt=[2] * 3, most_tokens=2, **limit)])
    queue.put(ONE, [row("d", prompt=[2], most_tokens=3, **limit)])
    assert finish(queue, model) == [(ONE, ["a", "c"]), (ONE, ["b", "d"])]


def test_an_idle_model_waits_a_moment_for_more(model: Model) -> None:
    model.may_go.set()
    queue: Any = RequestQueue(batch_size=2, wait=30.0, most=10, answer=model)
    queue.put(ONE, [row("a")])
    queue.put(ONE, [row("b")])  # the batch is full: nothing to wait for
    assert model.began.wait(20)
    queue.put(ONE, [row("c")])
    queue.close()  # neither now
    queue.join()
    assert [names for _, names in model.batches] == [["a", "b"], ["c"]]


def test_a_full_queue_refuses_whole_requests(model: Model) -> None:
    queue = start(model, most=2)
    queue.put(ONE, [row("a")])
    with pytest.raises(ApiError, match="1 answers are queued already; try again in a moment"):
        queue.put(ONE, [row("b"), row("c")])
    dropped = row("d")
    queue.put(ONE, [dropped])
    dropped.dropped = True
    queue.put(ONE, [row("e")])  # into the place of the one that nobody waits for
    assert finish(queue, model) == [(ONE, ["a", "e"])]


def test_a_closed_queue_answers_what_it_has(model: Model) -> None:
    queue = start(model)
    queue.put(ONE, [row("a")])
    assert queue.is_open
    queue.close()
    assert not queue.is_open
    with pytest.raises(ApiError, match="shutting down"):
        queue.put(ONE, [row("b")])
    assert finish(queue, model) == [(ONE, ["a"])]
    # One that is closed at once drops it.
    model = Model()
    queue = start(model)
    waiting = row("a")
    queue.put(ONE, [waiting])
    queue.close(at_once=True)
    assert waiting.dropped
    assert finish(queue, model) == []


def test_a_batch_that_fails_ends_no_other(model: Model, caplog: pytest.LogCaptureFixture) -> None:
    queue = start(model)
    put: Any = queue.put
    bad: list[Piece] = []
    good: list[Piece] = []
    put(ONE, [row("bad", send=bad.append)])
    put(OTHER, [row("good", send=good.append)])
    finish(queue, model)
    assert [piece.failed for piece in bad] == [True]
    assert [piece.finish for piece in good] == ["stop"]
    assert "a batch of 1 answers failed" in caplog.text
    assert "a bad batch" in caplog.text
