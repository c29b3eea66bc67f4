"""The colour and the marker of each category of tasks.

References:
    Okabe and Ito, *Color Universal Design*, 2008: colours that colour-blind readers distinguish.
"""

from collections.abc import Sequence
from dataclasses import dataclass

UNKNOWN = "unknown"
# Fill of the marker, and a darker shade for text, with a contrast of 4.5 on white.
COLOURS = (
    ("#0072B2", "#0072B2"),
    ("#D55E00", "#B24E00"),
    ("#009E73", "#007A59"),
    ("#CC79A7", "#A8457C"),
    ("#E69F00", "#8F6200"),
    ("#56B4E9", "#1F78AD"),
    ("#000000", "#000000"),
)
# Ten markers and seven colours are coprime, which gives 70 different pairs.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "p", "h")
NO_COLOUR = ("#999999", "#666666")


@dataclass(frozen=True)
class Look:
    """The colours and the marker of a category."""

    fill: str
    ink: str
    marker: str


def category_looks(categories: Sequence[str]) -> dict[str, Look]:
    """Return a unique look for every category; that of `UNKNOWN` is a grey circle."""
    known = sorted(set(categories) - {UNKNOWN})
    looks = {
        name: Look(*COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)])
        for number, name in enumerate(known)
    }
    return looks | ({UNKNOWN: Look(*NO_COLOUR, "o")} if UNKNOWN in categories else {})
