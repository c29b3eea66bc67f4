"""Which demonstrations make up a pass, and where a stopped pass goes on."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("minigrid", reason="needs the extra `babyai`")

from mttl.babyai.demonstration_loader import DemonstrationDataModule, DemonstrationLoader
from mttl.babyai.level_demonstrations import LevelDemonstrations


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
    loaders = [
        DemonstrationLoader(LEVELS, 3, seed=1, rank=rank, n_ranks=n_ranks)
        for rank in range(n_ranks)
    ]
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


def test_the_data_module_takes_its_share_and_keeps_the_position() -> None:
    def make() -> DemonstrationDataModule:
        data = DemonstrationDataModule(LEVELS, 3, seed=1)
        data.trainer = SimpleNamespace(global_rank=1, world_size=2)  # type: ignore[assignment]
        data.setup("fit")
        return data

    data, again = make(), make()
    second, third = (DemonstrationLoader(LEVELS, 3, seed=1, rank=1, n_ranks=2) for _ in range(2))
    next(batches := iter(data.train_dataloader()))
    again.load_state_dict(data.state_dict())
    moved = again.transfer_batch_to_device(next(iter(second)), torch.device("meta"), 0)
    assert moved.mask.device.type == "meta"
    rest = episodes(again.train_dataloader())
    assert rest == [batch.actions[:, 0].tolist() for batch in batches] == episodes(third)[1:]
