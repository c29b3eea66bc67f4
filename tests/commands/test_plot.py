"""The command that draws: its files, its tables, and its answers to mistakes."""

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from helpers.command import python
from mttl.analysis.routing_record import RoutingRecord
from mttl.analysis.routing_view import RoutingView
from mttl.commands import explore
from mttl.commands import plot as SCRIPT
from mttl.commands.routing_report.routing_tables import subset_table
from mttl.runtime.command import run_command

READING = importlib.import_module("mttl.commands.routing_report.read_routing")
Write = Callable[..., Path]
Capture = pytest.CaptureFixture[str]


def run(*arguments: object) -> int:
    return run_command(lambda: SCRIPT.main([str(argument) for argument in arguments]))


@pytest.fixture(scope="module")
def folder(write_run: Write, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "first")


def test_everything_is_written_and_printed(folder, write_run, tmp_path, capsys) -> None:
    # The second run has the same tasks in another order.
    second = write_run(tmp_path / "second", tasks=("date", "clock", "plural", "past"), seed=1)
    out = tmp_path / "out"
    assert run(folder, "--compare", second, "--all", "--out", out) == 0
    names = (
        *("heat_map", "heat_map_encoder.block.0", "heat_map_decoder.block.0", "similarity"),
        *("dendrogram", "dendrogram_radial", "task_map_pca"),
        *("statistics_by_layer", "statistics_over_training", "compare_second"),
    )
    expected = {f"{name}.{suffix}" for name in names for suffix in ("png", "svg", "pdf")}
    found = {path.name for path in out.iterdir()}
    assert found == expected
    printed = " ".join(capsys.readouterr().out.split())
    for text in ("encoder.block.0.q", "mean, encoder", "mean, decoder", "effective skills"):
        assert text in printed
    assert "clusters of tasks and their 2 categories (AMI)" in printed
    assert "matched skills of second (correlation)" in printed
    assert " figures are in " in printed


@pytest.mark.slow
def test_groups_of_layers_and_subsets_are_shown_with_all_only(folder, tmp_path, capsys) -> None:
    assert run(folder, "--out", tmp_path) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "encoder.block.0.q" not in printed
    assert "mean, encoder" in printed
    assert "--all shows every group of layers" in printed
    assert (tmp_path / "dendrogram.pdf").is_file()
    assert "Skills with a probability" not in printed


def test_subsets_are_listed_with_their_tasks() -> None:
    active = np.array([[[1.0, 0], [1, 1], [1, 0], [0, 0]]])
    record = RoutingRecord(Path(), ("one", "two", "three", "four"), ("model",), active, active)
    table = subset_table(RoutingView(record, ("a",) * 4))
    rows = zip(*(column.cells for column in table.columns), strict=True)
    assert [*rows] == [("", "1", "four"), ("0", "2", "one, three"), ("0 1", "1", "two")]


def test_statistics_are_those_of_the_probabilities(folder: Path, write_run: Write) -> None:
    """Not of the mixing weights, which are normalised: no weight of three is above one half."""
    view = READING.read_view(folder)
    normalised = view.record.probabilities / view.record.probabilities.sum(-1, keepdims=True)
    np.testing.assert_allclose(normalised, view.record.weights, rtol=1e-5)
    assert view.statistics[0, 1] == np.mean(view.record.probabilities[0] > 0.5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "weights"),
    [
        ("private", np.eye(4)[None]),
        ("hyperformer", np.random.default_rng(0).normal(size=(1, 4, 3))),
    ],
)
def test_every_kind_of_router_can_be_drawn_and_explored(write_run, tmp_path, kind, weights) -> None:
    run_folder = write_run(tmp_path / kind, kind=kind, groups=("model",), weights=weights)
    assert run(run_folder) == 0
    assert explore.main([str(run_folder)]) == 0
    assert (run_folder / "plots" / "similarity.svg").is_file()
    assert (run_folder / "plots" / "explore.html").is_file()


