"""One command trains all methods, adapts them and writes one table."""

import csv
import importlib
import json
import logging
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest
import torch
from scipy import stats

from helpers.command import ROOT, load_recipe
from helpers.gyms import TASKS, write_config, write_gym
from mttl.command import USER_MISTAKE, run_command
from mttl.config.load import load_config
from mttl.files import locked

# As when the script is run: its folder comes first.
sys.path.insert(0, str(ROOT / "scripts"))
SCRIPT = load_recipe(ROOT / "scripts" / "compare.py")
STAGES = sys.modules["comparison.stages"]
TABLES = sys.modules["comparison.tables"]
METHODS = sys.modules["comparison.methods"]
BUDGET = ("--steps", "1", "--adapt-steps", "1", "--workers", "1")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Configure a gym of which one task is left out of training."""
    gym = write_gym(tmp_path / "gym")
    names = list(TASKS)
    (gym / "partition.json").write_text(json.dumps({"train": names[1:], "test": names[:1]}))
    return write_config(tmp_path / "tiny.yaml", gym)


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """Run commands in this process, and list them."""
    given: list[list[str]] = []

    def run(self: object, command: list[str], log: Path, cost: Path) -> None:
        given.append(command)
        recipe: ModuleType = load_recipe(Path(command[0]))
        assert recipe.main(command[1:]) == 0
        STAGES.Cost(1.0, 100.0, ended=True).write(cost)

    monkeypatch.setattr(STAGES.Processes, "run", run)
    yield given
    logging.getLogger("mttl.data").setLevel(logging.NOTSET)  # adaptation hushes it


def compare(config: Path, out: Path, *more: str) -> int:
    return SCRIPT.main(["-c", str(config), "--out", str(out), *BUDGET, *more])


def test_methods_and_modes_end_in_one_table(
    config: Path, tmp_path: Path, commands: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    given = ("--methods", "polytropon", "shared", "--modes", "zero_shot", "--seeds", "13")
    assert compare(config, out, *given) == 0
    assert len(commands) == 5  # two trainings, their adaptation, and zero_shot
    printed = capsys.readouterr().out
    assert "1 steps of training, 1 of each adaptation, seeds 13" in printed
    with (out / "table.csv").open() as file:
        lines = {row["method"]: row for row in csv.DictReader(file)}
    assert list(lines) == ["polytropon", "shared", "polytropon: zero_shot"]
    assert float(lines["polytropon: zero_shot"]["trained"]) == 0.0
    assert 0 < float(lines["shared"]["trained"]) < float(lines["polytropon"]["trained"])
    with (out / "scores.csv").open() as file:
        scores = list(csv.DictReader(file))
    assert {(row["side"], row["task"]) for row in scores} == {
        *(("seen", task) for task in list(TASKS)[1:]),
        ("unseen", next(iter(TASKS))),
    }
    assert lines["polytropon: zero_shot"]["seen"] == "nan"
    picture = (out / "comparison.svg").read_text()
    assert all(text in picture for text in ("polytropon: zero_shot", "shared", "unseen tasks"))
    # The table's means are those of the scores.
    for name, line in lines.items():
        method, _, mode = name.partition(": ")
        found = [
            float(row["score"])
            for row in scores
            if (row["method"], row["mode"]) == (method, mode or "all")
        ]
        assert float(line["unseen"]) == pytest.approx(sum(found) / len(found), abs=1e-3)


def test_what_has_ended_is_not_repeated_and_seeds_can_be_added(
    config: Path, tmp_path: Path, commands: list[list[str]]
) -> None:
    given = ("--methods", "polytropon", "--modes")
    assert compare(config, tmp_path / "out", *given, "--seeds", "13") == 0
    assert compare(config, tmp_path / "out", *given, "--seeds", "13") == 0
    assert len(commands) == 2
    assert compare(config, tmp_path / "out", *given, "--seeds", "13", "14") == 0
    assert len(commands) == 4


def test_adaptation_takes_the_samples_that_were_asked_for(
    config: Path, tmp_path: Path, commands: list[list[str]]
) -> None:
    given = ("--methods", "polytropon", "--modes", "--seeds", "13", "--samples", "100")
    assert compare(config, tmp_path / "out", *given) == 0
    assert "--samples" not in commands[0]
    assert commands[1][commands[1].index("--samples") + 1] == "100"


def test_another_budget_is_refused(
    config: Path, tmp_path: Path, commands: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--methods", "polytropon", "--modes", "--seeds", "13")
    assert compare(config, tmp_path / "out", *given) == 0
    more = (*given, "--adapt-steps", "2")
    assert run_command(lambda: compare(config, tmp_path / "out", *more)) == USER_MISTAKE
    assert "adapt_steps (1 before, 2 now)" in " ".join(capsys.readouterr().err.split())


def test_mistakes_cost_no_training(config: Path, tmp_path: Path) -> None:
    with pytest.raises(METHODS.MttlError, match="must contain polytropon"):
        compare(config, tmp_path / "out", "--methods", "shared")
    for given, message in (
        (("-k", "adapt.lrr=1"), r"adapt\.lrr"),
        (("-k", "adapt.max_steps=7"), r"adapt\.max_steps is set by .* \(--adapt-steps\)"),
        (("--tasks", "copi"), "Did you mean 'copy'"),
        (("--tasks", "reverse"), "was trained on reverse"),
        (("--samples", "7"), "sample"),
    ):
        with pytest.raises(METHODS.MttlError, match=message):
            compare(config, tmp_path / "out", *given)
    assert not (tmp_path / "out").exists()


def test_nothing_runs_twice() -> None:
    plans = METHODS.plan(["polytropon", "shared", "shared"], [], [13, 13])
    assert [(item.name, item.seed) for item in plans] == [("polytropon", 13), ("shared", 13)]


def test_two_comparisons_do_not_share_a_folder(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with locked(tmp_path / "out" / ".lock"):
        assert run_command(lambda: compare(config, tmp_path / "out")) == USER_MISTAKE
    assert "another comparison is at work" in " ".join(capsys.readouterr().err.split())


def test_files_that_changed_are_refused(
    config: Path, tmp_path: Path, commands: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--methods", "polytropon", "--modes", "--seeds", "13")
    assert compare(config, tmp_path / "out", *given) == 0
    config.write_text(config.read_text().replace("rank: 2", "rank: 3"))
    assert run_command(lambda: compare(config, tmp_path / "out", *given)) == USER_MISTAKE
    assert "skills.rank (2 before, 3 now)" in " ".join(capsys.readouterr().err.split())


def test_a_training_that_has_begun_goes_on(tmp_path: Path) -> None:
    assert STAGES.start_again(tmp_path / "seed13") == []
    (tmp_path / "seed13").mkdir()
    assert STAGES.start_again(tmp_path / "seed13") == ["--resume"]


@pytest.mark.parametrize("name", METHODS.ALL)
def test_every_method_is_a_configuration(name: str) -> None:
    method = METHODS.ALL[name]
    config = load_config(f"crossfit.yaml+{method.fragment}", method.training())
    if method.one_speed:
        assert config.optim.router_lr is None
        adapting = load_config("crossfit.yaml", method.adaptation(0.5))
        assert adapting.adapt.router_lr == 0.5
    else:
        assert config.optim.router_lr is not None


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_processes_write_down_their_cost(tmp_path: Path) -> None:
    hog = script(
        tmp_path / "hog.py", "x = b'x' * 2**26\nwhile __import__('time').process_time() < 0.6: pass"
    )
    processes, cost = STAGES.Processes(1), tmp_path / "cost.json"
    processes.run([str(hog)], tmp_path / "log", cost)
    first = STAGES.Cost.read(cost)
    assert first.ended
    assert first.cpu_minutes >= 0.6 / 60
    assert 64 < first.peak_mib < 200  # the interpreter takes about 10
    processes.run([str(hog)], tmp_path / "log", cost)
    assert STAGES.Cost.read(cost).cpu_minutes >= 2 * 0.6 / 60


def test_processes_side_by_side_take_one_gpu_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    script = tmp_path / "shown.py"
    # It waits for the other one, so that both run at once.
    script.write_text(
        "import os, pathlib, sys, time\n"
        "print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True)\n"
        "pathlib.Path(sys.argv[1]).touch()\n"
        "while not pathlib.Path(sys.argv[2]).exists(): time.sleep(0.05)\n"
    )
    processes = STAGES.Processes(1)

    def run(own: str, other: str) -> str:
        command = [str(script), str(tmp_path / own), str(tmp_path / other)]
        processes.run(command, tmp_path / f"{own}.log", tmp_path / f"{own}.json")
        return (tmp_path / f"{own}.log").read_text().strip()

    with ThreadPoolExecutor() as pool:
        assert sorted(pool.map(run, ("a", "b"), ("b", "a"))) == ["0", "1"]
    assert run("c", "a") == "0"  # the lowest that is free


def test_a_failure_names_the_log(tmp_path: Path) -> None:
    broken = script(tmp_path / "broken.py", "print('why'); raise SystemExit(2)")
    with pytest.raises(STAGES.MttlError, match=r"'broken.py' failed.*log"):
        STAGES.Processes(1).run([str(broken)], tmp_path / "log", tmp_path / "cost.json")
    assert (tmp_path / "log").read_text() == "why\n"
    assert not STAGES.Cost.read(tmp_path / "cost.json").ended


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopping_ends_the_commands_too(tmp_path: Path, number: signal.Signals) -> None:
    child = script(
        tmp_path / "child.py",
        f"""
