"""The state of a vector environment as plain data: how each episode began and what was done since.

Environments have no randomness of their own after the beginning of an episode, so that is all it
takes; going on plays the actions again, which is exact and knows nothing of minigrid's objects. The
state is JSON text: reading it runs nothing. It is the same however many processes played the slots,
and any number can go on from it, because it can be cut into groups of slots and joined again.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Any, Self

import numpy as np

_PER_PLACE = ("episodes", "starts", "actions", "seen")


@dataclass(frozen=True)
class SavedState:
    """T levels × N slots of environments; lists have an entry per place, level after level.

    Attributes:
        levels: Names of the levels.
        n_slots: N.
        seed: Of the run.
        evaluation: Whether the fixed episodes of evaluation are played.
        first_slot: Number of the first slot.
        stride: Distance of the numbers of a slot's episodes of evaluation.
        episodes: Number of each slot's episode.
        starts: The random generator before the episode; None where it began from a seed.
        actions: What was done since, a digit each.
        seen: A digest of what is seen now.
    """

    levels: list[str]
    n_slots: int
    seed: int
    evaluation: bool
    first_slot: int
    stride: int
    episodes: list[int]
    starts: list[dict[str, int] | None]
    actions: list[str]
    seen: list[str]

    def encode(self) -> bytes:
        """Return the text."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, state: bytes) -> Self:
        """Read the text that `encode` returned."""
        return cls(**json.loads(state))

    def split(self, widths: Sequence[int]) -> list["SavedState"]:
        """Return the states of neighbouring groups of slots.

        Args:
            widths: How many slots of every level each group has; they add up to N.
        """
        starts = [stop - width for stop, width in zip(accumulate(widths), widths, strict=True)]
        return [
            replace(
                self,
                n_slots=width,
                first_slot=self.first_slot + start,
                **{name: self._part(name, start, start + width) for name in _PER_PLACE},
            )
            for start, width in zip(starts, widths, strict=True)
        ]

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Return the state of the vector environment that these groups make up, in order."""
        return replace(
            parts[0],
            n_slots=sum(part.n_slots for part in parts),
            **{
                name: [
                    item
                    for level in range(len(parts[0].levels))
                    for part in parts
                    for item in part._of_level(name, level)
                ]
                for name in _PER_PLACE
            },
        )

    def _of_level(self, name: str, level: int) -> list[Any]:
        return getattr(self, name)[level * self.n_slots : (level + 1) * self.n_slots]

    def _part(self, name: str, start: int, stop: int) -> list[Any]:
        levels = range(len(self.levels))
        return [item for level in levels for item in self._of_level(name, level)[start:stop]]


def generator_state(generator: np.random.Generator) -> dict[str, int]:
    """Return the state of numpy's generator as numbers."""
    found = generator.bit_generator.state
    return {**found["state"], "has_uint32": found["has_uint32"], "uinteger": found["uinteger"]}


def set_generator(generator: np.random.Generator, state: dict[str, int]) -> None:
    """Put a generator into a state that `generator_state` returned."""
    generator.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": state["state"], "inc": state["inc"]},
        "has_uint32": state["has_uint32"],
        "uinteger": state["uinteger"],
    }
