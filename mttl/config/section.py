"""What all sections of settings have in common."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from mttl.plugins.describe import notes_of
from mttl.plugins.part_settings import Seed


def once(values: list[Any]) -> list[Any]:
    """Refuse a list that names something twice."""
    if len(set(values)) < len(values):
        raise ValueError(f"{values} must name each only once")
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
# Those that begin as one trained task.
AS_TRAINED: tuple[RowInit, ...] = ("nearest_task", "best_coefficients")
Seeds = Annotated[list[Seed], Field(min_length=1), AfterValidator(once)]


# A reason and what to do, or a condition on settings of the part and the reason.
Lack: TypeAlias = str | tuple[str, str]


class Section(BaseModel):
    """A frozen group of settings that refuses what it does not know.

    Entries of base classes hold as well; conditions are those of `holds`.

    Attributes:
        lacks: Features that this part does not have, with the reason; an empty reason takes an
            entry back. See `mttl.config.capabilities`.
        asks: Features that these settings ask of all parts, with the setting or condition.
        refuses: Conditions that are refused, each with a sentence; ``{name}`` in it is a value.
    """

    lacks: ClassVar[Mapping[str, Lack]] = {}
    asks: ClassVar[Mapping[str, str]] = {}
    refuses: ClassVar[Mapping[str, str]] = {}

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    def problems(self) -> Iterator[str]:
        """Yield what does not fit together, a sentence each."""
        for condition, sentence in notes_of(type(self), "refuses").items():
            if holds(self, condition):
                yield sentence.format_map({**dict(self), "self": self})

    @model_validator(mode="after")
    def _without_problems(self) -> Self:
        if found := dict.fromkeys(self.problems()):
            raise ValueError("\n".join(found))
        return self


def holds(part: Section, condition: str) -> bool:
    """Return whether settings are as a condition says.

    | clause | holds if |
    |---|---|
    | ``a``, ``not a`` | the setting is on, or off |
    | ``a = x|y``, ``a != x|y`` | it, or an entry of its list, is one of the words; or none is |
    | ``a > b``, ``a < b`` | it is above, or below, a number or another setting |
    | ``a % b`` | it is no multiple of that |

    Clauses are joined by ``and``; a setting of a section within has a dotted name. What is not
    there is off, and neither above nor below anything. No condition always holds.
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
    """Return the kind of a section that is one of several."""
    field = model.model_fields.get("kind")
    names = get_args(field.annotation) if field is not None else ()
    return str(names[0]) if len(names) == 1 else None