import os, signal, time
count = 0
def received(number, frame):
    global count
    count += 1
    open({str(tmp_path / "signals")!r}, "w").write(str(count))
signal.signal(signal.SIGINT, received)
signal.signal(signal.SIGTERM, received)
open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
end = time.monotonic() + 200
while not count and time.monotonic() < end:
    time.sleep(0.05)
time.sleep(1)  # long enough for a second signal
""",
    )
    parent = script(
        tmp_path / "parent.py",
        f"""
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
sys.path.insert(0, {str(ROOT / "scripts")!r})
from comparison.stages import Processes
from mttl.command import exit_with
def main():
    processes = Processes(1)
    with ThreadPoolExecutor(1) as pool, processes.stopping():
        pool.submit(processes.run, [{str(child)!r}], Path({str(tmp_path / "log")!r}),
                    Path({str(tmp_path / "cost.json")!r})).result()
    return 0
exit_with(main)
""",
    )
    # A job in the background of a shell ignores SIGINT, and so do its children.
    process = subprocess.Popen(
        [sys.executable, str(parent)],
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    wait_for((tmp_path / "pid").is_file)
    wait_for(lambda: bool((tmp_path / "pid").read_text()))
    os.killpg(process.pid, number)  # as a terminal does
    assert process.wait(timeout=200) == (130 if number == signal.SIGINT else 1)
    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    # A second one would tell a training to leave without a checkpoint.
    assert (tmp_path / "signals").read_text() == "1"


def test_the_interval_is_students() -> None:
    ours, reference = {1: 10.0, 2: 12.0, 3: 17.0}, {1: 8.0, 2: 11.0, 3: 11.0, 4: 0.0}
    found = TABLES.paired_difference(ours, reference)
    low, high = stats.ttest_rel([10, 12, 17], [8, 11, 11]).confidence_interval(0.95)
    assert (found.mean, found.low, found.high) == pytest.approx((3.0, low, high))
    single = TABLES.paired_difference({1: 2.0}, {1: 1.0})
    assert single.mean == 1.0
    assert math.isnan(single.low)
    assert math.isnan(TABLES.paired_difference({}, {1: 1.0}).mean)


def test_samples_are_averaged_before_tasks_and_undefined_scores_count_as_zero() -> None:
    def score(task: str, sample: int, value: float) -> object:
        return TABLES.Score("m", "all", 13, "unseen", task, sample, value)

    scores = [
        score("a", 1, 10.0),
        score("a", 2, 30.0),
        score("b", 1, 60.0),
        score("c", 1, math.nan),
    ]
    assert TABLES.by_seed(scores) == {13: pytest.approx((20 + 60 + 0) / 3)}


def test_every_seed_is_a_dot_and_the_reference_a_line() -> None:
    figures = importlib.import_module("comparison.figure")
    figure = figures.comparison_figure(
        [figures.Dots("a", [1.0, 3.0], [5.0, 7.0]), figures.Dots("b", [], [2.0])], "a"
    )
    seen, unseen = figure.axes
    assert [text.get_text() for text in seen.get_yticklabels()] == ["a", "b"]
    assert [text.get_text() for text in (seen.title, unseen.title)] == [
        "seen tasks",
        "unseen tasks",
    ]
    drawn = [line.get_xdata() for line in unseen.lines]
    assert [list(x) for x in drawn] == [[5.0, 7.0], [6.0], [6.0, 6.0], [2.0], [2.0]]
    assert len(seen.lines) == 3  # nothing of b
