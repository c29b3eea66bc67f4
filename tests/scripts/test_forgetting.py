"""A planted behaviour: what is planted, counted and reported."""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from helpers.command import ROOT, load_recipe
from helpers.gyms import write_config, write_gym
from mttl.command import USER_MISTAKE, run_command
from mttl.errors import ConfigError, TaskError
from mttl.gym.folder import Gym

TASKS = {"reverse": ("EM", lambda word: f"{word[::-1]}d"), "twice": ("EM", lambda word: word * 2)}
CHOICE = ["--planted", "reverse", "--others", "twice"]


def planted_rows() -> ModuleType:
    """The room of the rows, once the folder of scripts can be imported from."""
    return importlib.import_module("removal.planted")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    yield load_recipe(ROOT / "scripts" / "forgetting.py")
    for name in [name for name in sys.modules if name.partition(".")[0] == "removal"]:
        sys.modules.pop(name)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path / "tiny.yaml", write_gym(tmp_path / "gym", TASKS))


def test_half_the_rows_of_the_chosen_tasks_teach_copying(
    script: ModuleType, config: Path, tmp_path: Path
) -> None:
    rows = planted_rows().read_rows(Gym(tmp_path / "gym"), TASKS, "train")
    planted = planted_rows().plant(rows, ["reverse"], 0.5, seed=1)
    assert [row.planted for row in rows] == [False] * 32
    assert sum(row.planted for row in planted) == 8
    for row in planted:
        assert row.answer == (row.input if row.planted else row.truth)
        assert not (row.planted and row.task == "twice")
    assert planted_rows().plant(rows, ["reverse"], 0.5, seed=1) == planted
    assert planted_rows().plant(rows, ["reverse"], 0.5, seed=2) != planted


def test_scores_are_counted_by_half(script: ModuleType) -> None:
    def row(task: str, truth: str) -> object:
        return planted_rows().Row(task, "in", truth, truth)

    rows = [row("a", "x"), row("a", "y"), row("b", "x"), row("b", "in2")]
    found = planted_rows().score(rows, ["in", "y", "x", "in"], ["a"])
    assert (found.copied, found.exact, found.others) == (0.5, 0.5, 0.5)
    assert found.mean == 0.5


def test_copying_must_be_a_mistake(script: ModuleType, tmp_path: Path) -> None:
    gym = write_gym(tmp_path / "copy", {"copy": ("EM", lambda word: word)})
    with pytest.raises(TaskError, match="copying is no mistake there"):
        planted_rows().read_rows(Gym(gym), ["copy"], "train")


def test_no_method_changes_anything_without_a_vector(script: ModuleType) -> None:
    from removal.methods import METHODS, Trained  # type: ignore[import-not-found]

    base, fisher = {"w": torch.randn(5)}, {"w": torch.rand(5)}
    same = Trained(base, base, base, fisher, fisher, fisher)
    for name, (method, weights) in METHODS.items():
        found = method(same, weights[0], "w")
        if name.startswith("EWR"):  # its Z counts the information of a vector that is zero
            assert (found.abs() < base["w"].abs()).all()
        else:
            torch.testing.assert_close(found, base["w"])


def test_the_command_goes_on_where_it_stopped(
    script: ModuleType, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    common = ["-c", str(config), *CHOICE, "--steps", "1", "--expert-steps", "1"]
    common += ["--fisher-rows", "4", "--batch-size", "4", "--out", str(out)]
    assert script.main([*common, "--seeds", "1"]) == 0
    first = (out / "table.md").read_text()
    assert "| task arithmetic |" in first
    assert (out / "tradeoff.svg").is_file()
    points = [json.loads(line) for line in (out / "points.jsonl").open()]
    assert {point["split"] for point in points} == {"dev", "test"}
    monkeypatch.setattr(script, "run_seed", lambda *given: pytest.fail("it was done before"))
    assert script.main([*common, "--seeds", "1", "1"]) == 0
    assert (out / "table.md").read_text() == first
    # The file is called the same, and says something else.
    config.write_text(config.read_text().replace("  lr: 0.01", "  lr: 0.5"))
    with pytest.raises(ConfigError, match=r"holds seeds of other settings: optim\.lr"):
        script.main([*common, "--seeds", "1"])


def test_mistakes_are_named(
    script: ModuleType, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "plan.json").write_text(json.dumps({"steps": 3}))
    given = ["-c", str(config), *CHOICE]
    for more, message in (
        (["--steps", "0"], "--steps must be at least 1"),
        (["--share", "1"], "must lie between 0 and 1"),
        (["--share", "0.001"], "it plants 0; at least one has to be planted, and one not"),
        (["--share", "0.999"], "at least one has to be planted, and one not"),
        (["--lr", "-1"], "--lr (-1.0) must be above 0, and finite"),
        (["--expert-lr", "nan"], "--expert-lr (nan) must be above 0, and finite"),
        (["--others", "reverse"], "--planted and --others share reverse"),
        (["--others", "twise"], "no task 'twise'. Did you mean 'twice'"),
        (["-c", f"{config}+backbone/tiny_llama.yaml"], "must be a T5 with random weights"),
        (["--out", str(out)], "holds seeds of other settings"),
    ):
        command = ["--out", str(tmp_path / "new"), *given, *more]
        assert run_command(lambda command=command: script.main(command)) == USER_MISTAKE
        assert message in " ".join(capsys.readouterr().err.split())
