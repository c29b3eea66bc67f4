"""Checks that optional libraries are installed."""

import importlib.util
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from mttl.io.errors import MttlError

# transformers imports installed quantisation libraries, which log warnings about unneeded kernels.
# Real failures also raise errors.
HARMLESS_LOGGERS = ("torchao", "bitsandbytes.backends.cpu.ops", "bitsandbytes.backends.utils")
HARMLESS_LOGGERS += ("torch.utils._pytree",)


@contextmanager
def quiet_imports() -> Iterator[None]:
    """Context manager in which quantisation libraries log only errors."""
    loggers = [logging.getLogger(name) for name in HARMLESS_LOGGERS]
    new = [logger for logger in loggers if is_error not in logger.filters]
    for logger in new:
        logger.addFilter(is_error)
    try:
        yield
    finally:
        for logger in new:
            logger.removeFilter(is_error)


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Context manager in which transformers shows no bar for loading; downloads keep theirs."""
    from huggingface_hub.utils import enable_progress_bars
    from transformers.utils import logging as bars

    if shown := bars.is_progress_bar_enabled():
        bars.disable_progress_bar()  # also those of downloads
        enable_progress_bars()
    try:
        yield
    finally:
        if shown:
            bars.enable_progress_bar()


def is_error(record: logging.LogRecord) -> bool:
    """Return whether a record is an error."""
    return record.levelno >= logging.ERROR


def missing_libraries(*names: str) -> list[str]:
    """Return the libraries that are not installed."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def check_libraries(*names: str) -> None:
    """Raise an `MttlError` with instructions if optional libraries are missing."""
    if missing := " ".join(missing_libraries(*names)):
        raise MttlError(f"missing libraries; install them with: pip install {missing}")
