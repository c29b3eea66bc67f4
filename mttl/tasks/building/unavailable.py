"""The error for a source that is not available."""

from mttl.errors import TaskError


class UnavailableError(TaskError):
    """The records of a task cannot be had here; the message says why, and how to get them."""
