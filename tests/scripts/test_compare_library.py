"""Every router over one library, beside skills that were trained together: one command."""

import csv
import importlib
import json
import math
import sys
from pathlib import Path

import pytest

from helpers.backbones import fill
from helpers.command import ROOT, load_recipe
from helpers.gyms import TASKS, TINY_T5, write_config, write_gym
from mttl import yaml12
from mttl.build.build_backbone import build_backbone
from mttl.command import USER_MISTAKE, run_command
from mttl.config.load import load_config

sys.path.insert(0, str(ROOT / "scripts"))
SCRIPT = load_recipe(ROOT / "scripts" / "compare_library.py")
STAGES = importlib.import_module("comparison.stages")
LIBRARIES = importlib.import_module("comparison.libraries")
REPORT = importlib.import_module("comparison.library_report")
TABLES = importlib.import_module("comparison.tables")
MORE = {"double": ("EM", lambda word: 2 * word), "first": ("EM", lambda word: word[0])}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pretrained model, and a gym of four training tasks and one unseen one."""
    folder = tmp_path_factory.mktemp("library")
    tasks = {**TASKS, **MORE}
    gym = write_gym(folder / "gym", tasks)
    train, (unseen,) = list(tasks)[1:], list(tasks)[:1]
    (gym / "partition.json").write_text(json.dumps({"train": train, "test": [unseen]}))
    own = write_config(folder / "random.yaml", gym, backbone=TINY_T5)
    base = build_backbone(load_config([str(own)]).backbone)
    fill(base)
    base.save_pretrained(folder / "base")
    below = {"kind": "pretrained", "name": str(folder / "base"), "tokenizer": "byte"}
    text = yaml12.parse(own.read_text()) | {"backbone": below}
    text["skills"] |= {"mix": "factors"}
    (folder / "tiny.yaml").write_text(yaml12.dump(text))
    return folder / "tiny.yaml"


def compare(config: Path, out: Path, *more: str) -> int:
    budget = ["--steps", "1", "--adapt-steps", "1", "--workers", "1", "--seeds", "13"]
    given = ["-c", str(config), "--out", str(out), *budget, *more]
    return run_command(lambda: SCRIPT.main(given))


def words(commands: list[list[str]]) -> list[str]:
    """Return what each command does."""
    return [
        f"library {command[1]}" if Path(command[0]).stem == "library" else Path(command[0]).stem
        for command in commands
    ]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Note commands, which all end well and do nothing."""
    found: list[list[str]] = []

    def run(self: object, command: list[str], log: Path, cost: Path) -> None:
        found.append(command)
        STAGES.Cost(ended=True).write(cost)

    monkeypatch.setattr(STAGES.Processes, "run", run)
    return found


def test_what_something_is_made_of_is_made_first_and_once(
    config: Path, tmp_path: Path, given: list[list[str]]
) -> None:
    comparison = LIBRARIES.LibraryComparison(
        *(tmp_path, str(config), 1, 1, "copy"), methods=LIBRARIES.METHODS, clusters=3, n_seen=3
    )
    half_made = tmp_path / "mbc_arrow" / "seed13"
    half_made.mkdir(parents=True)
    for name in ("mbc_arrow", "arrow_general", "uniform"):
        (item,) = LIBRARIES.library_plans([name], [0], [13])
        comparison.run(item, STAGES.Processes(1))
        assert comparison.has_ended(item)
    adapting = ["pl_finetune", "pl_finetune"]  # unseen tasks, and those seen
    assert words(given) == [
        *("pl_train", "library add", "library cluster", "pl_train", "library add", "library run"),
        *(*adapting, "pl_train", "library add", "library run", *adapting),
        *("library run", *adapting),
    ]
    assert not half_made.exists()
    clusters, of_clusters = given[2], given[3]
    assert given[1][2:] == [str(tmp_path / "members/seed13"), str(tmp_path / "private/seed13")]
    assert f"router.matrix={tmp_path / 'mbc_table' / 'seed13.csv'}" in of_clusters
    assert "skills.n_skills=3" in of_clusters
    assert "--random" not in clusters
    assert given[4][-1] == "--skills"
    general = given[10]
    assert general[general.index("--general") + 1] == "seed13-0"
    seen = given[7]
    assert seen[seen.index("--tasks") + 1] == "reverse,number,double"
    assert "--allow-seen" in seen


