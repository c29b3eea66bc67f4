"""The training command as a whole, on a gym of three tiny tasks: its files and its output."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from helpers.command import ROOT, column, load_recipe, read_csv, start, train
from helpers.fact_templates import SHARED
from helpers.gyms import TASKS, TINY_LLAMA, write_config, write_gym
from helpers.tiny_run import answers, check_answers, losses
from mttl.checkpoints.run_folder import RunFolder
from mttl.config.load import dump_config, load_config
from mttl.io import yaml12
from mttl.tasks.partition import Partition

TAB = "\t"
RESULT_COLUMNS = ["task", "split", "sample", "seed", "metric", "score", "n"]


# The run folder: what other programs read.


def test_leaves_every_file_of_the_contract_and_nothing_else(whole: RunFolder) -> None:
    found = {str(path.relative_to(whole.path)) for path in whole.path.rglob("*") if path.is_file()}
    assert found == {
        *("config.yaml", "metrics.csv", "results.csv", "baselines.csv"),
        *("checkpoints/last.ckpt", "checkpoints/best.ckpt"),
        *(f"predictions/{task}_{split}.jsonl" for task in TASKS for split in ("dev", "test")),
        *("skills/skills.safetensors", "skills/router.safetensors", "skills/tasks.json"),
        *("skills/meta.json", "skills/backbone.safetensors"),
        *("plots/routing.npz", "plots/routing_history.npz", ".lock"),
    }


def test_results_have_a_row_per_task_and_split_and_their_mean(whole: RunFolder) -> None:
    rows = read_csv(whole.results)
    assert list(rows[0]) == RESULT_COLUMNS
    assert [(row["task"], row["split"]) for row in rows] == [
        (task, split) for split in ("dev", "test") for task in (*TASKS, "mean")
    ]
    for split, size in (("dev", 5), ("test", 3)):
        *tasks, mean = [row for row in rows if row["split"] == split]
        assert [row["metric"] for row in tasks] == [metric for metric, _ in TASKS.values()]
        assert {row["sample"] for row in tasks} == {"100"}
        assert {row["n"] for row in tasks} == {str(size)}
        scores = [float(row["score"]) for row in tasks]
        # An undefined correlation is written as such, and counts as 0 in the mean.
        expected = sum(0.0 if math.isnan(score) else score for score in scores) / 3
        assert float(mean["score"]) == pytest.approx(expected, abs=1e-6)
        assert mean["n"] == str(3 * size)
    assert {row["seed"] for row in rows} == {"13"}


def test_baselines_stand_beside_the_results(whole: RunFolder) -> None:
    rows = read_csv(whole.baselines)
    assert list(rows[0]) == ["baseline", *RESULT_COLUMNS]
    copied = {
        row["task"]: float(row["score"])
        for row in rows
        if (row["baseline"], row["split"]) == ("copy", "test")
    }
    assert copied["copy"] == 1.0


def test_predictions_are_in_the_order_of_the_files(whole: RunFolder, gym: Path) -> None:
    for task in TASKS:
        for split in ("dev", "test"):
            lines = (gym / task / f"{task}_16_100_{split}.tsv").read_text().splitlines()
            rows = answers(whole, task, split)
            assert [(row["input"], row["references"]) for row in rows] == [
                (f"[{task}] {line.split(TAB)[0]}", line.split(TAB)[1:]) for line in lines
            ]
            assert {row["sample"] for row in rows} == {100}


def test_metrics_hold_losses_scores_and_routing(whole: RunFolder) -> None:
    assert list(column(whole.metrics, "train/loss")) == list(range(12))
    for name in ("val/score", "val/loss", "val/copy/score", "val/number/loss"):
        assert list(column(whole.metrics, name)) == [3, 7, 11], name
    for name in ("routing/discreteness", "routing/encoder/active_cells", "routing/decoder/usage"):
        assert list(column(whole.metrics, name)) == [0, 4, 8, 12], name


def test_skills_folder_describes_itself(whole: RunFolder) -> None:
    assert json.loads((whole.skills / "tasks.json").read_text()) == list(TASKS)
    meta = json.loads((whole.skills / "meta.json").read_text())
    assert meta["format_version"] == 1
    assert meta["backbone"]["name"] == "random t5"
    assert meta["backbone"]["trained"]
    assert set(meta["libraries"]) == {"mttl", "torch", "transformers", "pytorch-lightning"}


def test_routing_arrays_fit_the_saved_router(whole: RunFolder) -> None:
    arrays = np.load(whole.plots / "routing.npz")
    assert set(arrays) == {"weights", "probabilities", "tasks", "groups"}
    assert arrays["tasks"].tolist() == list(TASKS)
    groups = arrays["groups"].tolist()
    assert arrays["weights"].shape == (len(groups), 3, 3)
    np.testing.assert_allclose(arrays["weights"].sum(-1), 1, rtol=1e-6)
    logits = load_file(whole.skills / "router.safetensors")["logits"][:, :, 0]
    expected = logits.sigmoid() / logits.sigmoid().sum(-1, keepdim=True)
    np.testing.assert_allclose(arrays["weights"], expected, rtol=1e-5)
    np.testing.assert_allclose(arrays["probabilities"], logits.sigmoid(), rtol=1e-5)
    history = np.load(whole.plots / "routing_history.npz")
    assert history["steps"].tolist() == [0, 4, 8, 12]
    assert history["weights"].shape == (4, len(groups), 3, 3)
    assert history["groups"].tolist() == groups


def test_resolved_configuration_repeats_the_run(whole: RunFolder, folder: Path) -> None:
    saved = yaml12.parse(whole.config.read_text())
    run = {"name": "whole", "dir": str(folder / "runs"), "seed": 13}
    run |= {"start": None, "start_router": False, "freeze_skills": False}
    assert saved["run"] == run
    assert saved["optim"]["betas"] == [0.9, 0.999]
    assert dump_config(load_config([str(whole.config)])) == whole.config.read_text()


def test_prints_every_task_beside_the_baselines(config, monkeypatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    run = train(config, "printed", "trainer.max_steps=1", "trainer.val_check_interval=1")
    printed = capsys.readouterr().out
    header = next(line for line in printed.splitlines() if "major" in line)
    assert header.replace("┃", " ").split() == (
        ["task", "metric", *("dev", "copy", "major"), *("test", "copy", "major")]
    )
    rows = read_csv(run.results)
    for task in (*TASKS, "mean"):
        scores = [float(row["score"]) for row in rows if row["task"] == task]
        cells = next(
            line.replace("│", " ").split()
            for line in printed.splitlines()
            if line.startswith(f"│ {task} ")
        )
        numbers = cells[1:] if task == "mean" else cells[2:]
        assert [numbers[0], numbers[3]] == [f"{100 * score:.1f}" for score in scores]
    assert f"The run is in {run.path}" in printed.replace("\n", "")
    assert "SelfAttention.q" in printed


def test_a_loaded_run_gives_the_same_answers(config: Path, whole: RunFolder) -> None:
    check_answers(whole)
    frozen = ("backbone.train=false", "backbone.config.initializer_factor=3.0")
    frozen += ("trainer.max_steps=2", "trainer.val_check_interval=2")
    run = train(
        config, "frozen", *frozen, "generation.num_beams=3", "generation.length_penalty=0.5"
    )
    for path in (run.last, run.best):
        names = torch.load(path, weights_only=False)["state_dict"]
        assert all(".inventory." in name or "router" in name for name in names)
    check_answers(run, num_beams=3, length_penalty=0.5)


def test_a_decoder_only_model_trains_and_loads(folder: Path, gym: Path) -> None:
    config = write_config(folder / "llama.yaml", gym, backbone={**TINY_LLAMA, "tokenizer": "byte"})
    run = train(config, "llama")
    curve = losses(run)
    assert curve[-1] < curve[0]
    check_answers(run, left=True)


# What a user sees.


@pytest.mark.slow
def test_prints_nothing_that_a_user_can_do_nothing_about(config: Path, gym: Path) -> None:
    process = start(config, "clean", "data.cache_dir=" + str(config.parent / "fresh"))
    _, errors = process.communicate(timeout=250)
    assert process.returncode == 0, errors
    lines = [line.strip() for line in errors.splitlines()]
    assert lines == [
        *("tokenising 48 rows of 3 files", "tokenising 15 rows of 3 files"),
        *(line for line in lines if line.startswith("step ")),
        "tokenising 9 rows of 3 files",
    ]
    assert [line.split(":")[0] for line in lines if "mean score" in line] == [
        *("step 4", "step 8", "step 12")
    ]


# Learning.


@pytest.mark.slow
def test_learns_two_groups_of_tasks_jointly(folder: Path) -> None:
    """Two tasks double a letter, two shift all: copying and guessing score next to nothing."""
    letters = "abcdef"
    shift = str.maketrans(letters, "bcdefa")
    tasks: dict[str, tuple[str, Callable[[str], str]]] = {
        "double_1": ("EM", lambda word: word[0] * 2 + word[-1]),
        "double_2": ("EM", lambda word: word[0] * 2 + word[-1]),
        "shift_1": ("ACC", lambda word: word.translate(shift)),
        "shift_2": ("ACC", lambda word: word.translate(shift)),
    }
    learner = {
        **{"vocab_size": 384, "d_model": 48, "d_kv": 12, "num_heads": 4, "d_ff": 96},
        **{"num_layers": 1, "num_decoder_layers": 1, "dropout_rate": 0.0},
        "feed_forward_proj": "gated-gelu",
    }
    config = write_config(
        folder / "groups.yaml",
        write_gym(folder / "groups", tasks, sizes=(256, 32, 32), letters=letters, lengths=(2, 3)),
        data={"batch_size": 32, "eval_batch_size": 128},
        backbone={"config": learner},
        skills={"n_skills": 2, "rank": 4, "targets": ["attention", "mlp"]},
        optim={"lr": 4e-3, "router_lr": 4e-2, "betas": [0.9, 0.98]},
        trainer={"max_steps": 300, "val_check_interval": 300, "log_every_n_steps": 25},
    )
    run = train(config, "groups")
    (score,) = column(run.metrics, "val/score").values()
    floor = max(
        float(row["score"])
        for row in read_csv(run.baselines)
        if (row["task"], row["split"]) == ("mean", "dev")
    )
    assert floor < 0.2
    assert score > 0.4


# The real tasks.


@pytest.mark.slow
def test_trains_on_the_real_crossfit_tasks(tmp_path: Path) -> None:
    if not (SHARED / "crossfit").is_dir():
        pytest.skip(f"no CrossFit tasks at '{SHARED / 'crossfit'}'; set MTTL_SHARED to the folder")
    config = "crossfit.yaml+backbone/tiny_t5.yaml+data/crossfit_tasks.yaml"
    given = ("run.name=real", f"run.dir={tmp_path}", f"data.dir={SHARED / 'crossfit'}")
    given += ("data.max_rows=8", "data.max_input_length=96", "data.max_output_length=8")
    given += ("backbone.config.d_model=32", "trainer.max_steps=6", "trainer.val_check_interval=6")
    assert load_recipe().main(["-c", config, "-k", *given]) == 0
    run = RunFolder(tmp_path / "real")
    tasks = json.loads((run.skills / "tasks.json").read_text())
    assert len(tasks) == 83
    assert set(tasks) <= {*Partition.read(ROOT / "configs" / "partitions" / "random.json").train}
    rows = read_csv(run.results)
    for split in ("dev", "test"):
        assert {row["task"] for row in rows if row["split"] == split} == {*tasks, "mean"}
