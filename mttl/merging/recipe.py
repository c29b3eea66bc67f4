"""A recipe: which models are merged, how, and where the result goes."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, ValidationError, model_validator

from mttl.config.config_errors import format_errors
from mttl.config.section import Section, Seed
from mttl.io.errors import ConfigError
from mttl.io.yaml12 import read_yaml

Density = Annotated[float, Field(gt=0, le=1)]
Text = Annotated[str, Field(min_length=1)]


class Arithmetic(Section):
    """θ0 + Σ ± λ τ."""

    kind: Literal["arithmetic"]


class CaPE(Section):
    """θ0 + λ (θ_E − θ_A): one expert and one anti-expert."""

    kind: Literal["cape"]
    weight: PositiveFloat = 1.0
    """λ."""


class _Bounded(Section):
    floor: PositiveFloat = 1e-6
    """The smallest Fisher information."""
    ceiling: PositiveFloat | None = None
    """The largest Fisher information."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.ceiling is not None and self.ceiling < self.floor:
            raise ValueError(f"ceiling ({self.ceiling}) must be at least floor ({self.floor})")
        return self


class Elastic(_Bounded):
    """Elastic weight removal as in its paper."""

    kind: Literal["elastic"]
    base_weight: PositiveFloat = 1.0
    """λ0."""


class ElasticCaPE(_Bounded):
    """CaPE with Fisher information as in the code released with elastic weight removal."""

    kind: Literal["elastic_cape"]
    fisher: Text
    """File with the Fisher information of the difference of expert and anti-expert."""
    weight: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """λ; the base has 1 − λ."""
    ceiling: PositiveFloat = 1e6
    """The largest Fisher information."""


class FisherAverage(Section):
    """Σ λ f θ / Σ λ f."""

    kind: Literal["fisher_average"]
    floor: PositiveFloat = 1e-6
    """The smallest Fisher information."""


class Ties(Section):
    """Trim, elect a sign, average those that agree."""

    kind: Literal["ties"]
    density: Density = 0.2
    """Share of each task vector that is kept."""
    scope: Literal["tensor", "model"] = "tensor"
    """The share of every tensor, or of all tensors together."""
    election: Literal["total", "frequency"] = "total"
    """Signs by the sum of values, or by the number of vectors."""
    scale: PositiveFloat = 1.0
    """Factor of the merged vector."""


class Dare(Section):
    """Drop entries at random and rescale; then add, or elect signs as TIES does."""

    kind: Literal["dare"]
    density: Density = 0.5
    """Probability that an entry is kept."""
    seed: Seed = 13
    """Of the masks."""
    then: Literal["add", "ties"] = "add"
    """How the vectors are merged afterwards."""
    election: Literal["total", "frequency"] = "total"
    """As for ties."""


MergeMethod = Annotated[
    Arithmetic | CaPE | Elastic | ElasticCaPE | FisherAverage | Ties | Dare,
    Field(discriminator="kind"),
]


class MergeBase(Section):
    """The model that task vectors start from."""

    model: Text
    """Folder of a model, as transformers saves it."""
    fisher: Text | None = None
    """File with its Fisher information; see mttl fisher."""


class Ingredient(Section):
    """What is merged into the base: a tuned model, or a task of a trained run."""

    model: Text | None = None
    """Folder of a model tuned from the base."""
    run: Text | None = None
    """Folder of a run trained on the base; its skills are mixed for one task."""
    task: Text | None = None
    """The task of the run."""
    weight: PositiveFloat = 1.0
    """λ; the sign comes from the role."""
    role: Literal["expert", "anti_expert"] = "expert"
    """An expert is added, an anti-expert subtracted."""
    fisher: Text | None = None
    """File with its Fisher information, at its own weights and on its own data."""

    @property
    def name(self) -> str:
        """What to call it."""
        return str(self.model) if self.run is None else f"{self.run} [{self.task}]"

    @model_validator(mode="after")
    def _checked(self) -> Self:
        problem = ""
        if (self.model is None) == (self.run is None):
            problem = "must have either model: FOLDER, or run: FOLDER and task: NAME"
        elif (self.run is None) != (self.task is None):
            problem = "run and task belong together: a run's skills are mixed by task"
        if problem:
            raise ValueError(problem)
        return self


class Recipe(Section):
    """A whole recipe."""

    base: MergeBase
    """What the result is made from, and looks like."""
    models: Annotated[list[Ingredient], Field(min_length=1)]
    """What is merged into it."""
    method: MergeMethod
    """How."""
    out: Text | None = None
    """Folder of the result; the command's --out wins."""

    @model_validator(mode="after")
    def _checked(self) -> Self:
        kind, problems = self.method.kind, []
        roles = [model.role for model in self.models]
        if kind in ("cape", "elastic_cape"):
            if sorted(roles) != ["anti_expert", "expert"]:
                problems.append(
                    f"models must be one expert and one anti_expert for {kind}, not "
                    f"{', '.join(roles)}"
                )
            if any("weight" in model.model_fields_set for model in self.models):
                problems.append(
                    f"models: {kind} gives both the same weight: set method.weight instead"
                )
        if kind == "fisher_average" and "anti_expert" in roles:
            problems.append("models must all be experts for fisher_average: it cannot subtract")
        problems += self._about_fishers(kind)
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def _about_fishers(self, kind: str) -> list[str]:
        of_base = kind in ("elastic", "elastic_cape")
        of_models = kind in ("elastic", "fisher_average")
        wanted = {"base.fisher": (of_base, self.base.fisher)}
        for place, model in enumerate(self.models):
            wanted[f"models.{place}.fisher"] = (of_models, model.fisher)
        return [
            f"{key} is required for {kind}"
            if needed
            else f"{key} is not used by {kind}: leave it out"
            for key, (needed, value) in wanted.items()
            if needed == (value is None)
        ]


def read_recipe(path: str | Path) -> Recipe:
    """Read and validate a recipe.

    Raises:
        ConfigError: If it cannot be read, is malformed, or does not validate; the message names
            every key with its value, what is allowed, and near names.
    """
    path = Path(path)
    tree = read_yaml(path, ConfigError)
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: must hold base, models and method")
    try:
        return Recipe.model_validate(tree)
    except ValidationError as error:
        lines = format_errors(error, tree, {}, Recipe).splitlines()
        raise ConfigError("\n".join(f"{path}: {line}" for line in lines)) from None
