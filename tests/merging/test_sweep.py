"""Which weights of a recipe are the λ of a sweep."""

import re
from pathlib import Path
from typing import Any

import pytest

from mttl.io import yaml12
from mttl.io.errors import ConfigError
from mttl.merging.sweep import Sweep

EXPERT, ANTI = {"model": "e", "fisher": "fe"}, {"model": "a", "fisher": "fa", "role": "anti_expert"}
ALONE = {"model": "a", "fisher": "fa"}


def recipe(kind: str, *models: dict[str, Any], **method: Any) -> dict[str, Any]:
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
    found = recipe(kind, *models, **method)
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
        recipe(kind, *models)


def test_the_example_of_the_page_is_valid() -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "merge.md").read_text("utf-8")
    (text,) = (one for one in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "methods" in one)
    sweep = Sweep.model_validate(yaml12.parse(text))
    for name, one in sweep.methods.items():
        assert sweep.recipe(name, one.weights[0]).method.kind == one.method.kind
