"""The recipe of a merge: models, method and output; and of a sweep over methods and weights."""

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from mttl.config.config_errors import format_errors
from mttl.config.section import Section, Seed
from mttl.io.errors import ConfigError
from mttl.io.yaml12 import read_yaml

Density = Annotated[float, Field(gt=0, le=1)]
S = TypeVar("S", bound=Section)
Text = Annotated[str, Field(min_length=1)]


class Arithmetic(Section):
    """θ0 + Σ ± λ τ."""

    kind: Literal["arithmetic"]


class CaPE(Section):
    """θ0 + λ (θ_E − θ_A): one expert and one anti-expert."""

    kind: Literal["cape"]
    weight: PositiveFloat = 1.0
    """Weight λ of the difference."""


class _Bounded(Section):
    floor: PositiveFloat = 1e-6
    """Smallest Fisher information; lower values are raised."""
    ceiling: PositiveFloat | None = None
    """Largest Fisher information; higher values are lowered."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.ceiling is not None and self.ceiling < self.floor:
            raise ValueError(f"ceiling ({self.ceiling}) must be at least floor ({self.floor})")
        return self


class Elastic(_Bounded):
    """Elastic weight removal as in its paper."""

    kind: Literal["elastic"]
    base_weight: PositiveFloat = 1.0
    """Weight λ0 of the base."""


class ElasticCaPE(_Bounded):
    """CaPE with Fisher information as in the code released with elastic weight removal."""

    kind: Literal["elastic_cape"]
    fisher: Text
    """File with the Fisher information of the difference of expert and anti-expert."""
    weight: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Weight λ of the difference; the base has 1 − λ."""
    ceiling: PositiveFloat = 1e6
    """Largest Fisher information; higher values are lowered."""


class FisherAverage(Section):
    """Σ λ f θ / Σ λ f."""

    kind: Literal["fisher_average"]
    floor: PositiveFloat = 1e-6
    """Smallest Fisher information; lower values are raised."""


class Ties(Section):
    """TIES: trim task vectors, elect signs, and average the entries that agree."""

    kind: Literal["ties"]
    density: Density = 0.2
    """Share of each task vector that is kept."""
    scope: Literal["tensor", "model"] = "tensor"
    """Scope of the density: every tensor, or all tensors together."""
    election: Literal["total", "frequency"] = "total"
    """Election of signs by the sum of values, or by the number of vectors."""
    scale: PositiveFloat = 1.0
    """Factor of the merged vector."""


class Dare(Section):
    """DARE: drop entries at random and rescale the rest; then add, or elect signs as TIES."""

    kind: Literal["dare"]
    density: Density = 0.5
    """Probability that an entry is kept."""
    seed: Seed = 13
    """Seed of the masks."""
    then: Literal["add", "ties"] = "add"
    """Method of the merge after dropping."""
    election: Literal["total", "frequency"] = "total"
    """Election of signs, as for ties."""


class Della(Dare):
    """DELLA: DARE that keeps large entries of a row more often than small ones."""

    kind: Literal["della"]
    spread: PositiveFloat = 0.15
    """Half of the difference between the largest and the smallest probability of a row."""

    @model_validator(mode="after")
    def _in_range(self) -> Self:
        if not self.spread < min(self.density, 1 - self.density):
            raise ValueError(
                f"density - spread and density + spread ({self.density}, {self.spread}) must lie "
                "between 0 and 1"
            )
        return self


