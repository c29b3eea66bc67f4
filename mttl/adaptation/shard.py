"""One part of several that share the jobs of an adaptation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from mttl.errors import TaskError

Job = TypeVar("Job")


@dataclass(frozen=True)
class Shard:
    """One part of several that share the jobs.

    Args:
        number: Which part, from 1.
        n_shards: Parts in all.

    Raises:
        TaskError: If there is no such part.
    """

    number: int = 1
    n_shards: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.n_shards:
            raise TaskError(
                f"shard {self.number}/{self.n_shards}: the first number must lie between 1 and "
                "the second"
            )

    def share(self, jobs: Sequence[Job]) -> list[Job]:
        """Return the jobs of this part."""
        return list(jobs[self.number - 1 :: self.n_shards])

    def part(self, number: int, n_parts: int) -> "Shard":
        """Return a part of this part."""
        return Shard(self.number + (number - 1) * self.n_shards, n_parts * self.n_shards)

    @property
    def file(self) -> str:
        """The name of the file that this part writes."""
        if self.n_shards == 1:
            return "results.jsonl"
        return f"results-{self.number}-of-{self.n_shards}.jsonl"
