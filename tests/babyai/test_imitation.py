"""`mttl train` with rl.demonstrations: policies that learn from a record, and films of them."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mttl.commands import babyai_film as FILM
from mttl.io import yaml12

pytest.importorskip("minigrid", reason="needs the extra `babyai`")

from envs.demonstration_file import save_demonstrations
from envs.demonstrations import record_demonstrations
from helpers.babyai import LEVELS, TINY
from helpers.command import column, read_csv, start, train
from helpers.interruption import assert_same_run, interrupted
from mttl.babyai.build_policy import load_policies
from mttl.babyai.evaluate import play_episode, play_levels
from mttl.checkpoints.run_folder import RunFolder
from mttl.io.errors import CheckpointError, ConfigError
from mttl.runtime.command import USER_MISTAKE, run_command

SEED = 5  # of evaluation
N_PASSES = 3
N_BATCHES = 3  # of a pass: 10 demonstrations of the level that has most, 4 in a batch


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("imitation")
    record = record_demonstrations(LEVELS[:1], 10) + record_demonstrations(LEVELS[1:], 7)
    save_demonstrations(record, folder / "record.npz")
    path = folder / "tiny.yaml"
    changes = {
        "run": {"dir": str(folder / "runs")},
        "rl": {
            **TINY["rl"],
            "demonstrations": str(folder / "record.npz"),
            "imitation": {"batch_size": 4},
            "evaluation": {"n_episodes": 4, "seed": SEED},
        },
        "router": {**TINY["router"], "relaxed": True},  # draws random numbers
        "optim": {**TINY["optim"], "lr": 1e-2},
        "trainer": {**TINY["trainer"], "max_epochs": N_PASSES},
    }
    path.write_text(yaml12.dump({**TINY, **changes}))
    return path


@pytest.fixture(scope="module")
def whole(config: Path) -> RunFolder:
    return train(config, "whole")


def test_a_run_leaves_the_same_behind_as_one_with_rewards(whole: RunFolder) -> None:
    assert {(row["task"], row["sample"], row["metric"]) for row in read_csv(whole.results)} == {
        (level, sample, metric)
        for level in (*LEVELS, "mean")
        for sample in ("greedy", "sampled")
        for metric in ("success", "steps")
    }
    for name in ("cross_entropy", "accuracy", *(f"accuracy/{level}" for level in LEVELS)):
        # Once per pass, with the step of its last batch, counted from 0.
        steps = [number * N_BATCHES - 1 for number in range(1, N_PASSES + 1)]
        assert list(column(whole.metrics, f"train/{name}")) == steps
    assert (whole.plots / "routing_history.npz").is_file()
    model, levels = load_policies(whole.path)
    assert levels == tuple(LEVELS)
    episodes = play_levels(model, levels, n_episodes=4, seed=SEED, choose="greedy")
    assert of_level(whole, "GoToObjS4") == pytest.approx(episodes.success[0].mean(), abs=1e-6)


def of_level(run: RunFolder, level: str) -> float:
    """Return the success rate that a run noted for greedy actions."""
    (row,) = (
        row
        for row in read_csv(run.results)
        if (row["task"], row["sample"], row["metric"]) == (level, "greedy", "success")
    )
    return float(row["score"])


@pytest.mark.parametrize(
    "step",
    [N_BATCHES + 1, 2 * N_BATCHES - 1, N_PASSES * N_BATCHES - 1],
    ids=["within a pass", "last of a pass", "last"],
)
def test_a_run_continues_as_if_it_had_never_stopped(config, whole, monkeypatch, step) -> None:
    """Bit for bit: the order of the demonstrations and random numbers all go on."""
    name = f"stopped-{step}"
    with interrupted(step, monkeypatch):
        train(config, name)
    assert_same_run(train(config, name, resume=True), whole)


def test_accuracy_rises_with_few_demonstrations(config: Path, tmp_path: Path) -> None:
    record = tmp_path / "forty.npz"
    save_demonstrations(record_demonstrations(["GoToObjS4"], 40), record)
    run = train(
        *(config, "forty", f"rl.demonstrations={record}", "rl.levels=[GoToObjS4]"),
        *("trainer.max_epochs=25", "rl.imitation.batch_size=10", "rl.evaluation.n_episodes=1"),
    )
    accuracies = list(column(run.metrics, "train/accuracy").values())
    assert len(accuracies) == 25
    # Guessing the most frequent action is right in about half of the steps; at the end all are
    # known by heart.
    assert accuracies[0] < 0.6
    assert np.mean(accuracies[-5:]) > 0.9


@pytest.mark.slow
def test_processes_share_a_pass(config: Path) -> None:
    """Each takes every other batch; parameters that the loss does not reach stop neither."""
    process = start(config, "two", "trainer.devices=2", "trainer.strategy=ddp")
    output, errors = process.communicate(timeout=280)
    assert process.returncode == 0, output + errors
    run = RunFolder(config.parent / "runs" / "two")
    # ⌈10 / (2 × 4)⌉ batches of each of 3 passes.
    assert list(column(run.metrics, "train/accuracy")) == [1, 3, 5]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["rl.levels=[GoToObjS4, GoTo]"], r"has none of GoTo, only of GoToObjS4 \(10\), GoToRedB"),
        (["rl.stop_when_solved=true"], "stop_when_solved must be false with demonstrations"),
        (["rl.imitation.entropy=1"], "section 'rl.imitation' has no 'entropy'. Did you mean 'ent"),
    ],
)
def test_mistakes_are_explained(config: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train(config, "mistake", *overrides)
    assert not (config.parent / "runs" / "mistake").exists()


def test_a_run_goes_on_with_the_record_it_began_with(config, monkeypatch) -> None:
    record = config.parent / "record.npz"
    content = record.read_bytes()
    with interrupted(1, monkeypatch):
        train(config, "exchanged")
    try:
        save_demonstrations(record_demonstrations(LEVELS, 8), record)
        with pytest.raises(CheckpointError, match=r"have \[8, 8\] demonstrations, but \[10, 7\]"):
            train(config, "exchanged", resume=True)
    finally:
        record.write_bytes(content)


@pytest.mark.parametrize("choose", ["greedy", "sampled"])
def test_one_episode_is_played_as_in_evaluation(whole: RunFolder, choose: str) -> None:
    model, levels = load_policies(whole.path)
    expected = play_levels(model, levels, n_episodes=3, seed=SEED, choose="greedy")
    for task, level in enumerate(levels):
        policy = model.task_module(task)
        actions, success = play_episode(policy, level, 2, seed=SEED, choose=choose)
        if choose == "greedy":
            assert len(actions) == expected.steps[task, 2]
            assert success == expected.success[task, 2]
        else:
            assert play_episode(policy, level, 2, seed=SEED, choose=choose) == (actions, success)


def duration(path: Path) -> float:
    """Return how long a GIF takes, in seconds."""
    with Image.open(path) as film:
        total = 0.0
        for number in range(getattr(film, "n_frames", 1)):
            film.seek(number)
            total += film.info["duration"]
    return total / 1000


def test_films_show_every_step(whole, tmp_path, capsys) -> None:
    level = LEVELS[1]
    policy = load_policies(whole.path)[0].task_module(1)
    given = [str(whole.path), "--level", level, "--out", str(tmp_path / "film.gif")]
    assert FILM.main([*given, "--episode", "3", "--episode", "1", "--episode", "3"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["film-1.gif", "film-3.gif"]
    printed = capsys.readouterr().out.splitlines()
    for line, episode in zip(printed, (3, 1), strict=True):
        actions, success = play_episode(policy, level, episode, seed=SEED, choose="greedy")
        # Four frames a second, the last one for a second; one that repeats the one before only
        # makes that last longer.
        assert duration(tmp_path / f"film-{episode}.gif") == len(actions) / 4 + 1
        outcome = "success" if success else "no success"
        assert f"episode {episode}: {outcome} in {len(actions)} steps" in line


def test_mistakes_of_films_are_told(whole, tmp_path, capsys) -> None:
    def told(**changes: str) -> str:
        options = {"run": str(whole.path), "level": LEVELS[0], "out": str(tmp_path / "film.gif")}
        options |= changes
        given = [options["run"], "--level", options["level"], "--out", options["out"]]
        assert run_command(lambda: FILM.main(given)) == USER_MISTAKE
        return capsys.readouterr().err

    assert "film.avi' must end in .gif or .mp4" in told(out=str(tmp_path / "film.avi"))
    assert "--level: unknown level 'GoToObjS'; did you mean 'GoToObjS6'" in told(level="GoToObjS")
    assert f"has no policy for GoToObj, only for {', '.join(LEVELS)}" in told(level="GoToObj")
    assert "nowhere" in told(run="nowhere")
    several = [str(whole.path), "--out", "film.gif", "--episode", "0", "--episode", "1"]
    several += [word for level in LEVELS for word in ("--level", level)]
    assert run_command(lambda: FILM.main(several)) == USER_MISTAKE
    assert "a film of several levels is of one episode of each" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        FILM.main([str(whole.path), "--level", LEVELS[0], "--out", "x.gif", "--episode", "-1"])
    assert "'-1' must be a whole number of at least 0" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
