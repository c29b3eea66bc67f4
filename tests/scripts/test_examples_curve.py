"""Scores against the number of examples: one command, one table, one figure."""

import csv
import importlib
import json
import math
import sys
from pathlib import Path

import pytest

from helpers.command import ROOT, load_recipe
from helpers.gyms import TASKS, write_config, write_gym
from mttl.errors import MttlError

sys.path.insert(0, str(ROOT / "scripts"))
SCRIPT = load_recipe(ROOT / "scripts" / "examples_curve.py")
STAGES = importlib.import_module("comparison.stages")
EXAMPLES = importlib.import_module("comparison.examples")
TABLES = importlib.import_module("comparison.tables")


def test_a_curve_ends_in_one_table_and_one_figure(
    tmp_path: Path, commands: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    gym = write_gym(tmp_path / "gym")
    names = list(TASKS)
    (gym / "partition.json").write_text(json.dumps({"train": names[1:], "test": names[:1]}))
    config = write_config(tmp_path / "tiny.yaml", gym)
    given = ["-c", str(config), "--out", str(tmp_path / "out"), "--seeds", "13", "--workers", "1"]
    given += ["--methods", "polytropon", "private", "--steps", "1", "--adapt-steps", "1"]
    given += ["--examples", "0", "4"]
    assert SCRIPT.main(given) == 0
    # Two trainings; six ways of Polytropon, of which two start apart; one of Private.
    assert len(commands) == 2 + (2 + 1 + 1 + 1 + 1 + 2) + 2
    with (tmp_path / "out" / "examples.csv").open() as file:
        rows = list(csv.DictReader(file))
    ways = ("router_only", "best_coefficients", "mean_row", "full", "bare_full")
    methods = ["polytropon", *(f"polytropon: {way}" for way in ways), "private"]
    assert [(row["method"], row["examples"]) for row in rows] == [
        (name, number) for name in methods for number in ("0", "4")
    ]
    with (tmp_path / "out" / "scores.csv").open() as file:
        scores = {(row["method"], row["mode"]): float(row["score"]) for row in csv.DictReader(file)}
    assert float(rows[1]["score_mean"]) == pytest.approx(scores["polytropon", "all-4"], abs=1e-4)
    assert float(rows[-1]["difference_mean"]) == pytest.approx(
        scores["private", "all-4"] - scores["polytropon", "all-4"], abs=1e-4
    )
    run = tmp_path / "out" / "polytropon" / "seed13"
    assert json.loads((run / "adapt-all-0" / "results.jsonl").read_text())["dev"] is None
    assert "examples: 4" in (run / "adapt-full-4" / "config.yaml").read_text()
    text = (tmp_path / "out" / "examples.md").read_text()
    assert "| method | 0 rows | 4 rows |" in text
    assert text.strip() in capsys.readouterr().out
    picture = (tmp_path / "out" / "examples.svg").read_text()
    assert all(name in picture for name in ("polytropon", "private", *ways))
    assert SCRIPT.main(given) == 0
    assert len(commands) == 12


def test_ways_of_the_reference_are_chosen_and_others_keep_their_own() -> None:
    plans = EXAMPLES.curve_plans(
        ["polytropon", "shared"], (0, 4), (13,), modes=["best_coefficients"]
    )
    named = {plan.name: [way.name for way in plan.ways] for plan in plans}
    assert named == {
        "polytropon": ["all-0", "all-4", "best_coefficients-4"],
        "shared": ["all-0", "all-4"],
    }
    with pytest.raises(MttlError, match="ways to adapt polytropon, which is not among --methods"):
        SCRIPT.main(["--methods", "shared", "--modes", "router_only"])
    (plan,) = EXAMPLES.curve_plans(["polytropon"], (4,), (13,), modes=[])
    assert [way.name for way in plan.ways] == ["all-4"]


def test_points_have_intervals_and_differences_to_as_many_rows() -> None:
    def score(method: str, mode: str, task: str, value: float) -> object:
        return TABLES.Score(method, mode, 13, "unseen", task, 1, value)

    scores = [score("polytropon", "all-4", task, x) for task, x in (("a", 10.0), ("b", 30.0))]
    scores += [score("shared", "all-4", task, x) for task, x in (("a", 20.0), ("b", 44.0))]
    scores += [score("shared", "all-8", "a", 70.0)]
    scores += [score("polytropon", "all-0", task, 0.0) for task in "ab"]
    # What a way shares with others, its start, makes no curve of it.
    start, *points = EXAMPLES.curve_points(scores, (8, 0, 4, 8))
    assert (start.method, start.examples, start.score.mean) == ("polytropon", 0, 0.0)
    assert [(point.method, point.examples) for point in points] == [
        ("polytropon", 4),
        ("shared", 4),
        ("shared", 8),
    ]
    assert (points[1].score.mean, points[1].score.low, points[1].score.high) == (32.0, 20.0, 44.0)
    difference = points[1].difference
    assert (difference.mean, difference.low, difference.high) == (12.0, 10.0, 14.0)
    assert math.isnan(points[2].score.low)
    table = EXAMPLES.curve_tables(points)
    assert "| `shared` | 32.0 [20.0, 44.0] | 70.0 |" in table
    assert "| `shared` | +12.0 [+10.0, +14.0] |  |" in table


def test_every_method_is_a_line_with_whiskers() -> None:
    figures = importlib.import_module("comparison.examples_figure")
    mean = TABLES.Mean(5.0, 4.0, 6.0)
    points = [TABLES.Point(name, n, mean, mean) for name in "ab" for n in (0, 2, 32)]
    (axes,) = figures.examples_figure(points, "a").axes
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0", "2", "32"]
    assert len([text for text in axes.get_yticklabels() if text.get_text()]) > 2
    assert [line.get_label() for line in axes.lines] == ["a", "b"]
    assert [list(line.get_ydata()) for line in axes.lines] == [[5.0] * 3] * 2
    assert len(axes.collections) == 2


def test_ways_to_adapt_the_reference_have_a_panel_of_their_own() -> None:
    figures = importlib.import_module("comparison.examples_figure")
    mean = TABLES.Mean(5.0, 4.0, 6.0)
    names = ("a", "a: router_only", "a: full", "b", "c")
    points = [TABLES.Point(name, n, mean, mean) for name in names for n in (0, 2)]
    panels = figures.examples_figure(points, "a").axes
    shown = {axes.get_title(loc="left"): axes for axes in panels}
    lines = {name: [line.get_label() for line in axes.lines] for name, axes in shown.items()}
    assert lines == {"methods": ["a", "b", "c"], "ways to adapt a": ["a", "router_only", "full"]}
    assert len({axes.get_ylim() for axes in panels}) == 1
