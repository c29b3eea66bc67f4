"""Jobs whose training diverged: they have no result, and the others go on."""

from collections.abc import Iterator
from contextlib import contextmanager

from mttl.io.errors import DivergedError


class Diverged:
    """Collects the jobs that diverged, for the end of a command to report."""

    def __init__(self) -> None:
        self.jobs: list[str] = []

    @contextmanager
    def noted(self, job: object) -> Iterator[None]:
        """End a ``with`` block where a training diverges, and note the job."""
        try:
            yield
        except DivergedError as error:
            self.jobs.append(f"{job}: {error}")

    def report(self) -> None:
        """Report what diverged.

        Raises:
            DivergedError: If any job did.
        """
        if self.jobs:
            listed = "\n".join(self.jobs)
            raise DivergedError(f"{len(self.jobs)} diverged, and have no result:\n{listed}")
