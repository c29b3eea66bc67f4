"""Counters of a server, in the text format of Prometheus."""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)


class ServerMetrics:
    """Counters of a server; any thread may add to them."""

    def __init__(self) -> None:
        disable_created_metrics()
        self._registry = own = CollectorRegistry()
        labels = ("model", "status")
        self._requests = Counter(
            "mttl_requests", "Requests by task and status.", labels, registry=own
        )
        self._seconds = Histogram(
            "mttl_request_seconds", "Seconds that requests took.", registry=own, buckets=SECONDS
        )
        self._batches = Histogram(
            "mttl_batch_answers", "Answers of a batch.", registry=own, buckets=ROWS
        )
        meaning = "Tokens of prompts and of answers."
        self._tokens = Counter("mttl_tokens", meaning, ("kind",), registry=own)
        meaning = "Answers that wait for the model."
        self._waiting = Gauge("mttl_waiting_answers", meaning, registry=own)

    def add_request(self, model: str, status: int, seconds: float) -> None:
        """Count a request that has ended; the model is empty if the request named no task."""
        self._requests.labels(model, status).inc()
        self._seconds.observe(seconds)

    def add_tokens(self, **counts: int) -> None:
        """Count tokens by kind."""
        for kind, count in counts.items():
            self._tokens.labels(kind).inc(count)

    def add_batch(self, size: int) -> None:
        """Count a batch."""
        self._batches.observe(size)

    def text(self, waiting: int) -> str:
        """Return all counters; ``waiting`` is the number of answers in the queue."""
        self._waiting.set(waiting)
        return generate_latest(self._registry).decode()
