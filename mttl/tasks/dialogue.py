"""Inputs of the task kind `dialogue`: knowledge, then turns.

Each is a line after its marker, ``knowledge: ``, ``user: `` or ``assistant: ``.
"""

import re
from bisect import bisect_left
from collections.abc import Callable
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple, Self

from mttl.tasks.filters import SPEAKERS

KNOWLEDGE = "knowledge: "
INPUT, OUTPUT = f"{KNOWLEDGE}{{knowledge|passages}}\n{{history|turns}}", "{response}"
COLUMNS = ("history", "knowledge", "label")  # of a record, kept for metrics
_TURN = re.compile(rf"(?m)^({'|'.join(SPEAKERS)}): ")


class Dialogue(NamedTuple):
    """The parts of an input: text before the first turn, and pairs of speaker and text."""

    head: str
    turns: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the parts; a text without a last turn of the user is that turn as a whole."""
        head, *rest = _TURN.split(text)
        turns = tuple(zip(rest[::2], map(str.strip, rest[1::2]), strict=True))
        whole = not turns or turns[-1][0] != "user"
        return cls("", (("user", text.strip()),)) if whole else cls(head.strip(), turns)

    @property
    def text(self) -> str:
        """The input."""
        lines = [f"{speaker}: {text}" for speaker, text in self.turns]
        return "\n".join([self.head] * bool(self.head) + lines)

    @property
    def knowledge(self) -> str:
        """The text before the first turn, without its marker."""
        return self.head.removeprefix(KNOWLEDGE)

    def exchanges(self) -> tuple[tuple[tuple[str, str], ...], str]:
        """Return pairs of the user's and the assistant's text, and the user's last text.

        Successive turns of a speaker are joined. If the assistant begins, the user's first text is
        empty, because chat templates begin with the user.
        """
        texts = [
            (speaker, "\n".join(text for _, text in own))
            for speaker, own in groupby(self.turns, itemgetter(0))
        ]
        said = [""] * (texts[0][0] != "user") + [text for _, text in texts]
        return tuple(zip(said[:-1:2], said[1::2], strict=True)), said[-1]

    def shortened(self, fits: Callable[[Self], bool]) -> Self:
        """Return the dialogue without its oldest turns, so that it fits.

        The last turn stays, and with it the knowledge; only if both do not fit, the knowledge is
        cut at its end, and then the last turn at its start.
        """
        (speaker, text), n = self.turns[-1], len(self.turns) - 1
        alone = self._replace(turns=self.turns[-1:])

        def version(cuts: int) -> Self:
            if cuts <= n:
                return self._replace(turns=self.turns[cuts:])
            left = n + len(self.head) - cuts
            if left >= 0:
                return alone._replace(head=self.head[:left])
            return type(self)("", ((speaker, text[-left:]),))

        most = n + len(self.head) + len(text)
        return version(bisect_left(range(most), True, key=lambda cuts: fits(version(cuts))))
