"""Base class of all sections of settings, and the conditions of their checks."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from mttl.plugins.describe import notes_of
from mttl.plugins.part_settings import Seed


def once(values: list[Any]) -> list[Any]:
    """Raise a `ValueError` if a list has duplicates."""
    if len(set(values)) < len(values):
        raise ValueError(f"{values} must not contain an entry twice")
    return values


AdaptMode = Literal[
    "zero_shot",
    "in_context",
    "router_only",
    "skills_only",
    "all",
    "average",
    "from_scratch",
    "full",
]
FreeInit = Literal["coefficients", "best_coefficients"]
_BoundInit = Literal["mean", "fresh", "nearest_task", "expert_row", "private_skill", "learned"]
RowInit = Literal[_BoundInit, "factors", "average", FreeInit]
FREE: tuple[FreeInit, ...] = get_args(FreeInit)
# Initialisations equal to those of one trained task.
AS_TRAINED: tuple[RowInit, ...] = ("nearest_task", "best_coefficients")
Seeds = Annotated[list[Seed], Field(min_length=1), AfterValidator(once)]
# The reason with the remedy, or a condition on the section's settings and the reason.
Lack: TypeAlias = str | tuple[str, str]


class Section(BaseModel):
    """A frozen group of settings that rejects unknown keys.

    Entries of base classes are inherited; `holds` defines the conditions.

    Attributes:
        lacks: Unsupported features with the reason; an empty reason removes an inherited entry. See
            `mttl.config.capabilities`.
        asks: Features required of all sections, with the setting or condition that requires them.
        refuses: Conditions that are rejected, with a message; ``{name}`` in it is a value.
    """

    lacks: ClassVar[Mapping[str, Lack]] = {}
    asks: ClassVar[Mapping[str, str]] = {}
    refuses: ClassVar[Mapping[str, str]] = {}

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    def problems(self) -> Iterator[str]:
        """Yield one sentence per conflict between settings."""
        for condition, sentence in notes_of(type(self), "refuses").items():
            if holds(self, condition):
                yield sentence.format_map({**dict(self), "self": self})

    @model_validator(mode="after")
    def _without_problems(self) -> Self:
        if found := dict.fromkeys(self.problems()):
            raise ValueError("\n".join(found))
        return self


def holds(part: Section, condition: str) -> bool:
    """Return whether settings fulfil a condition.

    | clause | holds if |
    |---|---|
    | ``a``, ``not a`` | the setting is on, or off |
    | ``a = x|y``, ``a != x|y`` | it, or an entry of its list, is one of the words; or none is |
    | ``a > b``, ``a < b`` | it is above, or below, a number or another setting |
    | ``a % b`` | it is not a multiple of that |

    Clauses are joined by ``and``; a setting of a nested section has a dotted name. A missing
    setting is off, and fulfils no comparison. An empty condition holds.
    """
    return all(
        _is(part, *clause.removeprefix("not ").split()) is not clause.startswith("not ")
        for clause in condition.split(" and ")
        if clause
    )


def _is(part: Section, name: str, sign: str = "", other: str = "") -> bool:
    value = _value(part, name)
    if not sign:
        return bool(value) and value != "none"
    if sign in ("=", "!="):
        values = value if isinstance(value, list) else [value]
        return any(str(one) in other.split("|") for one in values) is (sign == "=")
    bound = _value(part, other) if other[0].isalpha() else float(other)
    if not isinstance(value, int | float) or not isinstance(bound, int | float):
        return False
    if sign == "%":
        return bool(value % bound)
    return value < bound if sign == "<" else value > bound


def _value(part: Any, path: str) -> Any:
    for name in path.split("."):
        part = getattr(part, name, None)
    return part


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the sections that an annotation allows."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in models_in(part)]


def kind_of(model: type[BaseModel]) -> str | None:
    """Return the kind of a section that is a member of a union, else None."""
    field = model.model_fields.get("kind")
    names = get_args(field.annotation) if field is not None else ()
    return str(names[0]) if len(names) == 1 else None
