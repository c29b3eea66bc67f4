"""Sweeps over one setting for several kinds of skills: what changes, and its table."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from comparison.methods import Method
from comparison.tables import Score, markdown, mean_cell
from mttl.errors import MttlError

if TYPE_CHECKING:
    from mttl.config.schema import Config

EVERY_ROW = 10**6  # more than a file has


@dataclass(frozen=True)
class Sweep:
    """What a sweep changes.

    Args:
        about: What the values are, for tables and figures.
        values: Those it takes by default.
        change: Makes the method of one value from a kind's own and its configuration.
    """

    about: str
    values: tuple[float, ...]
    change: "Callable[[Method, Config, float], Method]"


def _density(method: Method, config: "Config", value: float) -> Method:
    if not hasattr(config.skills, "sparsity"):
        raise MttlError(
            f"--skills: skills of the kind '{config.skills.kind}' have no density; name sparse ones"
        )
    if not 0 < value <= 1:
        raise MttlError(f"--values {value:g}: a density lies above 0 and is at most 1")
    return replace(method, settings=(*method.settings, f"skills.sparsity={1 - value:.6f}"))


def _rows(method: Method, config: "Config", value: float) -> Method:
    if value < 1 or not value.is_integer():
        raise MttlError(f"--values {value:g}: a number of rows is whole and at least 1")
    scored = config.data.max_eval_rows or config.data.max_rows or EVERY_ROW
    more = (f"data.max_rows={value:.0f}", f"data.max_eval_rows={scored}")
    return replace(method, settings=(*method.settings, *more))


def _rate(method: Method, config: "Config", value: float) -> Method:
    if value <= 0:
        raise MttlError(f"--values {value:g}: a factor on rates lies above 0")
    lr = f"optim.lr={config.optim.lr * value:.6g}"
    return replace(method, settings=(*method.settings, lr), rate=method.rate * value)


SWEEPS = {
    "density": Sweep("share of entries that a skill changes", (1e-3, 0.01, 0.1, 0.3, 1), _density),
    "rows": Sweep("training rows of each task", (16, 64, 256, 1024), _rows),
    "rates": Sweep("factor on the learning rates of skills", (0.1, 0.3, 1, 3, 10), _rate),
}


def swept(
    sweep: Sweep,
    values: Sequence[float],
    kinds: Mapping[str, Method],
    config: str,
    overrides: Sequence[str],
) -> dict[str, tuple[str, float, Method]]:
    """Return kind, value and method of every run, by its name."""
    from mttl.config.load import join_files, load_config

    found = {}
    for kind, method in kinds.items():
        own = load_config(join_files(config, method.fragment), list(overrides))
        for value in dict.fromkeys(values):
            changed = sweep.change(replace(method, measured=False), own, value)
            found[f"{kind}-{value:g}"] = (kind, value, changed)
    return found


def sweep_table(
    sweep: Sweep, runs: Mapping[str, tuple[str, float, Method]], scores: Sequence[Score]
) -> str:
    """Return a row per kind and a column per value, for seen and then for unseen tasks."""
    from comparison.kinds import seed_mean

    kinds = list(dict.fromkeys(kind for kind, _, _ in runs.values()))
    values = sorted({value for _, value, _ in runs.values()})
    text = ""
    for side in ("seen", "unseen"):
        rows = []
        for kind in kinds:
            cells = []
            for value in values:
                name = f"{kind}-{value:g}"
                own = [x for x in scores if (x.method, x.side) == (name, side)]
                cells.append(mean_cell(seed_mean(own)))
            rows.append([f"`{kind}`", *cells])
        text += f"\n{side.capitalize()} tasks, by {sweep.about}:\n\n"
        text += markdown(["kind", *(f"{value:g}" for value in values)], rows)
    return text
