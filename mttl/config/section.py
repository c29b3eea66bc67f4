"""What all sections of settings have in common."""

from typing import Annotated, Any, Literal

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
RowInit = Literal["mean", "fresh", "matrix", "own", "learned"]
Seeds = Annotated[list[Seed], Field(min_length=1), AfterValidator(once)]


class Section(BaseModel):
    """A frozen group of settings that refuses what it does not know."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )
