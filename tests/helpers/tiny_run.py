"""Fixtures: a run of the training command on a gym of three tiny tasks; and what it wrote."""

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.command import column, train
from helpers.gyms import TASKS, write_config, write_gym
from mttl.assembly.model import load_run
from mttl.checkpoints.run_folder import RunFolder


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("train")


@pytest.fixture(scope="session")
def gym(folder: Path) -> Path:
    return write_gym(folder / "gym")


@pytest.fixture(scope="session")
def config(folder: Path, gym: Path) -> Path:
    return write_config(folder / "tiny.yaml", gym)


@pytest.fixture(scope="session")
def whole(config: Path) -> RunFolder:
    """An uninterrupted run: relaxed sampling, dropout, two epochs, three validations."""
    return train(config, "whole")


def losses(run: RunFolder) -> list[float]:
    return list(column(run.metrics, "train/loss").values())


def answers(run: RunFolder, task: str, split: str) -> list[dict[str, Any]]:
    text = (run.predictions / f"{task}_{split}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def check_answers(run: RunFolder, left: bool = False, **generation: Any) -> None:
    """Generate once more with the loaded inventory, with no help of the data room."""
    built = load_run(run.path)
    model, tokenizer = built.model, built.tokenizer
    tokenizer.padding_side = "left" if left else "right"
    found, expected = [], []
    for task in TASKS:
        rows = [row for split in ("dev", "test") for row in answers(run, task, split)]
        texts = [row["input"] + ("\n" if left else "") for row in rows]
        inputs = tokenizer(texts, padding=True, add_special_tokens=not left, return_tensors="pt")
        ids = model.generate(
            built.task_ids([task] * len(rows)),
            input_ids=inputs.input_ids,
            attention_mask=inputs.attention_mask,
            max_new_tokens=6,
            **generation,
        )
        ids = ids[:, inputs.input_ids.shape[1] :] if left else ids
        found += [text.strip() for text in tokenizer.batch_decode(ids, skip_special_tokens=True)]
        expected += [row["prediction"] for row in rows]
    assert found == expected
    assert len(set(expected)) > 1  # otherwise any broken model would do


def check_best_is_known(state: dict[str, Any], run: RunFolder) -> None:
    """The state to resume from knows the best score so far, or a worse one could replace it."""
    (best,) = (value for key, value in state["callbacks"].items() if "SaveBest" in key)
    scores = column(run.metrics, "val/score")
    assert float(best["best_model_score"]) == pytest.approx(max(scores.values()))
