"""The settings of a sweep: merges of the same models by several methods and weights λ."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from mttl.config.section import Section
from mttl.io.errors import ConfigError
from mttl.merging import recipe as recipes
from mttl.merging.recipe import Text


class SweptMethod(Section):
    """A method of a merge, and its weights."""

    method: recipes.MergeMethod
    """Section as in a recipe, without the weight λ."""
    weights: Annotated[list[PositiveFloat], Field(min_length=1)]
    """Weights λ."""


class Sweep(Section):
    """Merges of the same models by several methods and weights, and the rows that they answer."""

    base: recipes.MergeBase
    """Base model; Fisher information is left out where a method does not use it."""
    models: Annotated[list[recipes.Ingredient], Field(min_length=1)]
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

    def recipe(self, name: str, weight: float) -> recipes.Recipe:
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
        for used, parts in zip(recipes.used_fishers(method["kind"]), ([base], models), strict=True):
            for part in () if used else parts:
                part.pop("fisher", None)
        tree = {"base": base, "models": models, "method": method}
        return recipes.validated(recipes.Recipe, tree, place)
