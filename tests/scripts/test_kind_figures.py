"""Figures of kinds of skills: numbers along the axes, and names that can be read."""

import importlib
import itertools
import math
import sys
from typing import Any

import pytest

from helpers.command import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
FIGURES = importlib.import_module("comparison.kind_figures")
TABLES = importlib.import_module("comparison.tables")


def dot(kind: str, x: float, score: float) -> Any:
    mean = TABLES.Mean(score, math.nan, math.nan)
    return FIGURES.Dot(kind, x, mean, mean)


def labels(axis: Any) -> list[str]:
    return [tick.label1.get_text() for tick in axis.get_major_ticks()]


DOTS = [dot(f"a_long_name_{number}", 10 + number / 5, 60 + number / 9) for number in range(20)]


@pytest.mark.parametrize("named", [True, False])
def test_axes_have_plain_numbers(*, named: bool) -> None:
    dots = [*DOTS, dot("few", 0.02, 3.0)]
    figure = FIGURES.size_figure(dots) if named else FIGURES.sweep_figure(dots, "rate")
    figure.draw_without_rendering()
    for axes in figure.axes:
        assert {"0.1", "1", "10"} <= set(labels(axes.xaxis))
        assert {"15", "30", "45", "60"} <= set(labels(axes.yaxis))
        minor = [tick.label1.get_text() for tick in axes.xaxis.get_minor_ticks()]
        assert not any(minor)


def test_names_of_points_that_lie_close_do_not_overlap() -> None:
    figure = FIGURES.size_figure(DOTS)
    figure.draw_without_rendering()
    for axes in figure.axes:
        boxes = [text.get_window_extent() for text in axes.texts]
        assert [text.get_text() for text in axes.texts] == [dot.kind for dot in DOTS]
        # Within a pixel, to which outlines are rounded.
        pairs = itertools.combinations([box.padded(-1) for box in boxes], 2)
        assert not [pair for pair in pairs if pair[0].overlaps(pair[1])]
        whole = axes.get_window_extent().padded(1)
        assert all(whole.contains(*box.min) and whole.contains(*box.max) for box in boxes)


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("x", [10.0, 27.478])
@pytest.mark.parametrize("named", [True, False])
def test_one_place_alone_has_room(*, named: bool, x: float) -> None:
    """Also where scores have intervals, whose lines lie beside the place by a rounding."""
    mean = TABLES.Mean(54.0, 40.0, 60.0)
    dots = [FIGURES.Dot("lora", x, mean, mean)]
    figure = FIGURES.size_figure(dots) if named else FIGURES.sweep_figure(dots, "rate")
    figure.draw_without_rendering()
    for axes in figure.axes:
        low, high = axes.get_xlim()
        assert low < x / 2 < 2 * x < high
