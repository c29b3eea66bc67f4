"""Types of settings: what a constructor's argument may be, beside its type."""

from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Gt, Lt, MinLen

Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Fraction = Annotated[float, Ge(0), Lt(1)]
PositiveInt = Annotated[int, Gt(0)]
NonNegativeInt = Annotated[int, Ge(0)]
Names = Annotated[list[str], MinLen(1)]
# What every generator of random numbers takes.
Seed = Annotated[int, Ge(0), Lt(2**32)]


@dataclass(frozen=True, init=False)
class OneOf:
    """Annotation of a text that is one of several words."""

    words: tuple[str, ...]

    def __init__(self, *words: str) -> None:
        object.__setattr__(self, "words", words)


@dataclass(frozen=True)
class ReadFrom:
    """Annotation of an argument that the program makes from what a configuration holds.

    Args:
        held: Type of the setting.
        default: Its value where none is given; by default there must be one.
    """

    held: Any
    default: Any = ...
