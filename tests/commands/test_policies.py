"""Commands for policies, on a run with BabyAI's levels, one of gymnasium and a custom class."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from helpers.babyai import TINY
from helpers.command import read_csv
from mttl.io import yaml12

pytest.importorskip("minigrid", reason="needs the extra `babyai`")

from mttl.__main__ import main
from mttl.adaptation import search as search_module
from mttl.analysis.explore.run_facts import read_films
from mttl.babyai.build_policy import build_policies, load_policies
from mttl.babyai.evaluate import play_levels
from mttl.commands import ablate, adapt, babyai_film, compare, search, train
from mttl.config.babyai_schema import BabyAIConfig
from mttl.config.load import load_any_config
from mttl.io.errors import ConfigError, MttlError
from mttl.routing.task.fixed import GivenRows
from mttl.runtime.command import run_command

CUSTOM = """
from minigrid.envs.babyai.goto import GoToRedBallGrey
from minigrid.minigrid_env import MiniGridEnv

class Small(GoToRedBallGrey):
    def __init__(self):
        super().__init__(room_size=5, num_dists=1)

class Narrow(GoToRedBallGrey):
    def __init__(self):
        super().__init__(agent_view_size=5)
"""
MINIGRID = "MiniGrid-Empty-5x5-v0"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a configuration and a module of custom levels; train a run."""
    folder = tmp_path_factory.mktemp("policies")
    (folder / "own.py").write_text(CUSTOM)
    custom = f"{folder / 'own.py'}:Small"
    evaluation = {"n_episodes": 2, "max_steps": 5, "seed": 4}
    levels = ["BabyAI-GoToObjS4-v0", MINIGRID, custom]
    config: dict[str, Any] = {
        **TINY,
        "run": {"dir": str(folder / "runs"), "name": "run"},
        "rl": {**TINY["rl"], "levels": levels, "evaluation": evaluation},
        "adapt": {"levels": ["GoToObj"], "mode": "zero_shot"},
        "trainer": {**TINY["trainer"], "max_epochs": 1},
    }
    (folder / "tiny.yaml").write_text(yaml12.dump(config))
    assert train.main(["-c", str(folder / "tiny.yaml")]) == 0
    return folder


def test_levels_of_three_sources_are_trained_and_their_episodes_end(files, refused) -> None:
    """A policy that does nothing useful stops after `rl.evaluation.max_steps`."""
    run, custom = files / "runs" / "run", f"{files / 'own.py'}:Small"
    assert json.loads((run / "skills" / "tasks.json").read_text()) == [
        "GoToObjS4",
        MINIGRID,
        custom,
    ]
    rows = read_csv(run / "results.csv")
    steps = [float(row["score"]) for row in rows if row["metric"] == "steps"]
    assert max(steps) == 5.0
    out = files / "own.gif"
    given = [str(run), "--level", custom]
    assert babyai_film.main([*given, "--out", str(out)]) == 0
    assert "already exists; choose another" in refused(babyai_film.main, *given, "--out", str(out))
    assert babyai_film.main([*given, "--level", MINIGRID]) == 0
    assert [len(read_films(run, level)) for level in (custom, MINIGRID, "GoToObjS4")] == [1, 1, 0]


def test_ablation_plays_levels_with_a_hole_in_their_rows(files, tmp_path, refused) -> None:
    run = str(files / "runs" / "run")
    assert ablate.main([run, "--out", str(tmp_path), "--rows", "3"]) == 0
    file = np.load(tmp_path / "ablation.npz")
    for skill in (0, 2):
        model, levels = load_policies(run)
        rows = model.router.matrix().detach()
        rows[..., file["pairs"][0, skill]] = 0
        model.router = GivenRows(rows)
        played = play_levels(model, levels, n_episodes=3, max_steps=5, seed=4, choose="greedy")
        for name, values in (("scores", played.success), ("losses", played.steps)):
            after = file[f"{name}_before"] + file[name][0, :, skill]
            np.testing.assert_allclose(after, values.mean(1))
    assert "has policies; leave out --loss" in refused(ablate.main, run, "--loss")


def test_a_class_that_only_a_saved_file_names_is_not_imported(files: Path) -> None:
    given = json.loads(json.dumps(TINY))
    given["rl"]["levels"] = ["json.nothing:Level"]
    with pytest.raises(ValidationError, match=r"'json\.nothing:Level' is code named by a saved"):
        BabyAIConfig.model_validate(given, context=None)


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        (["MiniGrid-Emty-5x5-v0"], "unknown level .* did you mean 'MiniGrid-Empty-5x5-v0'"),
        (
            ["{}/own.py:Narrow"],
            r"has the shape \(5, 5, 3\); it must be \(7, 7, 3\), minigrid's enc",
        ),
        (["{}/own.py:Nothing"], "own.py' has no 'Nothing'"),
        (["MiniGrid-Dynamic-Obstacles-5x5-v0"], r"action space is Discrete\(3\); it must be Discr"),
    ],
)
def test_unsuitable_levels_are_explained(files: Path, levels: list[str], message: str) -> None:
    listed = json.dumps([level.format(files) for level in levels])
    with pytest.raises(ConfigError, match=message):
        train.main(["-c", str(files / "tiny.yaml"), "-k", f"rl.levels={listed}", "run.name=x"])