def test_categories_come_from_the_gym_then_from_crossfit(write_run: Write, tmp_path: Path) -> None:
    tasks = ("past", "glue-rte", "nobody_knows")
    found = READING.read_view(write_run(tmp_path / "run", tasks=tasks)).categories
    assert found == ("words", "classification/nli", "unknown")


@pytest.mark.slow
def test_tasks_without_categories_are_drawn_without_agreement(write_run, tmp_path, capsys) -> None:
    folder = write_run(tmp_path / "run", tasks=("x", "y", "z"), history=False)
    (folder / "config.yaml").unlink()
    assert run(folder) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "AMI" not in printed
    assert "no categories: the tasks have fewer than two" in printed
    assert not (folder / "plots" / "statistics_over_training.png").exists()


def test_known_factors_are_recovered(write_run, tmp_path, monkeypatch, capsys, refused) -> None:
    """Skills are the languages and operations of the tasks; one factor has a value only."""
    monkeypatch.setattr("mttl.analysis.figures.catalogue.drawings", lambda *_, **__: ())
    tasks = [f"{a}_{b}" for a in ("de", "fr", "ja") for b in ("date", "list", "unit", "month")]
    values = ["de", "fr", "ja", "date", "list", "unit", "month"]
    weights = np.array([[[float(v in task.split("_")) for v in values] for task in tasks]] * 2)
    folder = write_run(
        tmp_path / "run", tasks=tasks, groups=("a", "b"), weights=weights / 2, kind="expert"
    )
    lines = [
        f"{task},ACC,x/{task[3:]},language={task[:2]} operation={task[3:]} metric=ACC\n"
        for task in tasks
    ]
    table = folder / "gym" / "TASKS.csv"
    table.write_text("task,metric,category,factors\n" + "".join(lines))
    assert run(folder) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for name, n in (("language", 3), ("operation", 4)):
        assert f"clusters of tasks and the {n} values of {name} (AMI)" in printed
        for score in (f"skills and {name} (AMI)", f"matched skills predict {name} (AUC)"):
            value, chance = re.search(
                rf"{re.escape(score)} │ ([\d.-]+) │ ([\d.-]+)", printed
            ).groups()
            assert float(value) == 1
            assert float(chance) < 0.9
    assert "of metric" not in printed

    table.write_text(table.read_text().replace("language=fr", "french", 1))
    error = refused(SCRIPT.main, folder)
    assert "'french operation=date metric=ACC' of 'fr_date' must be name=" in error


def test_mistakes_are_answered(folder, write_run, tmp_path, refused) -> None:
    tasks = ("past", "plural", "clock", "other")
    others = {
        "skills": write_run(tmp_path / "skills", n_skills=5),
        "tasks": write_run(tmp_path / "tasks", tasks=tasks),
        "groups": write_run(tmp_path / "groups", groups=("model",)),
        "lone": write_run(tmp_path / "lone", tasks=("past",)),
    }
    for name, message in (
        ("skills", "have 3 and 5 skills"),
        ("tasks", "differ in tasks: only one has date, other"),
        ("groups", "differ in groups"),
        ("groups", "Compare runs of different seeds"),
    ):
        assert message in refused(SCRIPT.main, folder, "--compare", others[name])
    assert "has only one task; figures compare at least two" in refused(SCRIPT.main, others["lone"])


def test_the_package_imports_none_of_what_draws_before_it_draws() -> None:
    """Training imports the statistics: they must not bring in what takes seconds."""
    code = (
        "import sys, mttl.analysis, mttl.analysis.explore.explore_page, "
        "mttl.analysis.routing_view, "
        "mttl.analysis.clustering, mttl.analysis.skill_matching, mttl.analysis.projection\n"
        "assert not {'matplotlib', 'sklearn'} & set(sys.modules)\n"
    )
    assert python("-c", code).returncode == 0
