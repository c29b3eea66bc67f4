"""One command trains all methods, adapts them and writes one table."""

import importlib
import json
import math
import os
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import pytest
import torch

from helpers.command import ROOT, read_csv
from helpers.gyms import TASKS, write_config, write_gym
from helpers.processes import wait_for
from mttl.commands import compare as SCRIPT
from mttl.config.load import configs_dir, load_config
from mttl.config.schema import Adapt
from mttl.io.files import locked
from mttl.tasks.folder import Gym
from mttl.tasks.partition import Partition

STAGES = importlib.import_module("mttl.commands.comparison.stages")
TABLES = importlib.import_module("mttl.commands.comparison.tables")
METHODS = importlib.import_module("mttl.commands.comparison.methods")
FOLDER = importlib.import_module("mttl.commands.comparison.comparison_folder")
LEXICAL = Partition.read(configs_dir() / "partitions" / "lexical.json")
GYM = Gym(ROOT / "data" / "lexical")
CATEGORIES = {
    task: GYM.category(task) for side in ("train", "dev", "test") for task in getattr(LEXICAL, side)
}
BUDGET = ("--steps", "1", "--adapt-steps", "1", "--workers", "1")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Configure a gym of which one task is left out of training."""
    gym = write_gym(tmp_path / "gym", unseen=["copy"], category="string/word")
    return write_config(tmp_path / "tiny.yaml", gym)


def compare(config: Path | str, out: Path, *more: str) -> int:
    return SCRIPT.main(["-c", str(config), "--out", str(out), *BUDGET, *more])


@pytest.mark.slow
def test_methods_and_modes_end_in_one_table(config, tmp_path, commands, capsys) -> None:
    out = tmp_path / "out"
    given = ("--methods", "polytropon", "shared", "--modes", "zero_shot", "--seeds", "13")
    assert compare(config, out, *given) == 0
    assert len(commands) == 5  # two trainings, their adaptation, and zero_shot
    printed = capsys.readouterr().out
    assert "1 steps of training, 1 of each adaptation, seeds 13" in printed
    lines = {row["method"]: row for row in read_csv(out / "table.csv")}
    assert list(lines) == ["polytropon", "shared", "polytropon: zero_shot"]
    assert float(lines["polytropon: zero_shot"]["trained"]) == 0.0
    assert 0 < float(lines["shared"]["trained"]) < float(lines["polytropon"]["trained"])
    scores = read_csv(out / "scores.csv")
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


@pytest.mark.slow
def test_what_has_ended_is_not_repeated_and_seeds_can_be_added(config, tmp_path, commands, refused):
    """With other settings it is refused; tasks of the training need no score."""
    out = tmp_path / "out"
    given = ("--methods", "polytropon", "--modes", "--unseen-only", "--seeds", "13")
    for _ in range(2):
        assert compare(config, out, *given) == 0
        assert len(commands) == 2
    assert compare(config, out, *given, "14") == 0
    assert len(commands) == 4
    assert {row["side"] for row in read_csv(out / "scores.csv")} == {"unseen"}
    (row,) = read_csv(out / "table.csv")
    assert row["seen"] == "nan"
    assert float(row["training_minutes"]) > 0
    picture = (out / "comparison.svg").read_text()
    assert "unseen tasks" in picture
    assert ">seen tasks" not in picture
    again = (SCRIPT.main, "-c", config, "--out", out, *BUDGET, *given)
    assert "adapt_steps (1 before, 2 now)" in refused(*again, "--adapt-steps", "2")
    with locked(out / ".lock"):
        assert "another mttl compare writes to" in refused(*again)
    config.write_text(config.read_text().replace("rank: 2", "rank: 3"))
    assert "skills.rank (2 before, 3 now)" in refused(*again)


def test_mistakes_cost_no_training(config: Path, tmp_path: Path) -> None:
    with pytest.raises(METHODS.MttlError, match="the reference polytropon is not among"):
        compare(config, tmp_path / "out", "--methods", "shared")
    matrix = ("-k", "data.expert_matrix=router/expert_grid.csv")
    for given, message in (
        (("-k", "adapt.max_steps=7"), r"adapt\.max_steps is set by .* \(--adapt-steps\)"),
        (("--tasks", "reverse"), "was trained on reverse"),
        (("--examples", "17"), r"adapt\.examples \(17\) must be at most 16"),
        (("-k", "adapt.init=fresh"), "adapt.init is set by the comparison.*; remove it"),
        (("--folds", "4"), "--folds 4 must lie between 2 and 3, the number of tasks"),
        (("--folds", "3", "--tasks", "dev"), "--tasks dev does not work with --folds, where all"),
        (("--methods", "polytropon", "expert"), "skills.n_skills 'per_column' needs an expert"),
        (("--methods", "polytropon", "expert", *matrix), "no row for the task 'reverse'"),
    ):
        with pytest.raises(METHODS.MttlError, match=message):
            compare(config, tmp_path / "out", "--methods", "polytropon", *given)
    table = config.parent / "gym" / "TASKS.csv"
    table.write_text(table.read_text().replace("string/word", ""))
    with pytest.raises(METHODS.MttlError, match="' has no category for 'reverse'; add it in the"):
        compare(config, tmp_path / "out", "--methods", "polytropon", "--folds", "3")
    assert not (tmp_path / "out").exists()


def test_rows_that_changed_are_refused(config, tmp_path, commands, refused) -> None:
    """Development rows have changed: a method that is added would be compared on other rows."""
    given = ("--modes", "--seeds", "13", "--methods")
    assert compare(config, tmp_path / "out", *given, "polytropon") == 0
    task = next(iter(TASKS))
    for path in (tmp_path / "gym" / task).glob("*_dev.tsv"):
        path.write_text("cab\tcab\n")
    known = len(commands)
    again = (SCRIPT.main, "-c", config, *BUDGET)
    told = refused(*again, "--out", tmp_path / "out", *given, "polytropon", "shared")
    assert "the rows or the metric of copy have changed" in told
    # Finished runs, whose tasks would be scored by the new rows.
    beside = ("--runs", f"old={tmp_path / 'out' / 'polytropon' / 'seed13'}", *given, "shared")
    told = refused(*again, "--out", tmp_path / "new", *beside, "--reference", "shared")
    assert "the task files now and old were scored on different rows, or" in told
    assert len(commands) == known


@pytest.mark.parametrize("name", METHODS.METHODS)
def test_every_method_is_a_configuration(name: str) -> None:
    method = METHODS.METHODS[name]
    config = load_config(f"crossfit.yaml+{method.fragment}", [*method.settings])
    assert method.variants[0].name == "all"
    for variant in method.variants:
        adapting = load_config("crossfit.yaml", [*variant.settings, *method.adapt_settings])
        assert (adapting.adapt.router_lr is None) == (config.optim.router_lr is None)
    assert (config.optim.router_lr is None) == (name in ("one_speed", "hyperformer"))


@pytest.mark.slow
def test_a_method_and_its_ways_overrule_what_all_runs_share(config, tmp_path, commands) -> None:
    """Baselines treat new tasks as published: with one skill, the own or that of the matrix."""
    matrix, fragment = tmp_path / "matrix.csv", tmp_path / "expert.yaml"
    matrix.write_text("task,a,b\ncopy,0,1\nreverse,1,0\nnumber,0,1\n")
    fragment.write_text(f"skills: {{n_skills: 2}}\nrouter: {{kind: expert, matrix: {matrix}}}\n")
    expert = METHODS.Method(str(fragment), variants=METHODS.METHODS["expert"].variants)
    files, names = f"{config}+adapt/mean_row.yaml", ("polytropon", "private", "expert")
    given = ("--methods", *names, "--modes", "full", "nearest_task", "--seeds", "13")
    given += ("-k", "adapt.lr=0.02", "adapt.router_lr=0.3")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(METHODS.METHODS, "expert", expert)
        assert compare(files, tmp_path / "out", *given) == 0
    trained = [words[4] for words in commands if words[2] == "train"]
    fragments = ("router/polytropon.yaml", "router/private.yaml", str(fragment))
    assert trained == [f"{files}+{name}" for name in fragments]
    lines = {row["method"]: row for row in read_csv(tmp_path / "out" / "table.csv")}
    nearest = [f"{name}: nearest_task" for name in names]
    assert list(lines) == [*names, "polytropon: full", *nearest]

    def kept(method: str, variant: str) -> tuple[Adapt, int]:
        folder = tmp_path / "out" / method / "seed13" / f"adapt-{variant}"
        n_trained = json.loads((folder / "results.jsonl").read_text())["n_trained"]
        return load_config(str(folder / "config.yaml")).adapt, n_trained

    own, _ = kept("polytropon", "all")
    assert (own.lr, own.router_lr) == (0.02, 0.3)
    assert kept("polytropon", "full")[0].lr == 1e-3
    private, n_private = kept("private", "all")
    assert private.init == "private_skill"
    assert n_private == kept("expert", "all")[1] == int(lines["expert"]["trained"]) // 2
    assert kept("expert", "nearest_task")[1] == 0


def test_every_task_is_unseen_once(config, tmp_path, commands, capsys) -> None:
    given = ("--methods", "polytropon", "--modes", "--seeds", "13", "--folds", "2")
    given += ("--examples", "2", "--samples", "100")
    out = tmp_path / "out"
    assert compare(config, out, *given) == 0
    assert [command[2] for command in commands] == 2 * ["train", "adapt"]
    for command in commands:
        assert ("--samples" in command) == (command[2] == "adapt")
    unseen = []
    for fold in (1, 2):
        partition = json.loads((out / "folds" / f"fold{fold}.json").read_text())
        assert sorted(chain(*partition.values())) == sorted(TASKS)
        unseen += [(str(fold), task) for task in partition["test"]]
        run = out / f"fold{fold}" / "polytropon" / "seed13"
        assert json.loads((run / "skills" / "tasks.json").read_text()) == partition["train"]
        assert "examples: 2" in (run / "adapt-all" / "config.yaml").read_text()
    assert sorted(task for _, task in unseen) == sorted(TASKS)
    scores = read_csv(out / "scores.csv")
    assert {(row["fold"], row["task"]) for row in scores if row["side"] == "unseen"} == {*unseen}
    assert ", each trained on the tasks of the others." in " ".join(capsys.readouterr().out.split())
    assert compare(config, out, *given) == 0
    assert len(commands) == 4
    fold = out / "folds" / "fold1.json"
    fold.write_text(fold.read_text().replace("copy", "other"))
    with pytest.raises(METHODS.MttlError, match=r"the tasks have changed .*, so fold 1 would"):
        compare(config, out, *given)


@pytest.mark.parametrize("n_folds", [2, 5, 7, 45])
def test_every_task_is_unseen_once_and_categories_are_spread(n_folds: int) -> None:
    folds = FOLDER.split_folds(CATEGORIES, n_folds, seed=13)
    assert sorted(task for fold in folds for task in fold) == sorted(CATEGORIES)
    sizes = [len(fold) for fold in folds]
    assert max(sizes) - min(sizes) <= 1
    counts = [Counter(CATEGORIES[task] for task in fold) for fold in folds]
    for category in set(CATEGORIES.values()):
        own = [count[category] for count in counts]
        assert max(own) - min(own) <= 1


def test_folds_depend_on_the_seed_alone() -> None:
    backwards = dict(reversed(CATEGORIES.items()))
    assert FOLDER.split_folds(backwards, 5, seed=13) == FOLDER.split_folds(CATEGORIES, 5, seed=13)
    assert FOLDER.split_folds(CATEGORIES, 5, seed=14) != FOLDER.split_folds(CATEGORIES, 5, seed=13)


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_processes_write_down_their_cost(tmp_path: Path) -> None:
    hog = script(
        tmp_path / "hog.py", "x = b'x' * 2**26\nwhile __import__('time').process_time() < 0.3: pass"
    )
    processes, cost = STAGES.Processes(1), tmp_path / "cost.json"
    processes.run([str(hog)], tmp_path / "log", cost)
    first = STAGES.Cost.read(cost)
    assert first.ended
    assert first.cpu_minutes >= 0.3 / 60
    assert 64 < first.peak_mib < 200  # the interpreter takes about 10
    processes.run([str(hog)], tmp_path / "log", cost)
    assert STAGES.Cost.read(cost).cpu_minutes >= 2 * 0.3 / 60


def test_processes_side_by_side_take_one_gpu_each(tmp_path, monkeypatch) -> None:
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
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
time.sleep(0.5)  # long enough for a second signal
""",
    )
    parent = script(
        tmp_path / "parent.py",
        f"""
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from mttl.commands.comparison.stages import Processes
from mttl.runtime.command import exit_with
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
    wait_for((tmp_path / "pid").read_text)
    os.killpg(process.pid, number)  # as a terminal does
    assert process.wait(timeout=200) == (130 if number == signal.SIGINT else 1)
    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    # A second one would tell a training to leave without a checkpoint.
    assert (tmp_path / "signals").read_text() == "1"


def test_what_waits_for_its_turn_leaves_no_trace_when_the_others_are_stopped(tmp_path) -> None:
    short = script(tmp_path / "short.py", "")
    long = script(tmp_path / "long.py", "import time; time.sleep(200)")

    def run(name: str, processes: STAGES.Processes) -> None:
        command = short if name == "first" else long
        processes.run([str(command)], tmp_path / name / "log", tmp_path / name / "cost.json")

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        FOLDER.run_all(["first", "second", "third"], run, 1, stop)
    assert STAGES.Cost.read(tmp_path / "first" / "cost.json").ended
    assert not (tmp_path / "third").exists()


def score(task: str, sample: int, value: float, seed: int = 13) -> object:
    return TABLES.TaskScore("m", "all", seed, "unseen", task, sample, value)


def test_differences_are_paired_by_task_fold_seed_and_sample() -> None:
    ours = [score("a", 1, 10.0, 1), score("a", 1, 14.0, 2), score("b", 1, 5.0, 1)]
    reference = [
        *(score("a", 1, 8.0, 1), score("a", 1, 10.0, 2), score("b", 1, math.nan, 1)),
        score("b", 2, 90.0, 1),  # nothing to pair it with
    ]
    found = TABLES.paired_difference(ours, reference)
    assert found.mean == pytest.approx(((2 + 4) / 2 + 5) / 2)
    assert found.low <= found.mean <= found.high
    single = TABLES.paired_difference(ours[:1], reference)
    assert single.mean == 2.0
    assert math.isnan(single.low)
    assert math.isnan(TABLES.paired_difference([], reference).mean)


def test_samples_are_averaged_before_tasks_and_undefined_scores_count_as_zero() -> None:
    scores = [score("a", 1, 10.0), score("a", 2, 30.0), score("b", 1, 60.0)]
    scores.append(score("c", 1, math.nan))
    assert TABLES.by_seed(scores) == {13: pytest.approx((20 + 60 + 0) / 3)}
    # A seed that has one of the tasks so far has no mean over all tasks.
    begun = score("a", 1, 90.0, seed=14)
    assert TABLES.by_seed([*scores, begun]) == TABLES.by_seed(scores)
    # Where no seed has all, there is a mean of all nevertheless: that of the table and the figure.
    parts = [score("b", 1, 30.0), begun]
    assert TABLES.by_seed(parts) == {}
    assert TABLES.mean_score(parts) == 60.0


def test_every_seed_is_a_dot_and_the_reference_a_line() -> None:
    figures = importlib.import_module("mttl.commands.comparison.figure")
    none, apart = TABLES.Mean(0.0, math.nan, math.nan), TABLES.Mean(-4.0, -5.0, -2.0)
    lines = [
        TABLES.TableRow("a", 0, 2, 2.0, 6.0, none, none),
        TABLES.TableRow("b", 0, 1, math.nan, 2.0, none, apart),
    ]
    seeds = {"seen": [[1.0, 3.0], []], "unseen": [[5.0, 7.0], [2.0]]}
    figure = figures.comparison_figure(lines, seeds, "a")
    seen, unseen = figure.axes
    assert [text.get_text() for text in seen.get_yticklabels()] == ["a", "b"]
    titles = [text.get_text() for text in (seen.title, unseen.title)]
    assert titles == ["seen tasks", "unseen tasks"]
    drawn = [line.get_xdata() for line in unseen.lines]
    assert [list(x) for x in drawn] == [[5.0, 7.0], [6.0], [6.0, 6.0], [2.0], [2.0]]
    assert len(seen.lines) == 3  # nothing of b
    # The whisker is the interval of the difference, around the mean.
    assert unseen.collections[1].get_segments()[0][:, 0].tolist() == [1.0, 4.0]
    # Equal scores have an axis of whole numbers.
    same = [TABLES.TableRow("a", 0, 1, 0.0, math.nan, none, none)]
    (axes,) = figures.comparison_figure(same, {"seen": [[0.0]], "unseen": [[]]}, "a").axes
    low, high = axes.get_xlim()
    ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
    assert ticks == [-1.0, 0.0, 1.0]
