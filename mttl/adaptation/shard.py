"""One part of several that share the jobs of an adaptation."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from mttl.command import WORK, CommandParser, processes
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


def add_shares(parser: CommandParser) -> None:
    """Let a command line share its jobs among processes of its own, or name one part of them."""
    add = parser.group(WORK).add_argument
    add(
        "--workers",
        type=processes,
        default=1,
        metavar="N",
        help="processes that share the jobs, or those of --shard (%(default)s)",
    )
    add("--shard", type=_shard, default=Shard(), metavar="I/N", help="run the I-th of N parts only")


def _shard(text: str) -> Shard:
    """Read a part of the jobs."""
    number, _, n_shards = text.partition("/")
    if not (number.isdecimal() and n_shards.isdecimal()):
        raise argparse.ArgumentTypeError(f"'{text}' must have the form I/N, such as 1/4")
    try:
        return Shard(int(number), int(n_shards))
    except TaskError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
