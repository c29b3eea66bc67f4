"""Scores of unseen tasks against the number of rows that they are adapted with."""

from collections.abc import Mapping, Sequence

from comparison.methods import ALL, REFERENCE, Plan
from comparison.tables import Point, Score, label, markdown, mean_cell, mean_of, paired_difference

# Numbers of rows; none is the start, before anything is trained.
NUMBERS = (0, 1, 2, 4, 8, 16, 32)
# Methods, and the ways to adapt them.
CURVES: dict[str, tuple[str, ...]] = {
    REFERENCE: ("all", "router_only", "best_coefficients", "mean_row", "full", "bare_full"),
    "shared": ("all",),
    "private": ("all",),
    "expert": ("all",),
    "hyperformer": ("all",),
    "task_moe": ("all",),
}

MODES = CURVES[REFERENCE][1:]


def curve_plans(
    methods: Sequence[str],
    numbers: Sequence[int],
    seeds: Sequence[int],
    folds: Sequence[int] = (0,),
    modes: Sequence[str] = MODES,
) -> list[Plan]:
    """Return what to run: each way with every number of rows.

    With no rows the ways of a method that start alike are one, so they share that point.

    Args:
        methods: Names.
        numbers: Of rows.
        seeds: Seeds.
        folds: Numbers of folds; 0 takes the partition as it is.
        modes: Further ways to adapt, of the methods that have them.
    """
    plans = []
    for seed in dict.fromkeys(seeds):
        for fold in folds:
            for name in dict.fromkeys(methods):
                known = {way.name: way for way in ALL[name].ways}
                own, *others = CURVES[name]
                ways = tuple(
                    known[way].with_examples(number)
                    for way in (own, *(other for other in others if other in modes))
                    for number in dict.fromkeys(numbers)
                    if number or way == _start(name, way)
                )
                plans.append(Plan(name, seed, ways, fold))
    return plans


def _start(method: str, way: str) -> str:
    """Return the way whose start, without rows, is that of a way."""
    (own,) = (known for known in ALL[method].ways if known.name == way)
    return way if own.starts_apart else CURVES[method][0]


def curve_points(scores: Sequence[Score], numbers: Sequence[int]) -> list[Point]:
    """Return the points of all curves that have scores, curve after curve."""
    found: dict[tuple[str, str], list[Score]] = {}
    for score in scores:
        found.setdefault((score.method, score.mode), []).append(score)
    points = []
    numbers = sorted(set(numbers))
    for method, ways in CURVES.items():
        for way in ways:
            if not any((method, f"{way}-{number}") in found for number in numbers):
                continue
            for number in numbers:
                own = found.get((method, f"{way if number else _start(method, way)}-{number}"))
                if own:
                    reference = found.get((REFERENCE, f"all-{number}"), [])
                    difference = paired_difference(own, reference)
                    points.append(Point(label(method, way), number, mean_of(own), difference))
    return points


def curve_tables(points: Sequence[Point]) -> str:
    """Return a row per method and a column per number of rows: scores, then differences."""
    numbers = sorted({point.examples for point in points})
    methods = list(dict.fromkeys(point.method for point in points))
    heads = ["method", *(f"{number} rows" if number != 1 else "1 row" for number in numbers)]

    def rows(cells: Mapping[tuple[str, int], str], names: Sequence[str]) -> list[list[str]]:
        return [[f"`{name}`", *(cells.get((name, n), "") for n in numbers)] for name in names]

    scores = {(x.method, x.examples): mean_cell(x.score) for x in points}
    differences = {(x.method, x.examples): mean_cell(x.difference, "+") for x in points}
    others = [name for name in methods if name != REFERENCE]
    text = markdown(heads, rows(scores, methods))
    if others and REFERENCE in methods:
        text += f"\nMinus `{REFERENCE}` with as many rows:\n\n"
        text += markdown(heads, rows(differences, others))
    return text
