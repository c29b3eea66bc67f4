"""The search command end to end, on a tiny run and new tasks."""

import json
import math
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from helpers.command import read_csv
from helpers.new_tasks import NEW, train_source
from mttl.__main__ import main
from mttl.adaptation import search as search_module
from mttl.adaptation.new_tasks import Adaptation
from mttl.adaptation.plan import FewShotJob, FewShotResult
from mttl.adaptation.shard import Shard
from mttl.commands import search
from mttl.config.load import load_config
from mttl.io.errors import ConfigError
from mttl.io.files import locked
from mttl.runtime.command import run_command

GRID = "search.grid={adapt.lr: [1e-3, 1e-2], adapt.router_lr: [0.1, 0.5]}"
RANGES = "search.ranges={adapt.lr: {low: 1e-4, high: 1e-2, log: true}}"
STEPS = ("adapt.max_steps=1", "adapt.batch_size=4")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The new tasks are for development, and have no test rows at all."""
    folder = tmp_path_factory.mktemp("search")
    train_source(folder, "dev")
    for task in NEW:
        for path in (folder / "gym" / task).glob("*_test.tsv"):
            path.unlink()
    return folder


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[FewShotJob]:
    """Jobs score 0.1 more for the router's rate 0.5 and for the skills' rate 1e-3; who ran."""
    started: list[FewShotJob] = []

    def run_job(self, job, *, score_test) -> FewShotResult:
        assert not score_test
        started.append(job)
        adapt = self.config.adapt
        dev = 0.1 * (adapt.router_lr == 0.5) + 0.1 * (adapt.lr == 1e-3)
        return FewShotResult(*(job.task, job.sample, job.seed), "EM", dev, float("nan"), 1, 1, 0)

    monkeypatch.setattr(Adaptation, "run_job", run_job)
    return started


def arguments(folder: Path, out: Path, *more: str) -> list[str]:
    given = ["-c", str(folder / "tiny.yaml"), "--from", str(folder / "runs" / "source")]
    return [*given, "--out", str(out), "-k", *STEPS, *more]


def trials(out: Path) -> list[dict[str, str]]:
    return read_csv(out / "trials.csv")


def test_a_grid_is_scored_without_test_rows(folder, tmp_path, capsys) -> None:
    """Real jobs, one sample each: the gym has no test file of these tasks."""
    grid = "search.grid={adapt.lr: [1e-3], adapt.router_lr: [0.1, 0.5]}"
    assert search.main([*arguments(folder, tmp_path, grid), "--samples", "13"]) == 0
    found = [(float(row["adapt.lr"]), float(row["adapt.router_lr"])) for row in trials(tmp_path)]
    assert sorted(found) == [(1e-3, 0.1), (1e-3, 0.5)]
    lines = [path.read_text() for path in tmp_path.glob("trials/*/results.jsonl")]
    rows = [json.loads(line) for text in lines for line in text.splitlines()]
    assert {(row["task"], row["sample"], row["test"]) for row in rows} == {
        (task, 13, None) for task in NEW
    }
    assert len(rows) == 2 * len(NEW)
    printed = " ".join(capsys.readouterr().out.split())
    assert all(
        text in printed
        for text in (
            "adapt.router_lr",
            "twice, first",
            "on development rows. Test rows were not read. trials.csv has the",
        )
    )


@pytest.mark.parametrize("trained", [False, True])
def test_a_trial_that_diverges_has_no_score_and_the_others_go_on(
    *, trained, folder, tmp_path, capsys, monkeypatch, refused
) -> None:
    """Of adaptation, and of training, whose trials are commands of their own."""

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        status = run_command(lambda: main(command[3:]))
        options["stdout"].write(capsys.readouterr().err)
        return subprocess.CompletedProcess(command, status)

    monkeypatch.setattr(search_module.subprocess, "run", run)
    section = "optim" if trained else "adapt"
    grid = f"search.grid={{{section}.lr: [1e30, 1e-3]}}"
    given = ["-c", str(folder / "tiny.yaml"), "--out", str(tmp_path), "-k", grid]
    given += ["trainer.max_steps=3", "trainer.val_check_interval=3"]
    if not trained:
        given = arguments(folder, tmp_path, grid, "adapt.max_steps=2")
        given += ["--samples", "13", "--tasks", min(NEW)]
    diverged = f"these jobs diverged and have no result: {section}.lr=1e30"
    assert diverged in refused(search.main, *given)
    assert [float(row[f"{section}.lr"]) for row in trials(tmp_path)] == [1e-3]


def test_workers_share_the_jobs_of_every_trial(folder, tmp_path, started, monkeypatch, refused):
    """Run here one after another; `start_workers` shows each a GPU of its own."""
    shares: list[int] = []

    def start_workers(n_workers: int, shard: Shard, command: list[str]) -> None:
        assert command[1:4] == ["-m", "mttl", "search"]
        for number in range(1, n_workers + 1):
            part, before = shard.part(number, n_workers), len(started)
            own = ["--workers", "1", "--shard", f"{part.number}/{part.n_shards}"]
            assert search.main([*command[4:], *own]) == 0
            shares.append(len(started) - before)

    monkeypatch.setattr(search_module, "start_workers", start_workers)
    assert search.main([*arguments(folder, tmp_path / "two", GRID), "--workers", "2"]) == 0
    n_jobs = 4 * len(NEW) * 2
    assert shares == [n_jobs / 2, n_jobs / 2]
    assert len(started) == n_jobs  # nothing is left for the one that has started them
    assert search.main(arguments(folder, tmp_path / "one", GRID)) == 0
    for name in ("trials.csv", "best.yaml"):
        assert (tmp_path / "two" / name).read_text() == (tmp_path / "one" / name).read_text()
    for option in (["--workers", "2"], ["--shard", "1/2"]):
        said = refused(search.main, *arguments(folder, tmp_path / "drawn", RANGES), *option)
        assert "--workers and --shard do not work with search.ranges, whose trials" in said
    said = refused(search.main, *arguments(folder, tmp_path / "s", GRID), "--storage", "a.log")
    assert "--storage shares the trials of search.ranges; share those of search.grid" in said


def test_what_is_finished_is_not_repeated(folder, tmp_path, started, monkeypatch) -> None:
    """Interrupted in the second trial; then the grid grows."""
    run_job = Adaptation.run_job

    def interrupted(self, job, **more):
        if len(started) == 6:
            raise KeyboardInterrupt
        return run_job(self, job, **more)

    monkeypatch.setattr(Adaptation, "run_job", interrupted)
    with pytest.raises(KeyboardInterrupt):
        search.main(arguments(folder, tmp_path, GRID))
    assert len(trials(tmp_path)) == 1  # what is known so far is written down
    monkeypatch.setattr(Adaptation, "run_job", run_job)
    assert search.main(arguments(folder, tmp_path, GRID)) == 0
    assert len(started) == 16
    grown = GRID.replace("[1e-3,", "[1e-3, 5e-3,")
    assert search.main(arguments(folder, tmp_path, grown)) == 0
    assert len(started) == 24
    assert len(trials(tmp_path)) == 6


def test_the_best_is_sought_among_all_grids_of_the_folder(folder, tmp_path, started) -> None:
    assert search.main(arguments(folder, tmp_path, GRID)) == 0
    worse = "search.grid={adapt.lr: [1e-2, 1e-1]}"
    assert search.main(arguments(folder, tmp_path, worse)) == 0
    config = load_config([str(folder / "tiny.yaml"), str(tmp_path / "best.yaml")])
    assert (config.adapt.lr, config.adapt.router_lr) == (1e-3, 0.5)
    assert (tmp_path / "best.yaml").read_text().startswith("# The best of 6 trials")
    assert [row["adapt.router_lr"] for row in trials(tmp_path)][-2:] == ["", ""]
    # Trials of other jobs are not compared with.
    assert search.main([*arguments(folder, tmp_path, worse, "adapt.seeds=[1]")]) == 0
    assert len(trials(tmp_path)) == 2


def test_ranges_go_on_where_they_stopped(folder, tmp_path, started) -> None:
    pytest.importorskip("optuna")
    with (
        locked(tmp_path / ".lock"),
        pytest.raises(ConfigError, match="'; wait for it, or choose another folder with --out"),
    ):
        search.main(arguments(folder, tmp_path, RANGES))
    assert search.main(arguments(folder, tmp_path, RANGES, "search.trials=2")) == 0
    first = trials(tmp_path)
    assert search.main(arguments(folder, tmp_path, RANGES, "search.trials=3")) == 0
    assert trials(tmp_path)[:2] == first
    assert len(started) == 3 * len(NEW) * 2
    assert (tmp_path / "optuna.journal").is_file()


def test_folders_share_a_storage(folder, tmp_path, started) -> None:
    """The second does nothing but write what the first has found."""
    pytest.importorskip("optuna")
    shared = ["--storage", f"{tmp_path}/study.log"]
    for name in ("one", "two"):
        given = arguments(folder, tmp_path / name, RANGES, "search.trials=3")
        assert search.main([*given, *shared]) == 0
    assert len(started) == 3 * len(NEW) * 2
    assert not (tmp_path / "two" / "trials").exists()
    for file in ("trials.csv", "best.yaml"):
        assert (tmp_path / "one" / file).read_text() == (tmp_path / "two" / file).read_text()
    # Trials with other settings are another study.
    given = arguments(folder, tmp_path / "three", RANGES, "search.trials=3", "adapt.warmup=0.5")
    assert search.main([*given, *shared]) == 0
    assert len(started) == 6 * len(NEW) * 2


def test_mistakes_are_answered(folder, tmp_path, refused, started) -> None:
    out, low = tmp_path / "out", "search.ranges={adapt.warmup: {low: -1, high: 0.5}}"
    for more, message in (
        ((), "search.grid, search.points and search.ranges are empty"),
        (("search.grid={adapt.lr: [1e-3, -1]}",), "trial adapt.lr=-1: adapt.lr: '-1' must be grea"),
        ((low,), "trial adapt.warmup=-1: adapt.warmup"),
    ):
        assert message in refused(search.main, *arguments(folder, out, *more))
    assert not started
    assert not out.exists()
    assert search.main(arguments(folder, out, GRID)) == 0
    message = refused(search.main, *arguments(folder, out, GRID, "adapt.max_steps=2"))
    assert "adapt.max_steps (1 before, 2 now)" in message


@pytest.mark.slow
@pytest.mark.parametrize("inside", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_rates_of_training_are_chosen_by_development_rows(*, inside, folder, tmp_path, monkeypatch):
    """Trials are processes; here they run in this one, but in the slow tests."""

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert command[1:3] == ["-m", "mttl"]
        status = main(command[3:])
        return subprocess.CompletedProcess(command, status)

    if inside:
        monkeypatch.setattr(search_module.subprocess, "run", run)
    given = ["-c", str(folder / "tiny.yaml"), "--out", str(tmp_path), "-k"]
    given += ["search.grid={optim.lr: [1e-2, 1e-3]}", "trainer.max_steps=1"]
    given += ["trainer.val_check_interval=1"]
    assert search.main(given) == 0
    found = trials(tmp_path)
    assert [float(row["optim.lr"]) for row in found] == [1e-2, 1e-3]
    names = ("copy", "reverse", "number")
    for row in found:
        results = read_csv(tmp_path / "trials" / f"optim.lr={row['optim.lr']}" / "results.csv")
        assert {line["split"] for line in results} == {"dev"}
        dev = [float(row[f"dev/{name}"]) for name in names]
        known = [0.0 if math.isnan(score) else score for score in dev]
        assert float(row["score"]) == pytest.approx(sum(known) / 3)
    best = max(found, key=lambda row: float(row["score"]))
    files = f"{folder / 'tiny.yaml'}+{tmp_path / 'best.yaml'}"
    assert load_config(files).optim.lr == float(best["optim.lr"])
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("trials/*/results.csv")}
    assert search.main(given) == 0
    assert before == {path: path.stat().st_mtime_ns for path in before}
    # Killed before there was a checkpoint: all that a trial has left is what it was to be.
    killed = tmp_path / "trials" / f"optim.lr={best['optim.lr']}"
    config = (killed / "config.yaml").read_text()
    shutil.rmtree(killed)
    killed.mkdir()
    (killed / "config.yaml").write_text(config)
    (tmp_path / "trials.csv").unlink()
    assert search.main(given) == 0
    assert trials(tmp_path) == found
    # Another grid knows the trials of this one.
    other = [word.replace("[1e-2, 1e-3]", "[1e-4]") for word in given]
    assert search.main(other) == 0
    assert [float(row["optim.lr"]) for row in trials(tmp_path)] == [1e-3, 1e-2, 1e-4]
    with pytest.raises(ConfigError, match=r"made with other settings: optim\.weight_decay"):
        search.main([*given, "optim.weight_decay=0.3"])
    with pytest.raises(ConfigError, match=r"made with other settings: run\.seed \(13 before"):
        search.main([*given, "run.seed=14"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--from", "run"), "--from would have no effect in a search of training settings "),
        (("--tasks", "copy", "--workers", "2"), "--tasks, --workers would have no effect in a"),
        (
            ("-k", "data.split=train+dev", "data.validation=none", "data.evaluate=[test]"),
            "trains on the rows that a",
        ),
        (("-k", "search.grid={optim.lr: [1], adapt.lr: [1]}"), ": search either adapt. or optim."),
        (("-k", "search.grid={adapt.lr: [1]}"), "adapt.lr are settings of adaptation; name a run"),
        (("-k", "search.grid={optim.meta: [1]}"), "'optim.meta' is not a setting that can be"),
    ],
)
def test_mistakes_of_a_search_of_training(*, given, message, folder, tmp_path, refused) -> None:
    grid = "search.grid={optim.lr: [1e-2, 1e-3]}"
    run = [str(folder / "runs" / "source") if word == "run" else word for word in given]
    start = ["-c", str(folder / "tiny.yaml"), "--out", str(tmp_path / "out")]
    start += [] if "adapt.lr" in given[-1] and "optim" not in given[-1] else ["-k", grid]
    assert message in refused(search.main, *start, *run)
