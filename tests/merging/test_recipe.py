"""Recipes: what they may say, and what is said about mistakes."""

import re
from pathlib import Path
from typing import Any

import pytest

from mttl.io import yaml12
from mttl.io.errors import ConfigError
from mttl.merging.recipe import Sweep, read_recipe

GOOD = """
base: {model: models/base, fisher: base.safetensors}
models:
  - {model: models/expert, fisher: expert.safetensors}
  - {run: runs/crossfit, task: verb_past, role: anti_expert, weight: 0.15, fisher: a.safetensors}
method: {kind: elastic}
out: models/merged
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(text, "utf-8")
    return path


def test_a_recipe_is_read(tmp_path: Path) -> None:
    recipe = read_recipe(write(tmp_path, GOOD))
    assert recipe.method.kind == "elastic"
    assert [model.weight for model in recipe.models] == [1.0, 0.15]


PLAIN = "base: {model: b}\nmodels: [{model: a}]\nmethod: {kind: arithmetic}\n"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kind: elastic", "kind: elastic, floor: 2.0, ceiling: 1.0", "ceiling (1.0) must be at"),
        ("kind: elastic", "kind: elastic, floo: 1", "has no setting 'floo'. Did you mean 'floor'"),
        ("run: runs/crossfit, task: verb_past", "run: r", "needs both run and task"),
        ("model: models/expert, ", "", "must have either model: FOLDER, or run"),
        ("model: models/expert", "model: m, run: r, task: t", "must have either model"),
        ("fisher: expert.safetensors", "weight: 1.0", "models.0.fisher is required for elastic"),
        (", fisher: base.safetensors", "", "base.fisher is required for elastic"),
        ("kind: elastic", "kind: ties", "base.fisher is not used by ties; leave it out"),
        ("kind: elastic", "kind: cape", "weight is not used by cape; set method.weight"),
        ("kind: elastic", "kind: fisher_average", "must all be experts for fisher_average"),
        (GOOD, PLAIN.replace("arithmetic", "model_stock"), "must be at least two for model_stock"),
        (GOOD, PLAIN.replace("arithmetic", "della, spread: 0.5"), "must lie between 0 and 1"),
        (GOOD, PLAIN.replace("{model: a}", "{model: a, weight: {}}"), "models.0.weight"),
        ("role: anti_expert", "role: expert", None),
        (GOOD, PLAIN.replace("arithmetic", "cape"), "one expert and one anti_expert for cape"),
        (GOOD, "- a", "must be a mapping with base, models, method"),
        (GOOD, "models: []\nmethod: {kind: arithmetic}", "base: is missing; it is required"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, old: str, new: str, message: str | None) -> None:
    path = write(tmp_path, GOOD.replace(old, new))
    if message is None:
        read_recipe(path)
        return
    with pytest.raises(ConfigError) as refused:
        read_recipe(path)
    assert message in str(refused.value)
    assert str(refused.value).startswith(f"{path}: ")


EXPERT, ANTI = {"model": "e", "fisher": "fe"}, {"model": "a", "fisher": "fa", "role": "anti_expert"}
ALONE = {"model": "a", "fisher": "fa"}


def swept_recipe(kind: str, *models: dict[str, Any], **method: Any) -> dict[str, Any]:
    swept = {"method": {"kind": kind, **method}, "weights": [0.1]}
    tree = {"base": {"model": "b", "fisher": "fb"}, "models": [*models], "methods": {"m": swept}}
    tree |= {"run": "r", "task": "t", "metrics": ["exact", "f1"]}
    return Sweep.model_validate(tree).recipe("m", 0.1).model_dump(exclude_none=True)


@pytest.mark.parametrize(
    ("kind", "models", "method", "weights", "fishers"),
    [
        ("arithmetic", [{**EXPERT, "weight": 2.0}, ANTI], {}, [None, 2.0, 0.1], []),
        ("elastic", [EXPERT, ANTI], {}, [None, 0.1, 0.1], ["fb", "fe", "fa"]),
        ("cape", [{**EXPERT, "weight": 2.0}, ANTI], {}, [0.1, 1.0, 1.0], []),
        ("elastic_cape", [EXPERT, ANTI], {"fisher": "f"}, [0.1, 1.0, 1.0], ["fb"]),
        ("fisher_average", [{**EXPERT, "weight": 1.0}, ALONE], {}, [None, 1.0, 0.1], ["fe", "fa"]),
        ("ties", [ALONE], {"density": 0.3}, [None, 0.1], []),
    ],
)
def test_the_weight_is_that_of_the_method_or_of_models_without_one(
    kind, models, method, weights, fishers
) -> None:
    found = swept_recipe(kind, *models, **method)
    own = [one["weight"] for one in found["models"]]
    assert [found["method"].get("weight"), *own] == weights
    parts = (found["base"], *found["models"])
    assert [part["fisher"] for part in parts if "fisher" in part] == fishers
    assert {name: found["method"][name] for name in method} == method


@pytest.mark.parametrize(
    ("kind", "models", "message"),
    [
        ("arithmetic", [{**ANTI, "weight": 1.0}], "leave out the weight of some models"),
        ("fisher_average", [EXPERT, ALONE], "no effect on fisher_average; set the weight of some"),
        ("fisher_average", [{**EXPERT, "weight": 1.0}, ANTI], "methods.m: models must all be"),
        ("cape", [ANTI], "methods.m: models must be one expert and one anti_expert"),
    ],
)
def test_weights_without_effect_and_methods_that_do_not_fit(kind, models, message) -> None:
    with pytest.raises(ConfigError, match=message):
        swept_recipe(kind, *models)


def test_the_example_of_the_page_is_valid() -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "merge.md").read_text("utf-8")
    (text,) = (one for one in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "methods" in one)
    sweep = Sweep.model_validate(yaml12.parse(text))
    for name, one in sweep.methods.items():
        assert sweep.recipe(name, one.weights[0]).method.kind == one.method.kind
