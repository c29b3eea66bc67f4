"""Types of settings: annotations with bounds for constructor arguments."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Len, Lt, MinLen

Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Fraction = Annotated[float, Ge(0), Lt(1)]
PositiveInt = Annotated[int, Gt(0)]
NonNegativeInt = Annotated[int, Ge(0)]
Names = Annotated[list[str], MinLen(1)]
# Range of every random generator's seed.
Seed = Annotated[int, Ge(0), Lt(2**32)]

Kind = TypeVar("Kind")


@dataclass(frozen=True, init=False)
class OneOf:
    """Annotation of a text with a fixed set of values."""

    words: tuple[str, ...]

    def __init__(self, *words: str) -> None:
        object.__setattr__(self, "words", words)


@dataclass(frozen=True)
class ReadFrom:
    """Annotation of an argument that the program creates from a setting."""

    held: Any  # type of the setting
    default: Any = ...  # default of the setting; by default it is required


def refusing(cls: type[Kind]) -> type[Kind]:
    """Make a constructor reject keyword settings outside the bounds of their annotations.

    Configurations are validated separately; this is for direct calls of the class.
    """
    init: Callable[..., None] = cls.__init__

    @wraps(init)
    def checked(self: Any, *sizes: Any, **settings: Any) -> None:
        for name, value in settings.items():
            if value is not None and (must := _broken(value, init.__annotations__.get(name))):
                raise ValueError(f"{name} ({value!r}) must {must}")
        init(self, *sizes, **settings)

    cls.__init__ = checked
    return cls


class Bounded:
    """Base class of parts whose constructors are `refusing`."""

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        if "__init__" in vars(cls):
            refusing(cls)


def _broken(value: Any, annotation: Any) -> str | None:
    """Return the requirement that a value violates, or None."""
    union = get_origin(annotation) in (Union, UnionType)
    for one in get_args(annotation) if union else (annotation,):
        for mark in getattr(one, "__metadata__", ()):
            match mark:
                case OneOf(words=words) if value not in words:
                    return f"be one of {', '.join(words)}"
                case Gt(gt=least) if not value > least:
                    return f"be above {least}"
                case Ge(ge=least) if not value >= least:
                    return f"be at least {least}"
                case Lt(lt=most) if not value < most:
                    return f"be below {most}"
                case Le(le=most) if not value <= most:
                    return f"be at most {most}"
                case Len(min_length=n) | MinLen(min_length=n) if len(value) < n:
                    return f"have at least {n} members"
    return None
