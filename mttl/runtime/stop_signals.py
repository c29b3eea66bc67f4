"""Ctrl-C and SIGTERM as stop requests, handled by loops between steps."""

import logging
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

logger = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
Handler = Callable[[int, FrameType | None], object]


@contextmanager
def handling(handler: Handler, numbers: Sequence[signal.Signals] = STOP_SIGNALS) -> Iterator[None]:
    """Context manager that handles signals, and restores earlier handlers.

    In threads other than the main thread it has no effect.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


class StopRequest:
    """A handler that records the first signal with a notice, and forwards a second one."""

    def __init__(self, notice: str, at_once: Handler) -> None:
        self.notice, self.at_once = notice, at_once
        self.received: signal.Signals | None = None  # first signal

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self.received is not None:
            self.at_once(number, frame)
        self.received = signal.Signals(number)
        logger.warning(self.notice)
