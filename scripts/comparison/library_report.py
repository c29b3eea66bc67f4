"""Tables and the figure of a comparison of routers over a library."""

import math
from collections.abc import Sequence

from comparison.examples import curve_tables
from comparison.libraries import ALL_ROWS, BARE, LibraryComparison, asked
from comparison.methods import REFERENCE, Plan
from comparison.report import budget, read_scores
from comparison.tables import (
    Mean,
    Point,
    Score,
    markdown,
    mean_cell,
    mean_of,
    paired_difference,
    to_csv,
)
from mttl.files import write_text

MEANING = (
    "Mean test scores over tasks in per cent; in brackets 95 % intervals by a hierarchical "
    "bootstrap over tasks, seeds and few-shot samples. Members of the library are the tasks of the "
    "private run. With 0 rows a new task is asked as it comes; a row without a number has no use "
    "for rows, or needs some. `own` with 0 rows is the bare backbone, and else the task's own LoRA "
    "(oracle)."
)
COSTS = (
    "Scores of the training tasks: routers of members are not told the task; `own`, `polytropon`, "
    "`shared`, `mbc` and `random_clusters` are. *making*, *adaptation*: processor minutes per seed "
    "of the run alone, without what it is made of, and of adapting it to all unseen tasks with "
    "most rows. *query*, *memory*: time and resident memory of generation, over those of the bare "
    "backbone, in one process each, side by side."
)


def write_library_tables(
    comparison: LibraryComparison,
    plans: list[Plan],
    names: Sequence[str],
    numbers: Sequence[int],
) -> str:
    """Write tables and the figure of what has ended, and return the tables as Markdown."""
    scores = read_scores(comparison, plans)
    points = library_points(scores, names, numbers)
    if not points:
        return ""
    from comparison.figure import Dots, comparison_figure  # they need matplotlib
    from mttl.analysis.figures import save_figure

    shown = list(dict.fromkeys(point.method for point in points))
    reference = _seen(scores, REFERENCE)
    titles = ["seen tasks", *(f"unseen tasks, {number} rows" for number in numbers)]
    cells = {(point.method, point.examples): point for point in points}
    nothing = Mean(math.nan, math.nan, math.nan)
    dots = []
    for name in shown:
        known = [cells.get((name, number)) for number in numbers]
        own = [_asked(scores, name, number) for number in numbers]
        seen = _seen(scores, name)
        differences = [point.difference if point else nothing for point in known]
        dots.append(Dots.of(name, [seen, *own], [paired_difference(seen, reference), *differences]))
    figure = comparison_figure(dots, [REFERENCE] * len(titles), titles)
    save_figure(figure, comparison.out / "library")
    costs = _cost_table(comparison, plans, scores, shown, max(numbers))
    text = f"{budget(comparison, plans)}{MEANING}\n\n{curve_tables(points)}\n{COSTS}\n\n{costs}"
    write_text(comparison.out / "library.md", text)
    write_text(comparison.out / "library.csv", to_csv(points))
    write_text(comparison.out / "scores.csv", to_csv(scores))
    return text


def library_points(
    scores: Sequence[Score], names: Sequence[str], numbers: Sequence[int]
) -> list[Point]:
    """Return the scores on unseen tasks of all rows that have some, row after row."""
    points = []
    for name in names:
        for number in numbers:
            if own := _asked(scores, name, number):
                difference = paired_difference(own, _asked(scores, REFERENCE, number))
                points.append(Point(name, number, mean_of(own), difference))
    return points


def _asked(scores: Sequence[Score], name: str, number: int) -> list[Score]:
    """Return the scores of a row that was asked with so many examples."""
    row = ALL_ROWS[name]
    way = asked(row, number)
    key = (row.method, way.name if way else None)
    return [
        score for score in scores if score.side == "unseen" and (score.method, score.mode) == key
    ]


def _seen(scores: Sequence[Score], name: str) -> list[Score]:
    """Return the scores of a row on the tasks of training, where it has some of its own."""
    row = ALL_ROWS[name]
    return [x for x in scores if x.side == "seen" and x.method == row.method and row.none]


def _cost_table(
    comparison: LibraryComparison,
    plans: Sequence[Plan],
    scores: Sequence[Score],
    names: Sequence[str],
    most: int,
) -> str:
    queries: dict[str, tuple[str, str]] = {}
    if found := comparison.queries():
        floor = found[0]["resident_mib"]
        queries = {
            x["name"]: (f"{x['ratio']:.2f}", f"{x['resident_mib'] / floor:.2f}") for x in found
        }
    rows = []
    for name in names:
        row = ALL_ROWS[name]
        way = asked(row, most)
        items = [item for item in plans if item.name == row.method]
        making = [comparison.cost(item, "train").cpu_minutes for item in items]
        adapting = [comparison.cost(item, f"adapt-{way.name}").cpu_minutes for item in items if way]
        seen = mean_of(_seen(scores, name))
        cost = ("", "") if row.none is BARE else queries.get(row.method, ("", ""))
        rows.append((f"`{name}`", mean_cell(seen), _minutes(making), _minutes(adapting), *cost))
    heads = ("row", "seen", "making, CPU min", "adaptation, CPU min", "query", "memory")
    return markdown(heads, rows)


def _minutes(values: Sequence[float]) -> str:
    known = [value for value in values if value]
    return f"{sum(known) / len(known):.2f}" if known else ""
