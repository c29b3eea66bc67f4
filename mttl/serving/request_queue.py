"""Queue of requested answers, and the thread that runs the model.

Requests are collected while the model runs. The oldest one then determines the model and its
search, and compatible ones join it up to the batch size.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from mttl.inference.predictor import Predictor
from mttl.serving.answer_batch import answer_batch
from mttl.serving.generation_request import GenerationRequest, Piece
from mttl.serving.protocol import ApiError

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)


class ServerMetrics:
    """Thread-safe metrics of a server."""

    def __init__(self) -> None:
        disable_created_metrics()
        own: dict[str, Any] = {"registry": CollectorRegistry()}
        self._registry, labels = own["registry"], ("model", "status")
        self._requests = Counter("mttl_requests", "Requests by task and status.", labels, **own)
        meaning = "Duration of requests in seconds."
        self._seconds = Histogram("mttl_request_seconds", meaning, **own, buckets=SECONDS)
        self.batches = Histogram("mttl_batch_answers", "Answers per batch.", **own, buckets=ROWS)
        meaning = "Number of tokens of prompts and answers."
        self._tokens = Counter("mttl_tokens", meaning, ("kind",), **own)
        meaning = "Number of queued answers."
        self._waiting = Gauge("mttl_waiting_answers", meaning, **own)

    def add_request(self, model: str, status: int, seconds: float) -> None:
        """Count a completed request; the model is empty if the request had no valid one."""
        self._requests.labels(model, status).inc()
        self._seconds.observe(seconds)

    def add_tokens(self, **counts: int) -> None:
        """Count tokens by kind."""
        for kind, count in counts.items():
            self._tokens.labels(kind).inc(count)

    def text(self, waiting: int) -> str:
        """Return all metrics as text; ``waiting`` is the number of queued answers."""
        self._waiting.set(waiting)
        return generate_latest(self._registry).decode()


logger = logging.getLogger(__name__)


class _Waiting(NamedTuple):
    predictor: Predictor
    wanted: GenerationRequest
    since: float

    @property
    def kind(self) -> tuple[int, int, int]:
        """Key of answers that can share a batch; with beams, lengths must be equal."""
        row = self.wanted
        if row.alone is not None:
            return id(row), 1, 0
        if row.options:
            return id(self.predictor), 0, 0
        return id(self.predictor), row.n_beams, row.most_tokens if row.n_beams > 1 else 0


def _fit(batch: Sequence[_Waiting]) -> bool:
    """Return whether a batch fits into the model's maximum number of positions."""
    rows = [waiting.wanted for waiting in batch]
    prompts = (ids for row in rows for ids in (row.prompt, *row.added))
    longest = max(map(len, prompts)) + max(row.most_tokens for row in rows)
    return rows[0].n_positions is None or longest <= rows[0].n_positions


class RequestQueue:
    """Collects answers into batches, which a separate thread passes to the model.

    At most ``most`` answers are queued; an idle model waits ``wait`` seconds to form a batch.
    """

    def __init__(
        self,
        *,
        batch_size: int,
        wait: float,
        most: int,
        answer: Callable[[Predictor, Sequence[GenerationRequest]], None] = answer_batch,
    ) -> None:
        self.most = most
        self._batch_size, self._wait = batch_size, wait
        self._answer, self.metrics = answer, ServerMetrics()
        self._waiting: list[_Waiting] = []
        self._running: Sequence[GenerationRequest] = ()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """Return the number of queued answers that have not been dropped."""
        return sum(not waiting.wanted.dropped for waiting in self._waiting)

    @property
    def is_open(self) -> bool:
        """True if requests are accepted."""
        return not self._closed and self._thread.is_alive()

    def put(self, predictor: Predictor, wanted: Sequence[GenerationRequest]) -> None:
        """Queue all answers of a request, or raise an `ApiError` and queue none."""
        with self._changed:
            if not self.is_open:
                raise ApiError(503, "the server is shutting down; try again later")
            if len(wanted) > self.most:
                problem = f"the request needs {len(wanted)} answers; the queue holds {self.most}"
                raise ApiError(400, problem)
            self._waiting = [w for w in self._waiting if not w.wanted.dropped]
            if len(self._waiting) + len(wanted) > self.most:
                problem = f"{len(self._waiting)} answers are queued already; try again in a moment"
                raise ApiError(429, problem, code="queue_full")
            now = time.monotonic()
            self._waiting += [_Waiting(predictor, row, now) for row in wanted]
            self._changed.notify()

    def close(self, *, at_once: bool = False) -> None:
        """Accept no more answers; ``at_once`` drops queued and running ones."""
        with self._changed:
            self._closed = True
            if at_once:
                for row in [*(w.wanted for w in self._waiting), *self._running]:
                    row.dropped = True
            self._changed.notify()

    def join(self) -> None:
        """Wait until all answers are complete; call `close` before."""
        self._thread.join()

    def _work(self) -> None:
        while (predictor := self._take()) is not None:
            self.metrics.batches.observe(len(self._running))
            try:
                self._answer(predictor, self._running)
            except Exception:
                logger.exception("a batch of %d answers failed", len(self._running))
                for row in self._running:
                    row.send(Piece(failed=True))
            self._running = ()

    def _take(self) -> Predictor | None:
        """Select the next batch; return its model, or None if the queue is closed and empty."""
        with self._changed:
            while True:
                self._waiting = [w for w in self._waiting if not w.wanted.dropped]
                if not self._waiting:
                    if self._closed:
                        return None
                    self._changed.wait()
                    continue
                first = self._waiting[0]
                batch = [first]
                for other in self._waiting[1:]:
                    if len(batch) == self._batch_size:
                        break
                    if other.kind == first.kind and _fit([*batch, other]):
                        batch.append(other)
                left = first.since + self._wait - time.monotonic()
                if len(batch) < self._batch_size and left > 0 and not self._closed:
                    self._changed.wait(left)
                    continue
                taken = set(map(id, batch))
                self._waiting = [w for w in self._waiting if id(w) not in taken]
                self._running = [w.wanted for w in batch]
                return first.predictor