def test_a_dry_run_plans_what_a_run_does(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main(["-c", str(files / "tiny.yaml"), "-k", "run.name=dry", "--dry-run"]) == 0
    lines = (line.split("│")[1:3] for line in capsys.readouterr().out.splitlines() if "│" in line)
    found = {head.strip(): cell.strip() for head, cell in lines}
    config = BabyAIConfig.model_validate(TINY)
    model = build_policies(config, ["GoToObj", MINIGRID, "GoTo"])
    n = sum(value.numel() for value in model.parameters())
    assert found["parameters"] == f"{n:,} of {n:,} are trained"
    assert found["per level"] == "1 × 3 environments, 8 steps of each per rollout"
    assert found["steps"] == read_csv(files / "runs" / "run" / "metrics.csv")[-1]["step"]
    assert re.match(r"[\d.e-]+ s per step, about \d+ minutes", found["time"])
    assert re.match(r"\d\.\d\d GiB", found["memory"])
    assert not (files / "runs" / "dry").exists()


def test_success_rates_are_compared_like_test_scores(files: Path) -> None:
    """Of the training levels, and of a level adapted to."""
    run, out = files / "runs" / "run", files / "compared"
    assert adapt.main(["--from", str(run)]) == 0
    assert compare.main(["--runs", f"one={run}", f"two={run}", "--out", str(out)]) == 0
    scores = [row for row in read_csv(out / "scores.csv") if row["method"] == "one"]
    greedy = {
        row["task"]: 100 * float(row["score"])
        for row in read_csv(run / "results.csv")
        if (row["sample"], row["metric"]) == ("greedy", "success") and row["task"] != "mean"
    }
    result = json.loads((run / "adapt-zero_shot" / "results.jsonl").read_text())
    seen = {row["task"]: float(row["score"]) for row in scores if row["side"] == "seen"}
    unseen = {row["task"]: float(row["score"]) for row in scores if row["side"] == "unseen"}
    assert (seen, unseen) == (greedy, {"GoToObj": 100 * result["greedy"]})


def test_methods_for_policies_are_trained_adapted_and_compared(files, commands, refused) -> None:
    """A private policy learns a new level from scratch; a custom method uses its file there too."""
    out, own = files / "trained", files / "dense.yaml"
    own.write_text("skills: {kind: dense, n_skills: 2}\n")
    given = ["-c", f"{files / 'tiny.yaml'}", "--out", f"{out}", "--seeds", "3", "--steps", "1"]
    given += ["--adapt-steps", "1", "--workers", "1", "--method", f"own={own}"]
    given += ["--reference", "own", "-k", "rl.levels=[GoToObjS4]", "rl.n_slots=1"]
    given += ["rl.evaluation.n_episodes=1", "rl.ppo.n_minibatches=1"]
    for _ in range(2):  # finished runs are not repeated
        assert compare.main(["--methods", "private", "--modes", "zero_shot", *given]) == 0
        done = [words[2] for words in commands]
        assert done == ["train", "adapt", "train", "adapt", "adapt"]
    scores = {(x["method"], x["mode"], x["task"]) for x in read_csv(out / "scores.csv")}
    assert scores == {
        *((method, "", "GoToObjS4") for method in ("private", "own")),
        *((method, "all", "GoToObj") for method in ("private", "own")),
        ("own", "zero_shot", "GoToObj"),
    }
    # Three networks (one of them common) and two logits, and one network.
    trained = {x["method"]: int(x["trained"]) for x in read_csv(out / "table.csv")}
    assert trained["own"] == 3 * trained["private"] + 2
    kept = out / "private" / "seed3" / "adapt-all" / "config.yaml"
    assert yaml12.parse(kept.read_text())["adapt"]["mode"] == "from_scratch"
    assert yaml12.parse(kept.read_text())["adapt"]["n_updates"] == 1
    assert "1 rollouts of training, 1 of each adaptation" in (out / "table.md").read_text()
    for words, message in (
        (["--methods", "c_poly"], "--methods c_poly does not exist for"),
        (["--examples", "4"], "--examples is only for text-to-text tasks"),
        (["--tasks", "GoToObjS4"], "GoToObjS4 is trained on: name new levels by --tasks"),
        (["-k", "adapt.levels=[]"], "adapt.levels is empty"),
        (["-k", "trainer.max_epochs=2"], "set by the comparison (--steps); remove it"),
    ):
        assert message in refused(compare.main, *given, *words)


@pytest.mark.parametrize("setting", ["adapt.lr", "optim.lr"])
def test_trials_are_scored_on_other_episodes(
    files: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, run_command(lambda: main(command[3:])))

    monkeypatch.setattr(search_module.subprocess, "run", run)
    out = files / f"search-{setting}"
    given = ["-c", str(files / "tiny.yaml"), "--out", str(out), "-k", "rl.evaluation.n_episodes=30"]
    given += [f"search.points=[{{{setting}: 1e-3}}]", "rl.levels=[GoToObjS4]"]
    given += ["--from", str(files / "runs" / "run")] * (setting == "adapt.lr")
    assert search.main(given) == 0
    (trial,) = read_csv(out / "trials.csv")
    (level,) = [name for name in trial if name.startswith("dev/")]
    assert trial["score"] == trial[level]
    (config,) = out.glob("trials/*/config.yaml")
    assert yaml12.parse(config.read_text())["rl"]["evaluation"]["seed"] == 5
    assert load_any_config(f"{files / 'tiny.yaml'}+{out / 'best.yaml'}")


def test_policies_of_babyai_refuse_other_words(files: Path, tmp_path: Path) -> None:
    given = ["-c", str(files / "tiny.yaml"), "-k", f"run.dir={tmp_path}", "rl.levels=[GoToObjS4]"]
    assert train.main(given) == 0
    with pytest.raises(MttlError, match="trained with BabyAI's words only"):
        adapt.main(["--from", str(tmp_path / "run"), "--tasks", MINIGRID])
