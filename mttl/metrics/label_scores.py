"""Scores of all pairs of label and answer of a task, by scikit-learn and SciPy."""

import math
import warnings
from collections.abc import Sequence
from typing import Any

Pairs = Sequence[tuple[str, str]]


def macro_f1(rows: Pairs) -> float:
    """Return the macro F1 over strings.

    Classes are all strings among labels and answers, so an answer that is not a label adds a class
    with F1 0.
    """
    from sklearn.metrics import f1_score  # slow to import

    labels, answers = zip(*rows, strict=True)
    settings: Any = {"average": "macro", "zero_division": 0}
    return float(f1_score(labels, answers, **settings))


def matthews_correlation(rows: Pairs, options: Sequence[str] = ()) -> float:
    """Return the Matthews correlation of labels and answers; 0 if either are constant.

    With two labels, the positive one is the task's first option, else CoLA's ``acceptable``, else
    the first label in alphabetical order. With more labels, each is a class, and so is any answer
    that is not a label.

    References:
        Gorodkin, *Comparing two K-category assignments by a K-category correlation coefficient*,
        Computational Biology and Chemistry 28, 2004; of two classes it is Matthews' coefficient.
    """
    from sklearn.metrics import matthews_corrcoef  # slow to import

    names = dict.fromkeys([*options, *sorted(label for label, _ in rows)])
    if len(names) < 3:
        one = "acceptable" if not options and "acceptable" in names else next(iter(names))
        rows = [(str(label == one), str(answer == one)) for label, answer in rows]
    with warnings.catch_warnings(action="ignore"):  # of a single class
        return float(matthews_corrcoef(*zip(*rows, strict=True)))


def pearson_correlation(rows: Pairs) -> float:
    """Return Pearson's correlation; NaN if an answer is not a number, or all are equal."""
    from scipy.stats import pearsonr  # slow to import

    if len(rows) < 2:
        return math.nan
    columns = [[_number(text) for text in column] for column in zip(*rows, strict=True)]
    with warnings.catch_warnings(action="ignore"):  # of constant, infinite or very large numbers
        found: Any = pearsonr(*columns)
    return float(found.statistic)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
