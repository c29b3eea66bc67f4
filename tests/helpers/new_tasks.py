"""A tiny trained run whose gym holds tasks that it has not seen."""

import json
from collections.abc import Sequence
from pathlib import Path

from helpers.command import train
from helpers.gyms import TASKS, write_config, write_gym

NEW = {"twice": ("EM", lambda word: word + word), "first": ("EM", lambda word: word[0])}


def train_source(folder: Path, side: str = "test", settings: Sequence[str] = ()) -> Path:
    """Train on the usual tasks of a gym that holds two more, each with two samples.

    Writes ``gym/``, ``tiny.yaml`` and ``runs/source/`` into the folder; the new tasks stand on the
    given side of the partition; settings change the configuration. Returns the run's folder.
    """
    write_gym(folder / "gym", NEW, samples=(13, 100))
    gym = write_gym(folder / "gym")
    (gym / "partition.json").write_text(json.dumps({"train": list(TASKS), side: list(NEW)}))
    with (gym / "TASKS.csv").open("a") as table:
        table.writelines(f"{task},EM\n" for task in NEW)
    config = write_config(folder / "tiny.yaml", gym)
    short = ("trainer.max_steps=2", "trainer.val_check_interval=2")
    return train(config, "source", *short, *settings).path
