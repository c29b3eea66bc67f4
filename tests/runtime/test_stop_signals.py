"""Signals inside a block, in the main thread and in others."""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from mttl.runtime.stop_signals import STOP_SIGNALS, StopRequest, handling


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    yield
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before


def leave(number: int, frame: object) -> None:
    raise ArithmeticError(signal.Signals(number).name)


@pytest.mark.parametrize("first", STOP_SIGNALS)
def test_the_first_signal_asks_and_the_second_acts(first, caplog) -> None:
    request = StopRequest("after this step", leave)
    with handling(request):
        assert request.received is None
        signal.raise_signal(first)
        assert request.received is first
        with pytest.raises(ArithmeticError, match="SIGTERM"):
            signal.raise_signal(signal.SIGTERM)
    assert caplog.messages == ["after this step"]
    assert request.received is first


def test_only_the_signals_that_are_named_are_handled() -> None:
    # A shell lets what it starts in the background ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), handling(leave, [signal.SIGTERM]):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_handles_no_signal() -> None:
    def listen() -> object:
        with handling(leave):
            return signal.getsignal(signal.SIGTERM)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(listen).result() == signal.getsignal(signal.SIGTERM)
