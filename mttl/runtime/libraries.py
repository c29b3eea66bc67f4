"""Checks that optional libraries are installed."""

import importlib.util
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from mttl.io.errors import MttlError

# transformers imports libraries of quantisation where it finds them, and these warn of kernels that
# a machine has no use for. What fails raises an error as well.
HARMLESS_LOGGERS = ("torchao", "bitsandbytes.backends.cpu.ops", "bitsandbytes.backends.utils")
HARMLESS_LOGGERS += ("torch.utils._pytree",)


@contextmanager
def quiet_imports() -> Iterator[None]:
    """Within the block, libraries of quantisation report only errors."""
    loggers = [logging.getLogger(name) for name in HARMLESS_LOGGERS]
    new = [logger for logger in loggers if is_error not in logger.filters]
    for logger in new:
        logger.addFilter(is_error)
    try:
        yield
    finally:
        for logger in new:
            logger.removeFilter(is_error)


def is_error(record: logging.LogRecord) -> bool:
    """Return whether a record is an error."""
    return record.levelno >= logging.ERROR


def missing_libraries(*names: str) -> list[str]:
    """Return those of some libraries that are not installed."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def check_libraries(*names: str) -> None:
    """Refuse to go on without optional libraries; the message says how to install them."""
    if missing := " ".join(missing_libraries(*names)):
        raise MttlError(f"{missing} must be installed: pip install {missing}")