class Slerp(Section):
    """Spherical interpolation between the base and one model."""

    kind: Literal["slerp"]
    weight: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Share of the model."""


class ModelStock(Section):
    """Model Stock: the mean of models, moved to the base by the angles between them."""

    kind: Literal["model_stock"]


MergeMethod = Annotated[
    Arithmetic
    | CaPE
    | Elastic
    | ElasticCaPE
    | FisherAverage
    | Ties
    | Dare
    | Della
    | Slerp
    | ModelStock,
    Field(discriminator="kind"),
]


# Methods that use no weights of the models, and the advice.
_ONE = "set method.weight instead"
OWN_WEIGHT = {"cape": _ONE, "elastic_cape": _ONE, "slerp": _ONE, "model_stock": "leave it out"}


class MergeBase(Section):
    """The base model of the task vectors."""

    model: Text
    """Folder of a model in the format of transformers."""
    fisher: Text | None = None
    """File with the Fisher information of the base; see mttl fisher."""


class Ingredient(Section):
    """A tuned model, or a task of a trained run, that is merged into the base."""

    model: Text | None = None
    """Folder of a model tuned from the base."""
    run: Text | None = None
    """Folder of a run trained on the base; its skills are mixed for one task."""
    task: Text | None = None
    """Task of the run."""
    weight: PositiveFloat | Annotated[dict[str, NonNegativeFloat], Field(min_length=1)] = 1.0
    """Weight λ; the sign comes from the role. Or weights by patterns of tensor names: the first
    match counts, and tensors without a match have the weight 0."""
    role: Literal["expert", "anti_expert"] = "expert"
    """Role of the model: an expert is added, an anti-expert subtracted."""
    fisher: Text | None = None
    """File with the Fisher information of the model on its data."""

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if (self.model is None) == (self.run is None):
            raise ValueError("must have either model: FOLDER, or run: FOLDER and task: NAME")
        if (self.run is None) != (self.task is None):
            raise ValueError("needs both run and task, whose routing weights are used")
        return self

    def weight_of(self, tensor: str) -> float:
        """Return the weight of a tensor."""
        if not isinstance(self.weight, dict):
            return self.weight
        return next((x for name, x in self.weight.items() if fnmatchcase(tensor, name)), 0.0)


class Recipe(Section):
    """The recipe of a merge."""

    base: MergeBase
    """Base model, which determines the format of the result."""
    models: Annotated[list[Ingredient], Field(min_length=1)]
    """Models that are merged into the base."""
    method: MergeMethod
    """Method of the merge."""
    out: Text | None = None
    """Folder of the result; the option --out takes precedence."""

    @model_validator(mode="after")
    def _checked(self) -> Self:
        kind, problems = self.method.kind, []
        roles = [model.role for model in self.models]
        if kind in ("cape", "elastic_cape") and sorted(roles) != ["anti_expert", "expert"]:
            problems.append(
                f"models must be one expert and one anti_expert for {kind}, not {', '.join(roles)}"
            )
        if kind in ("fisher_average", "slerp", "model_stock") and "anti_expert" in roles:
            problems.append(f"models must all be experts for {kind}, which cannot subtract")
        if kind == "slerp" and len(roles) != 1:
            problems.append(f"models must be one for slerp, not {len(roles)}")
        if kind == "model_stock" and len(roles) < 2:
            problems.append("models must be at least two for model_stock")
        if kind in OWN_WEIGHT and any("weight" in x.model_fields_set for x in self.models):
            problems.append(f"models: weight is not used by {kind}; {OWN_WEIGHT[kind]}")
        of_base, of_models = used_fishers(kind)
        wanted = {"base.fisher": (of_base, self.base.fisher)}
        for place, model in enumerate(self.models):
            wanted[f"models.{place}.fisher"] = (of_models, model.fisher)
        for key, (needed, value) in wanted.items():
            if needed == (value is None):
                problem = f"required for {kind}" if needed else f"not used by {kind}; leave it out"
                problems.append(f"{key} is {problem}")
        if problems:
            raise ValueError("\n".join(problems))
        return self


def used_fishers(kind: str) -> tuple[bool, bool]:
    """Return whether a method uses the Fisher information of the base, and of the models."""
    return kind in ("elastic", "elastic_cape"), kind in ("elastic", "fisher_average")


def read_recipe(path: str | Path) -> Recipe:
    """Return the validated recipe of a file."""
    return read_section(path, Recipe)


def read_section(path: str | Path, kind: type[S]) -> S:
    """Return the validated settings of a file with a base, models and methods."""
    tree = read_yaml(Path(path), ConfigError)
    if not isinstance(tree, dict):
        keys = [name for name, field in kind.model_fields.items() if field.is_required()]
        raise ConfigError(f"{path}: must be a mapping with {', '.join(keys)}")
    return validated(kind, tree, str(path))


def validated(kind: type[S], tree: dict[str, Any], place: str) -> S:
    """Return a validated section; lines of the `ConfigError` begin with ``place``."""
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        lines = format_errors(error, tree, {}, kind).splitlines()
        raise ConfigError("\n".join(f"{place}: {line}" for line in lines)) from None


class SweptMethod(Section):
    """A method of a merge, and its weights."""

    method: MergeMethod
    """Section as in a recipe, without the weight λ."""
    weights: Annotated[list[PositiveFloat], Field(min_length=1)]
    """Weights λ."""


class Sweep(Section):
    """Merges of the same models by several methods and weights, and the rows that they answer."""

    base: MergeBase
    """Base model; Fisher information is left out where a method does not use it."""
    models: Annotated[list[Ingredient], Field(min_length=1)]
    """Models; those without a weight have the weight λ."""
    methods: Annotated[dict[str, SweptMethod], Field(min_length=1)]
    """Methods by name."""
    run: Text
    """Run on the base, whose prompt format is used."""
    task: Text
    """Task of the run, whose rows are answered."""
    table: Text | None = None
    """Table of other rows, as for `mttl predict`."""
    metrics: Annotated[list[Text], Field(min_length=2)]
    """Metrics; the figure shows the first against each of the others."""
    generation: dict[Literal["num_beams", "max_new_tokens"], PositiveInt] = {}  # noqa: RUF012
    """Settings of generation that differ from those of the run's evaluation."""

    def recipe(self, name: str, weight: float) -> Recipe:
        """Return the recipe of a method with a weight λ.

        λ is the weight of the method if it has one, as for CaPE; otherwise of the models without
        one. Raises a `ConfigError` if λ has no effect, or the recipe is not valid.
        """
        place, method = f"methods.{name}", self.methods[name].method.model_dump()
        models = [model.model_dump(exclude_unset=True) for model in self.models]
        free = [model for model in models if "weight" not in model]
        if "weight" in method:
            method["weight"], free = weight, []
            models = [{k: v for k, v in model.items() if k != "weight"} for model in models]
        elif not free or (method["kind"] == "fisher_average" and free == models):
            which = "set the weight of some" if free else "leave out the weight of some"
            raise ConfigError(f"{place}: λ has no effect on {method['kind']}; {which} models")
        for model in free:
            model["weight"] = weight
        base = self.base.model_dump(exclude_none=True)
        for used, parts in zip(used_fishers(method["kind"]), ([base], models), strict=True):
            for part in () if used else parts:
                part.pop("fisher", None)
        return validated(Recipe, {"base": base, "models": models, "method": method}, place)
