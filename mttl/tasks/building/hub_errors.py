"""Errors of the library `datasets`, translated into reasons why a data set is unavailable."""

from collections.abc import Iterator
from contextlib import contextmanager

from mttl.io.files import DISK_REFUSES
from mttl.tasks.building.unavailable import UnavailableError

# What the libraries between this one and the hub are called, or begin with: httpx, httpx2.
_HTTP_LIBRARIES = ("aiohttp", "httpcore", "httpx", "requests")


class ScriptOnlyError(UnavailableError):
    """The data set is a loading script."""


class OutOfReachError(UnavailableError):
    """The hub does not answer."""


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Turn an error of the library into one that a user can do something about.

    Raises:
        ScriptOnlyError: If it is a loading script.
        OutOfReachError: If the hub does not answer.
        UnavailableError: If it cannot be had for another reason, which the message tells.
        OSError: If the disk is full or may not be written, which no other data set would change.
    """
    try:
        yield
    except Exception as error:
        if (refused := _refusal_of_the_disk(error)) is not None:
            raise refused from None
        reason = _reason(error)
        if reason is None:
            raise
        if reason == "script":
            raise ScriptOnlyError(f"'{name}' is a loading script") from error
        if reason == "offline":
            raise OutOfReachError("there is no way to the hub, or HF_HUB_OFFLINE is set") from error
        raise UnavailableError(f"'{name}' {reason}") from error


def _refusal_of_the_disk(error: BaseException | None) -> OSError | None:
    """Return what the system said, where a full disk is behind an error of the library."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in DISK_REFUSES:
            return error
        error = error.__cause__ or error.__context__
    return None


def _reason(error: Exception) -> str | None:
    """Return why a data set is unavailable; None for what must not be swallowed."""
    from datasets.exceptions import DatasetNotFoundError, DatasetsError
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    message = " ".join(str(error).split())
    match error:
        case RuntimeError() if "scripts are no longer supported" in message:
            return "script"
        case ConnectionError() | TimeoutError() | OfflineModeIsEnabled():
            return "offline"
        case DatasetNotFoundError() if "gated" in message:
            return (
                "is gated: accept its terms on its page on the hub, then log in with "
                "`hf auth login`"
            )
        case DatasetNotFoundError():
            return f"is not on the hub ({message})"
        case HfHubHTTPError():
            return f"was refused by the hub ({message})"
        case DatasetsError() | OSError() | ValueError():
            # No such configuration, split or file; or files that are damaged, or no table.
            return f"cannot be loaded ({message})"
    if type(error).__module__.startswith(_HTTP_LIBRARIES):
        return "offline"
    return None
