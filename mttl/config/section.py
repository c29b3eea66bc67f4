"""What all sections of settings have in common."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

NonNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
# What every generator of random numbers takes.
Seed = Annotated[int, Field(ge=0, lt=2**32)]


def once(values: list[Any]) -> list[Any]:
    """Refuse a list that names something twice."""
    if len(set(values)) < len(values):
        raise ValueError(f"{values} must name each only once")
    return values


AdaptMode = Literal[
    "zero_shot", "router_only", "skills_only", "all", "average", "from_scratch", "full"
]
FreeInit = Literal["coefficients", "best_coefficients"]
RowInit = Literal[
    "mean",
    "fresh",
    "nearest_task",
    "expert_row",
    "private_skill",
    "learned",
    "factors",
    "average",
    FreeInit,
]
FREE: tuple[FreeInit, ...] = get_args(FreeInit)
# Those that begin as one trained task.
AS_TRAINED: tuple[RowInit, ...] = ("nearest_task", "best_coefficients")
Seeds = Annotated[list[Seed], Field(min_length=1), AfterValidator(once)]


# A reason and what to do, or a condition on settings of the part and the reason.
Lack: TypeAlias = str | tuple[str, str]


class Section(BaseModel):
    """A frozen group of settings that refuses what it does not know.

    Attributes:
        lacks: Features that this part does not have, with the reason; those of its base classes
            are added, and an empty reason takes one back. See `mttl.config.capabilities`.
        asks: Features that these settings ask of all parts, with the setting or condition.
    """

    lacks: ClassVar[Mapping[str, Lack]] = {}
    asks: ClassVar[Mapping[str, str]] = {}

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the sections that an annotation allows."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in models_in(part)]


def kind_of(model: type[BaseModel]) -> str | None:
    """Return the kind of a section that is one of several."""
    field = model.model_fields.get("kind")
    names = get_args(field.annotation) if field is not None else ()
    return str(names[0]) if names else None
