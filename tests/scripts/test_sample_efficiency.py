"""The comparison of policies by the episodes they need: its rule, tables and figure."""

import csv
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from helpers.babyai import TINY
from helpers.command import ROOT, load_recipe
from mttl import yaml12

pytest.importorskip("minigrid", reason="needs the extra `babyai`")
pytest.importorskip("matplotlib", reason="needs the extra `plots`")

from mttl.errors import ConfigError


@pytest.fixture
def learning(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import comparison.learning as module

    return module


@pytest.fixture
def command(learning: ModuleType) -> ModuleType:
    return load_recipe(ROOT / "scripts" / "sample_efficiency.py")


def curve(learning: ModuleType, rates: list[list[float]], final: float = 0.5) -> object:
    n = len(rates)
    return learning.Curve(
        levels=("A", "B"),
        frames=np.arange(1, n + 1) * 100,
        episodes=np.arange(1, n + 1) * 10,
        rates=np.array(rates),
        final={"A": final, "B": final, "mean": final},
        minutes=2.0,
        n_trained=1234,
    )


def test_episodes_are_those_of_the_first_row_that_reaches_the_rate(learning: ModuleType) -> None:
    fast = [[0.0, 0.0], [0.9, 0.9], [1.0, 1.0], [1.0, 1.0]]
    slow = [[0.0, 0.0], [0.5, 0.5], [0.5, 1.0], [0.9, 0.9]]
    curves = {
        "polytropon": [curve(learning, fast), curve(learning, fast)],
        "shared": [curve(learning, slow), curve(learning, slow)],
        "private": [curve(learning, fast), curve(learning, [[0.0, 0.0]] * 4)],
    }
    rows = learning.efficiency_table(curves, "shared", 0.9, 1).splitlines()[2:]
    # Two runs that agree have no interval: nothing is known of what varies.
    assert rows[0].startswith("| polytropon | 1,234 | 20 (2 runs) | 0.50 | 50.0 | 2.0 |")
    assert "| 40 (2 runs) | 1.00 |" in rows[1]
    assert "| > 30 (1 of 2 runs) |  |" in rows[2]  # the mean of 20 and of all 40 that were seen
    levels = learning.level_table(curves, 0.9, 1).splitlines()
    assert levels[0] == "| level | polytropon | shared | private |"
    assert levels[2:] == ["| A | 20 | 40 | 20 (1 of 2) |", "| B | 20 | 30 | 20 (1 of 2) |"]


def test_the_figure_has_a_panel_per_level_and_a_line_per_method(learning: ModuleType) -> None:
    rows = [[0.0, 0.2], [0.5, 0.4]]
    curves = {"polytropon": [curve(learning, rows)], "shared": [curve(learning, rows)]}
    from comparison.curves_figure import curves_figure

    figure = curves_figure(curves, "shared")
    assert [axes.get_title() for axes in figure.axes] == ["all levels", "A", "B"]
    first = figure.axes[0].get_lines()
    assert [line.get_label() for line in first] == ["polytropon", "shared"]
    assert first[0].get_ydata().tolist() == pytest.approx([0.1, 0.45])
    assert figure.axes[2].get_lines()[0].get_ydata().tolist() == [0.2, 0.4]
    rows = list(csv.reader(learning.levels_csv(curves).splitlines()))
    assert rows[1] == ["polytropon", "0", "10", "100", "A", "0.0000"]
    assert len(rows) == 1 + 2 * 2 * 2


def test_settings_of_its_own_are_refused(command: ModuleType, tmp_path: Path) -> None:
    for setting, way in (("run.seed=1", "--seeds"), ("trainer.max_epochs=1", "--rollouts")):
        with pytest.raises(ConfigError, match=f"set by the comparison itself .{way}.: leave it"):
            command.main(["--out", str(tmp_path), "-k", setting])
    with pytest.raises(ConfigError, match="has no section rl"):
        command.main(["-c", "crossfit.yaml", "--out", str(tmp_path), "--methods", "polytropon"])


@pytest.mark.slow
def test_the_command_runs_what_is_missing_and_reads_the_rest(
    command: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "tiny.yaml"
    config.write_text(yaml12.dump(TINY))
    given = ["-c", str(config), "--seeds", "1", "--rollouts", "3", "--smoothing", "1"]
    given += ["--methods", "polytropon", "shared", "--out", str(tmp_path / "out"), "--rate", "0.01"]
    assert command.main(given) == 0
    first = (tmp_path / "out" / "table.md").read_text()
    assert "| shared |" in first
    assert (tmp_path / "out" / "curves.svg").is_file()
    before = (tmp_path / "out" / "shared" / "seed1" / "metrics.csv").stat().st_mtime_ns
    assert command.main(given) == 0
    assert (tmp_path / "out" / "shared" / "seed1" / "metrics.csv").stat().st_mtime_ns == before
    assert (tmp_path / "out" / "table.md").read_text() == first
    with pytest.raises(ConfigError, match=r"other settings: trainer.max_epochs \(3 before, 4 now"):
        command.main([*given[:4], "--rollouts", "4", *given[6:]])


def test_only_what_is_trained_counts(learning: ModuleType, tmp_path: Path) -> None:
    """A frozen common part is no more trained than a fixed router."""
    from comparison import policies

    skills = tmp_path / "skills"
    skills.mkdir()
    for number, name in enumerate(("skills", "router", "backbone")):
        save_file({"weight": torch.zeros(2, 10**number)}, skills / f"{name}.safetensors")

    def trained(kind: str, train_base: bool) -> int:
        settings = {"router": {"kind": kind}, "train_base": train_base}
        (skills / "meta.json").write_text(json.dumps({"settings": settings}))
        return policies.n_trained(tmp_path)

    assert trained("polytropon", True) == 222
    assert trained("expert", True) == 202
    assert trained("shared", False) == 2
