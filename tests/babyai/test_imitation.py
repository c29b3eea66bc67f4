"""`mttl train` with rl.demonstrations: policies that learn from a record, and films of them."""

import base64
import json
import re
import shutil
from contextlib import suppress
from operator import itemgetter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageSequence

from mttl.commands import babyai_film as FILM
from mttl.commands import explore as EXPLORE
from mttl.io import yaml12

pytest.importorskip("minigrid", reason="needs the extra `babyai`")

from envs.demonstrations import record_demonstrations, save_demonstrations
from helpers.babyai import LEVELS, TINY
from helpers.command import column, read_csv, start, train
from helpers.interruption import assert_same_run, interrupted
from mttl.babyai.build_policy import load_policies
from mttl.babyai.evaluate import play_episode, play_levels
from mttl.checkpoints.run_folder import RunFolder
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


@pytest.mark.slow
def test_a_run_leaves_the_same_behind_as_one_with_rewards(whole: RunFolder) -> None:
    rows = read_csv(whole.results)
    keys = itemgetter("task", "sample", "metric")
    assert {keys(row) for row in rows} == {
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
    wanted = ("GoToObjS4", "greedy", "success")
    (rate,) = (row["score"] for row in rows if keys(row) == wanted)
    assert float(rate) == pytest.approx(episodes.success[0].mean(), abs=1e-6)
    # One episode is played as in evaluation.
    for task, level in enumerate(levels):
        actions, success = play_episode(model, task, level, 2, seed=SEED, choose="greedy")
        found = len(actions), success
        assert found == (episodes.steps[task, 2], episodes.success[task, 2])
        one, two = (
            play_episode(model, task, level, 2, seed=SEED, choose="sampled") for _ in range(2)
        )
        assert one == two


@pytest.mark.every(2)
@pytest.mark.parametrize("step", [N_BATCHES + 1, 2 * N_BATCHES - 1], ids=["within", "last"])
def test_a_run_continues_as_if_it_had_never_stopped(config, whole, monkeypatch, step) -> None:
    """Bit for bit: the order of the demonstrations and random numbers all go on."""
    name = f"stopped-{step}"
    with interrupted(step, monkeypatch):
        train(config, name)
    assert_same_run(train(config, name, resume=True), whole)


@pytest.mark.slow
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


@pytest.mark.slow
def test_films_show_every_step(whole, tmp_path, capsys) -> None:
    level = LEVELS[1]
    model, _ = load_policies(whole.path)
    given = [str(whole.path), "--level", level, "--out", str(tmp_path / "film.gif")]
    assert FILM.main([*given, "--episode", "3", "--episode", "1", "--episode", "3"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["film-1.gif", "film-3.gif"]
    printed = capsys.readouterr().out.splitlines()
    for line, episode in zip(printed, (3, 1), strict=True):
        actions, success = play_episode(model, 1, level, episode, seed=SEED, choose="greedy")
        # Four frames a second, the last one for a second; one that repeats the one before only
        # makes that last longer.
        with Image.open(tmp_path / f"film-{episode}.gif") as film:
            duration = sum(frame.info["duration"] for frame in ImageSequence.Iterator(film))
        assert duration / 1000 == len(actions) / 4 + 1
        outcome = "success" if success else "no success"
        assert f"episode {episode}: {outcome} in {len(actions)} steps" in line


@pytest.mark.slow
def test_explore_shows_the_films_of_all_levels(whole, tmp_path) -> None:
    run = shutil.copytree(whole.path, tmp_path / "run")
    assert FILM.main([str(run)]) == EXPLORE.main([str(run)]) == 0
    page = (run / "plots" / "explore.html").read_text()
    (data,) = re.findall(r'id="data">(.*?)</script>', page)
    for level in json.loads(data)["runs"][0]["tasks"]:
        (film,) = level["films"]
        path = run / "plots" / "films" / f"{level['name']}.gif"
        assert base64.b64decode(film["gif"]) == path.read_bytes()
    assert "Success rates of levels" in page


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--out": "film.avi"}, "film.avi' must end in .gif or .mp4"),
        ({"--level": "GoToMars"}, "has no level 'GoToMars'"),
        ({"run": "nowhere"}, "nowhere"),
        ({"--episode": "0 1", "--level": " ".join(LEVELS)}, "--episode: give one number only,"),
    ],
)
def test_mistakes_of_films_are_told(whole, tmp_path, monkeypatch, capsys, change, message) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"run": str(whole.path), "--level": LEVELS[0], "--out": "film.gif", **change}
    given = [options.pop("run")]
    given += [part for name, each in options.items() for x in each.split() for part in (name, x)]
    with suppress(SystemExit):  # of argparse
        assert run_command(lambda: FILM.main(given)) == USER_MISTAKE
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