@pytest.mark.slow
def test_a_library_is_made_once_and_every_row_asked(
    config: Path, tmp_path: Path, commands: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ["polytropon", "own", "uniform", "cat", "arrow"]
    given = ["--rows", *rows, "--examples", "0", "4"]
    assert compare(config, tmp_path / "out", *given) == 0
    found = words(commands)
    # Ways: two of polytropon, own and uniform, one of arrow; and the tasks seen of the last two.
    assert {name: found.count(name) for name in found} == {
        **{"pl_train": 2, "library add": 1, "library run": 2, "pl_finetune": 2 + 2 + 2 + 1 + 2},
        "query_cost": 1,
    }
    with (tmp_path / "out" / "library.csv").open() as file:
        table = list(csv.DictReader(file))
    asked = [(row["method"], row["examples"]) for row in table]
    useless = {("cat", "0"), ("uniform", "4"), ("arrow", "4")}
    assert asked == [(name, k) for name in rows for k in "04" if (name, k) not in useless]
    with (tmp_path / "out" / "scores.csv").open() as file:
        scores = list(csv.DictReader(file))
    seen = {row["method"]: row["task"] for row in scores if row["side"] == "seen"}
    assert set(seen) == {"polytropon", "private", "uniform", "arrow"}
    run = tmp_path / "out" / "arrow" / "seed13"
    assert "examples: 0" in (run / "seen" / "config.yaml").read_text()
    text = (tmp_path / "out" / "library.md").read_text()
    assert "| `arrow` |" in text
    assert text.strip() in capsys.readouterr().out
    assert all(name in (tmp_path / "out" / "library.svg").read_text() for name in rows)
    assert compare(config, tmp_path / "out", *given) == 0
    assert words(commands) == found
    assert compare(config, tmp_path / "out", *given, "--clusters", "3") == USER_MISTAKE
    assert "clusters (8 before, 3 now)" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_every_row_has_its_scores(config: Path, tmp_path: Path, commands: list[list[str]]) -> None:
    rows = [name for name in LIBRARIES.ALL_ROWS if name != "arrow_top10"]
    given = ["--rows", *rows, "--clusters", "3", "--examples", "0", "4"]
    assert compare(config, tmp_path / "out", *given) == 0
    assert words(commands).count("library cluster") == 2
    with (tmp_path / "out" / "library.csv").open() as file:
        asked = {(row["method"], int(row["examples"])) for row in csv.DictReader(file)}
    known = {name: LIBRARIES.ALL_ROWS[name] for name in rows}
    assert asked == {
        *((name, 0) for name, row in known.items() if row.none),
        *((name, 4) for name, row in known.items() if row.few),
    }


def test_rows_of_one_run_share_it() -> None:
    plans = LIBRARIES.library_plans(["cat", "uniform", "own", "mbc"], [0, 8, 16], [13, 14])
    assert [(item.name, item.seed) for item in plans] == [
        (name, seed) for seed in (13, 14) for name in ("private", "mbc", "uniform")
    ]
    names = [way.name for way in plans[2].ways]
    assert names == ["cat-8", "cat-16", "start"]
    assert set(LIBRARIES.METHODS) == {row.method for row in LIBRARIES.ALL_ROWS.values()}


def test_training_tasks_that_are_asked_for_lie_evenly() -> None:
    tasks = list("abcdefghij")
    assert LIBRARIES.evenly(tasks, 4) == ["a", "c", "f", "h"]
    assert [len(LIBRARIES.evenly(tasks, n)) for n in (1, 6, 9, 10, 11)] == [1, 6, 9, 10, 10]


def test_points_are_paired_with_the_reference_of_as_many_rows() -> None:
    def score(method: str, mode: str, task: str, value: float) -> object:
        return TABLES.Score(method, mode, 13, "unseen", task, 1, value)

    scores = [score("polytropon", "start", task, x) for task, x in (("a", 10.0), ("b", 30.0))]
    scores += [score("mbc", "start", task, x) for task, x in (("a", 20.0), ("b", 44.0))]
    scores += [score("mbc", "all-8", "a", 70.0)]
    _, first, second = REPORT.library_points(scores, ["polytropon", "mbc"], [0, 8])
    assert (first.score.mean, first.difference.mean) == (32.0, 12.0)
    assert (second.examples, second.score.mean) == (8, 70.0)
    assert math.isnan(second.difference.mean)


def test_mistakes_cost_no_training(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for given, message in (
        (["--rows", "arrow"], "--rows must contain polytropon"),
        (["-k", "adapt.mode=all"], "adapt.mode is set by the comparison itself"),
        (["--examples", "17"], "adapt.examples (17) must be at most 16"),
    ):
        assert compare(config, tmp_path / "out", *given) == USER_MISTAKE
        assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()
