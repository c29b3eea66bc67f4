"""The rates of adaptation that are tried for every method, and the one that was best."""

import json
from pathlib import Path

from mttl.config.schema import Adapt
from mttl.io import yaml12
from mttl.io.errors import MttlError
from mttl.io.reading import read_text

# Of the configured rates; the first is taken where others are no better.
FACTORS = (1.0, 0.3, 3.0)


def search_points(adapt: Adapt) -> str:
    """Return the points of a search: both rates of an adaptation variant, times each factor."""
    points = [
        {"adapt.lr": _short(factor * adapt.lr), "adapt.router_lr": _short(factor * adapt.router_lr)}
        for factor in FACTORS
    ]
    return json.dumps(points)


def chosen_rates(folder: Path) -> list[str]:
    """Return the settings that a search found, in the order of their names.

    Raises:
        MttlError: If the file is missing or damaged.
    """
    path = folder / "best.yaml"
    try:
        found = yaml12.parse(read_text(path, MttlError))["adapt"]
        return [f"adapt.{name}={float(found[name])}" for name in ("lr", "router_lr")]
    except (yaml12.YAMLError, KeyError, TypeError, ValueError) as error:
        raise MttlError(f"'{path}' is damaged ({error}). Delete it and its folder") from error


def _short(rate: float) -> float:
    return float(f"{rate:.3g}")
