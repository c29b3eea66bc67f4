"""`mttl list` and `mttl show`: finished, unfinished, running and damaged runs."""

import shutil
from pathlib import Path

import pytest

from helpers.command import read_csv
from mttl.checkpoints.run_folder import RunFolder
from mttl.commands import list_runs, show
from mttl.io.files import locked


@pytest.fixture
def runs(whole: RunFolder, tmp_path: Path) -> Path:
    """A folder with the finished run, and copies of what others leave behind."""
    shutil.copytree(whole.path, tmp_path / "runs" / "whole")
    for name in ("killed", "busy", "new", "deeper/killed", "damaged"):
        other = tmp_path / "runs" / name
        other.mkdir(parents=True)
        shutil.copy(whole.config, other)
        if name != "new":
            shutil.copy(whole.metrics, other)
    (tmp_path / "runs" / "damaged" / "config.yaml").write_text("a: [")
    (tmp_path / "runs" / "whole" / "adapt-all").mkdir()
    shutil.copy(whole.config, tmp_path / "runs" / "whole" / "adapt-all")
    lines = ['{"task": "a", "test": 0.5}', '{"task": "a", "test": 1.0}', '{"task": "b", "test": 0}']
    (tmp_path / "runs" / "whole" / "adapt-all" / "results.jsonl").write_text("\n".join(lines))
    return tmp_path / "runs"


def test_runs_are_listed_with_scores_sizes_and_status(runs: Path, capsys) -> None:
    with locked(runs / "busy" / ".lock"):
        assert list_runs.main([str(runs)]) == 0
    rows = [line.split("│")[1:-1] for line in capsys.readouterr().out.splitlines() if "│" in line]
    cells = {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows if row[0].strip()}
    assert list(cells) == ["busy", "damaged", "deeper/killed", "killed", "new", "whole"]
    files = [path for path in (runs / "whole").rglob("*") if path.is_file()]
    means = {
        row["split"]: f"{100 * float(row['score']):.1f}"
        for row in read_csv(runs / "whole" / "results.csv")
        if row["task"] == "mean"
    }
    method, scores, size, status = cells["whole"]
    assert method == "polytropon, 3 lora skills"
    assert scores == f"dev {means['dev']}, test {means['test']}"
    assert size == f"{sum(path.stat().st_size for path in files) / 1e6:.1f}"
    assert status == "finished"
    step = read_csv(runs / "killed" / "metrics.csv")[-1]["step"]
    assert cells["killed"][1:] == ["", "0.0", f"unfinished, step {step} of 12"]
    assert cells["busy"][3] == f"training, step {step} of 12"
    assert cells["new"][3] == "unfinished, step 0 of 12"
    assert cells["damaged"][3].startswith("damaged:")


def test_a_run_is_shown_with_its_tasks_baselines_and_adaptations(runs: Path, capsys) -> None:
    assert show.main([str(runs / "whole" / "adapt-all")]) == 0
    assert "adaptations of a run" in capsys.readouterr().out
    assert show.main([str(runs / "whole")]) == 0
    printed = capsys.readouterr().out
    assert f"{runs / 'whole'}: finished" in printed.replace("\n", "")
    assert "adapt-all: 3 finished jobs on 2 tasks, mean test score 37.5 %" in printed
    lines = [line.split("│")[1:-1] for line in printed.splitlines() if "│" in line]
    cells = {line[0].strip(): [cell.strip() for cell in line[1:]] for line in lines}
    scores = read_csv(runs / "whole" / "results.csv") + read_csv(runs / "whole" / "baselines.csv")
    for task in {row["task"] for row in scores}:
        own = [row for row in scores if row["task"] == task]
        assert len(cells[task]) == 7  # the metric, and three columns of each split
        expected = {f"{100 * float(row['score']):.1f}" for row in own}
        assert len({row["sample"] for row in own}) > 1 or expected == {*cells[task][1:]}
    assert float(cells["sum"][0]) >= float(cells["checkpoints"][0])


def test_an_unfinished_run_is_shown(runs: Path, capsys) -> None:
    assert show.main([str(runs / "killed")]) == 0
    printed = capsys.readouterr().out
    assert "unfinished, step" in printed
    assert "metrics.csv" in printed


def test_mistakes_are_explained(runs: Path, refused, capsys) -> None:
    (runs / "empty").mkdir()
    assert list_runs.main([str(runs / "empty")]) == 0
    assert "There are no runs in" in capsys.readouterr().out
