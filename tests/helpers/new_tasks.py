"""A tiny trained run whose gym holds tasks that it has not seen, and tasks adapted from it."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch

import mttl
from helpers.command import train
from helpers.gyms import TASKS, write_config, write_gym
from mttl.adaptation.adapted_model import AdaptedModel
from mttl.inference.predictor import Predictor

STEPS = {"max_steps": 2, "eval_every": 2, "batch_size": 4}
PAIRS = [(word, "b") for word in ("ab", "cab", "b", "ca", "bb", "ac", "cc", "abc")]
NEW = {"twice": ("EM", lambda word: word + word), "first": ("EM", lambda word: word[0])}


def write_source(folder: Path, side: str = "test") -> Path:
    """Write a configuration of the usual tasks in a gym that holds two more, with two samples.

    ``gym/`` and ``tiny.yaml`` are written into the folder; the new tasks stand on the given side of
    the partition.
    """
    write_gym(folder / "gym", NEW, samples=(13, 100))
    gym = write_gym(folder / "gym")
    (gym / "partition.json").write_text(json.dumps({"train": list(TASKS), side: list(NEW)}))
    with (gym / "TASKS.csv").open("a") as table:
        table.writelines(f"{task},EM\n" for task in NEW)
    return write_config(folder / "tiny.yaml", gym)


def train_source(folder: Path, side: str = "test", settings: Sequence[str] = ()) -> Path:
    """Train on these tasks, with settings that change the configuration; return the run."""
    config = write_source(folder, side)
    short = ("trainer.max_steps=2", "trainer.val_check_interval=2")
    return train(config, "source", *short, *settings).path


def adapted(run: Path, mode: str, task: str = "new", **settings: object) -> AdaptedModel:
    """Adapt, and move what was trained, since no step scores better than the first."""
    found = mttl.adapt_to(run, PAIRS, task=task, mode=mode, **{**STEPS, **settings})
    generator = torch.Generator().manual_seed(len(task))
    with torch.no_grad():
        for value in found.model.parameters():
            if value.requires_grad:
                value.add_(0.1 * torch.randn(value.shape, generator=generator))
    return found


def logits(model: Predictor, *tasks: str) -> torch.Tensor:
    """Return the logits of the same texts for each task, all in one batch."""
    ids = model.task_ids([task for task in tasks for _ in range(2)])
    texts = {"input_ids": torch.arange(3, 15).view(2, 6), "labels": torch.arange(5, 11).view(2, 3)}
    batch = {name: value.repeat(len(tasks), 1) for name, value in texts.items()}
    with torch.no_grad():
        return model.model.eval()(ids, **batch).logits.unflatten(0, (len(tasks), 2))
