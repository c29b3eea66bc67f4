"""Demonstrations in memory, batches beside plain loops, and where a stopped pass goes on."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("minigrid", reason="needs the extra `babyai`")

from envs.demonstrations import Demonstration, record_demonstrations, save_demonstrations
from envs.vocabulary import encode
from mttl.babyai.demonstration_loader import (
    DemonstrationLoader,
    LevelDemonstrations,
    pad_episodes,
    read_demonstrations,
)
from mttl.io.errors import CheckpointError, ConfigError


def make_level(n_episodes: int, longest: int = 9) -> LevelDemonstrations:
    """Return demonstrations whose actions count them."""
    lengths = np.random.default_rng(n_episodes).integers(1, longest + 1, n_episodes)
    n_frames = int(lengths.sum())
    return LevelDemonstrations(
        images=np.zeros((n_frames, 7, 7, 3), np.uint8),
        actions=np.repeat(np.arange(n_episodes, dtype=np.uint8), lengths),
        lengths=lengths,
        missions=np.ones((n_episodes, 2), np.uint8),
    )


LEVELS = [make_level(20), make_level(6), make_level(13)]


def episodes(loader: DemonstrationLoader) -> list[list[list[int]]]:
    """Return the numbers of the demonstrations of what is left of the pass."""
    return [batch.actions[:, 0].tolist() for batch in loader]


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_a_pass_takes_every_demonstration_and_as_many_of_each_level(n_ranks: int) -> None:
    ranks = [{"rank": rank, "n_ranks": n_ranks} for rank in range(n_ranks)]
    loaders = [DemonstrationLoader(LEVELS, 3, seed=1, **rank) for rank in ranks]
    plans = [loader.plan(0) for loader in loaders]
    n_batches = {1: 7, 2: 4}[n_ranks]  # ⌈20 / 3⌉, ⌈20 / 6⌉
    assert [len(loader) for loader in loaders] == [n_batches] * n_ranks
    assert {plan.shape for plan in plans} == {(n_batches, 3, 3)}
    for task, level in enumerate(LEVELS):
        taken = np.concatenate([plan[:, task].ravel() for plan in plans])
        counts = np.bincount(taken, minlength=len(level.lengths))
        # None comes again before all others have.
        assert counts.max() - counts.min() <= 1
    assert (np.bincount(np.concatenate([plan[:, 0].ravel() for plan in plans])) >= 1).all()


def test_short_demonstrations_of_all_levels_meet() -> None:
    """Else nearly every batch would be as long as the longest of all."""
    levels = [make_level(640, longest=50), make_level(640, longest=100)]
    plan = DemonstrationLoader(levels, 4, seed=0).plan(0)
    lengths = np.stack([level.lengths[plan[:, task]] for task, level in enumerate(levels)], 1)
    padded = lengths.max((1, 2)).sum() * 8
    in_any_order = np.random.default_rng(0).permuted(lengths, axis=0).max((1, 2)).sum() * 8
    # One level's episodes are twice as long: padding all to one length costs a third.
    assert padded < 1.5 * lengths.sum() < in_any_order


def test_a_pass_goes_on_from_any_batch_and_then_the_next_one_begins() -> None:
    whole = DemonstrationLoader(LEVELS, 3, seed=1)
    expected = [episodes(whole), episodes(whole)]
    for n_taken in range(8):
        first, second = (DemonstrationLoader(LEVELS, 3, seed=1) for _ in range(2))
        batches = iter(first)
        taken = [next(batches).actions[:, 0].tolist() for _ in range(n_taken)]
        second.load_state(first.state())
        if n_taken < len(whole):
            assert taken + episodes(second) == expected[0]
        assert episodes(second) == expected[1]
    others = DemonstrationLoader([make_level(8), *LEVELS[1:]], 3, seed=1)
    with pytest.raises(CheckpointError, match=r"have \[8, 6, 13\] dem.*, but had \[20, 6, 13\]"):
        others.load_state(whole.state())


NAMES = ["PickupLoc", "GoToObjS4"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Demonstration], Path]:
    record = record_demonstrations(["GoToObjS4", "GoToObj", "PickupLoc"], 5)
    path = tmp_path_factory.mktemp("record") / "record.npz"
    save_demonstrations(record, path)
    return record, path


def test_a_batch_holds_whole_episodes(recorded: tuple[list[Demonstration], Path]) -> None:
    record, path = recorded
    chosen = np.array([[4, 0, 0, 3], [2, 1, 3, 4]])
    batch = pad_episodes(read_demonstrations(path, NAMES), chosen)
    n_steps = 0
    for task, level in enumerate(NAMES):
        for place, number in enumerate(chosen[task]):
            one = [one for one in record if one.level == level][number]
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


def test_a_file_that_cannot_be_used_is_explained(recorded, tmp_path) -> None:
    record, path = recorded
    foreign, damaged = tmp_path / "foreign.npz", tmp_path / "damaged.npz"
    save_demonstrations([replace(record[0], mission="go to the moon")], foreign)
    damaged.write_bytes(path.read_bytes()[:999])
    others = r"record.npz' has no dem.* of GoTo; it has those of GoToObjS4 \(5\), .*i record"
    for file, levels, message in (
        (path, ["GoToObj", "GoTo"], others),
        (path.with_name("recrd.npz"), NAMES, r"recrd.npz' does not exist. Did you mean 'record"),
        (damaged, NAMES, r"rl.demonstrations: .*damaged.npz' is not a file of demonstrations"),
        (foreign, ["GoToObjS4"], r"the word 'moon' .* is not in BabyAI's vocabulary"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_demonstrations(file, levels)
