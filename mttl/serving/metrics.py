"""Counters of a server, in the text format of Prometheus."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from threading import Lock

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)


class Histogram:
    """Counts values by ascending upper bounds, to which infinity is added."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def lines(self, name: str) -> Iterable[str]:
        """Return the samples of the histogram."""
        below = 0
        for bound, count in zip([*map(str, self._bounds), "+Inf"], self._counts, strict=True):
            below += count
            yield f'{name}_bucket{{le="{bound}"}} {below}'
        yield f"{name}_sum {self._total}"
        yield f"{name}_count {below}"


class ServerMetrics:
    """Counters of a server; any thread may add to them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._tokens: Counter[str] = Counter()
        self._seconds = Histogram(SECONDS)
        self._batches = Histogram(ROWS)

    def add_request(self, model: str, status: int, seconds: float) -> None:
        """Count a request that has ended; the model is empty if the request named no task."""
        with self._lock:
            self._requests[model, status] += 1
            self._seconds.add(seconds)

    def add_tokens(self, **counts: int) -> None:
        """Count tokens by kind."""
        with self._lock:
            self._tokens.update(counts)

    def add_batch(self, size: int) -> None:
        """Count a batch."""
        with self._lock:
            self._batches.add(size)

    def text(self, waiting: int) -> str:
        """Return all counters; ``waiting`` is the number of answers in the queue."""
        with self._lock:
            requests = {
                f'{{model="{_escaped(model)}",status="{status}"}}': count
                for (model, status), count in sorted(self._requests.items())
            }
            tokens = {f'{{kind="{kind}"}}': count for kind, count in sorted(self._tokens.items())}
            parts = [
                *_metric("mttl_requests_total", "counter", "Requests by task and status."),
                *_samples("mttl_requests_total", requests),
                *_metric("mttl_request_seconds", "histogram", "Seconds that requests took."),
                *self._seconds.lines("mttl_request_seconds"),
                *_metric("mttl_batch_answers", "histogram", "Answers of a batch."),
                *self._batches.lines("mttl_batch_answers"),
                *_metric("mttl_tokens_total", "counter", "Tokens of prompts and of answers."),
                *_samples("mttl_tokens_total", tokens),
                *_metric("mttl_waiting_answers", "gauge", "Answers that wait for the model."),
                f"mttl_waiting_answers {waiting}",
            ]
        return "\n".join(parts) + "\n"


def _metric(name: str, kind: str, meaning: str) -> tuple[str, str]:
    return f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"


def _samples(name: str, values: Mapping[str, int]) -> Iterable[str]:
    return (f"{name}{labels} {value}" for labels, value in values.items())


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
