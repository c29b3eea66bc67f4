"""Demonstrations in memory, and batches of them, beside plain loops over the episodes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("minigrid", reason="needs the extra `babyai`")

from envs.bot import Demonstration
from envs.demonstration_file import save_demonstrations
from envs.demonstrations import record_demonstrations
from envs.vocabulary import encode
from mttl.babyai.level_demonstrations import pad_episodes, read_demonstrations
from mttl.io.errors import ConfigError

LEVELS = ["PickupLoc", "GoToObjS4"]


@pytest.fixture(scope="module")
def record() -> list[Demonstration]:
    return record_demonstrations(["GoToObjS4", "GoToObj", "PickupLoc"], 5)


@pytest.fixture(scope="module")
def path(record: list[Demonstration], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("record") / "record.npz"
    save_demonstrations(record, path)
    return path


def of_level(record: Sequence[Demonstration], level: str) -> list[Demonstration]:
    return [one for one in record if one.level == level]


def test_a_batch_holds_whole_episodes(path: Path, record: list[Demonstration]) -> None:
    chosen = np.array([[4, 0, 0, 3], [2, 1, 3, 4]])
    batch = pad_episodes(read_demonstrations(path, LEVELS), chosen)
    n_steps = 0
    for task, level in enumerate(LEVELS):
        for place, number in enumerate(chosen[task]):
            one = of_level(record, level)[number]
            length = len(one.actions)
            n_steps = max(n_steps, length)
            assert batch.mask[task, :, place].tolist() == [
                step < length for step in range(batch.mask.shape[1])
            ]
            np.testing.assert_array_equal(batch.images[task, :length, place], one.images)
            np.testing.assert_array_equal(batch.actions[task, :length, place], one.actions)
            # What pads can be read like all else.
            assert (batch.actions[task, length:, place] == one.actions[-1]).all()
            tokens, n_kept = encode(one.mission).tolist(), batch.missions.shape[-1]
            assert batch.missions[task, place].tolist() == tokens[:n_kept]
            assert not any(tokens[n_kept:])
    assert batch.images.shape == (2, n_steps, 4, 7, 7, 3)
    assert batch.missions.any((0, 1)).all()  # no column only pads
    assert (batch.images.dtype, batch.actions.dtype) == (torch.uint8, torch.int64)


def test_levels_that_are_missing_are_told_with_those_that_are_there(path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_demonstrations(path, ["GoToObj", "GoTo", "Pickup"])
    assert "record.npz' has none of GoTo, Pickup, only of GoToObjS4 (5), GoToObj (5), " in str(
        caught.value
    )
    assert "mttl babyai record" in str(caught.value)


def test_a_missing_file_is_told_with_what_is_there_instead(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"recrd.npz' does not exist. Did you mean 'record.npz'"):
        read_demonstrations(path.with_name("recrd.npz"), LEVELS)


def test_a_file_that_cannot_be_used_is_explained(path, record, tmp_path) -> None:
    damaged = tmp_path / "damaged.npz"
    content = path.read_bytes()
    damaged.write_bytes(content[: len(content) // 2])
    with pytest.raises(ConfigError, match=r"rl.demonstrations: .*damaged.npz' is not a file of de"):
        read_demonstrations(damaged, LEVELS)
    foreign = tmp_path / "foreign.npz"
    save_demonstrations([replace(record[0], mission="go to the moon")], foreign)
    with pytest.raises(ConfigError, match=r"the word 'moon' .* is not of BabyAI's grammar"):
        read_demonstrations(foreign, ["GoToObjS4"])
