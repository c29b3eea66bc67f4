import warnings
from itertools import pairwise

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, ModelCheckpoint

from helpers.trainer import quiet_trainer
from mttl.config.data_schema import Data
from mttl.data.data_module import TextToTextDataModule
from mttl.io.errors import CheckpointError

N_ROWS = 2 * (7 + 5)  # two samples of two tasks


@pytest.fixture
def gym(make_gym):
    return make_gym({"a": 7, "b": 5})


def data_of(**settings):
    return Data.model_validate({"dir": "gym", "partition": "", **settings})


@pytest.fixture
def make_module(gym, byte_tokenizer):
    def make(decoder_only=False, **settings):
        sampler = {"kind": settings.pop("sampler", "proportional")}
        data = data_of(**{"samples": [100, 13], "batch_size": 5, **settings}, sampler=sampler)
        return TextToTextDataModule(
            gym, ["a", "b"], byte_tokenizer, data, decoder_only=decoder_only, seed=1
        )

    return make


class Recorder(pl.LightningModule):
    """Trains one number, and writes down which rows it sees."""

    def __init__(self, asks_for_n_steps):
        super().__init__()
        self.asks_for_n_steps = asks_for_n_steps
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen = []

    def training_step(self, batch, batch_idx):
        self.seen.append([ids.tolist() for ids in batch["input_ids"]])
        return self.weight.square().sum() + batch["task_ids"].sum()

    def validation_step(self, batch, batch_idx):
        pass

    def configure_optimizers(self):
        # Schedules need it; it makes Lightning build the loader before it restores its own state.
        self.n_steps = self.trainer.estimated_stepping_batches if self.asks_for_n_steps else None
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(data, *, ckpt_path=None, callbacks=(), asks_for_n_steps=True, **settings):
    """Train and return the recorder and the trainer; any warning about resuming is an error."""
    recorder = Recorder(asks_for_n_steps)
    trainer = quiet_trainer(
        enable_checkpointing=any(isinstance(c, ModelCheckpoint) for c in callbacks),
        use_distributed_sampler=False,
        callbacks=list(callbacks),
        **{"num_sanity_val_steps": 0, **settings},
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*not resumable.*")
        trainer.fit(recorder, datamodule=data, ckpt_path=ckpt_path, weights_only=False)
    return recorder, trainer


class StopAt(Callback):
    """Stops as a limit of time does, between two steps."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_end(self, trainer, *_):
        trainer.should_stop |= trainer.global_step == self.step


def test_evaluation_batches(make_module):
    data = make_module(eval_batch_size=6)
    dev = list(data.evaluation_dataloader("dev"))
    assert sorted(row for batch in dev for row in batch["rows"]) == list(range(2 * 2 * 4))
    assert {sample for batch in dev for sample in batch["samples"]} == {100, 13}
    # Test files are equal across samples: the first sample's only.
    test = list(data.evaluation_dataloader("test"))
    assert [sample for batch in test for sample in batch["samples"]] == [100] * (2 * 3)
    assert test[0]["references"][0][0].startswith("answer")


@pytest.mark.parametrize("n_workers", [0, 1])
def test_evaluation_draws_nothing_of_the_noise_of_training(make_module, n_workers):
    """Workers are kept: they would draw in the first validation of a process, and then never."""
    loader = make_module(n_workers=n_workers).val_dataloader()
    before = torch.get_rng_state()
    for _ in range(2):
        list(loader)
    assert torch.equal(torch.get_rng_state(), before)


def test_prepare_data_fills_the_cache_of_what_is_trained_and_validated(make_module, tmp_path):
    data = make_module(cache_dir=str(tmp_path / "cache"))
    data.prepare_data()
    kept = sorted(path.name.split("-")[0] for path in (tmp_path / "cache").iterdir())
    assert kept == ["dev", "train"]
    make_module().prepare_data()  # without a cache there is nothing to do


FORM = {"max_input_length": 24, "max_output_length": 8, "batch_size": 9}
EPOCHS = {"max_epochs": 3, "max_steps": -1}
ACCUMULATED = {"max_steps": 7, "accumulate_grad_batches": 2}
PACKED = {"packed_length": 32, "decoder_only": True}


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("settings", "limits", "stop", "in_time"),
    [  # in the first epoch, at its end, in the second epoch
        ({}, {"max_steps": 13}, 2, False),
        ({}, {"max_steps": 13}, 5, True),
        ({"sampler": "uniform"}, {"max_steps": 13}, 5, False),
        ({"sampler": "homogeneous"}, {"max_steps": 13}, 8, True),
        ({"n_workers": 2}, ACCUMULATED, 2, False),
        ({**FORM, "token_budget": 64}, {"max_steps": 14}, 8, False),
        ({**FORM, "token_budget": 64, "length_window": 2}, {"max_steps": 14}, 8, True),
        ({**FORM, "token_budget": 64, **PACKED}, {"max_steps": 14}, 8, True),
        ({**FORM, **PACKED, "packed_length": 40}, {"max_steps": 5}, 4, True),
    ],
)
def test_a_stopped_run_resumes_exactly(make_module, tmp_path, settings, limits, stop, in_time):
    """By the number of steps, or between two of them as by a limit of time."""
    whole, _ = fit(make_module(**settings), **limits)
    stopped = {"callbacks": [StopAt(stop)]} if in_time else {"max_steps": stop}
    before, trainer = fit(make_module(**settings), **limits | stopped)
    trainer.save_checkpoint(tmp_path / "stopped.ckpt")
    after, _ = fit(make_module(**settings), **limits, ckpt_path=tmp_path / "stopped.ckpt")
    assert len(before.seen) == stop * limits.get("accumulate_grad_batches", 1)
    assert before.seen + after.seen == whole.seen


VALIDATED = {"max_steps": 12, "val_check_interval": 4, "check_val_every_n_epoch": None}


@pytest.mark.parametrize(
    ("keep", "limits", "every", "asks"),
    [
        ({"every_n_train_steps": 3}, EPOCHS, 3, True),
        ({"every_n_train_steps": 7}, {"max_steps": 15}, 7, False),
        ({}, EPOCHS, 5, True),  # at the end of an epoch
        ({"save_on_train_epoch_end": False}, VALIDATED, 8, True),  # at a validation
    ],
)
def test_a_checkpoint_from_within_a_run_resumes_exactly(
    make_module, tmp_path, keep, limits, every, asks
):
    saving = ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, **keep)
    whole, _ = fit(make_module(), callbacks=[saving], **limits)
    path = tmp_path / f"step={every}.ckpt"
    after, _ = fit(make_module(), ckpt_path=path, asks_for_n_steps=asks, **limits)
    assert len(after.seen) == len(whole.seen) - every
    assert after.seen == whole.seen[every:]


def test_resuming_within_an_epoch_over_other_data_is_refused(make_module, tmp_path):
    _, trainer = fit(make_module(), max_steps=2)
    trainer.save_checkpoint(tmp_path / "stopped.ckpt")
    with pytest.raises(CheckpointError, match=r"batch 2 of epoch 0.*global_batch_size 5 there"):
        fit(make_module(batch_size=4), max_steps=9, ckpt_path=tmp_path / "stopped.ckpt")


def test_a_state_moves_a_loader_that_there_is_already(make_module):
    data = make_module()
    iterator = iter(data.train_dataloader())
    next(iterator)
    state = data.state_dict()
    expected = [batch["input_ids"].tolist() for batch in iterator]
    data.load_state_dict(state)
    assert [batch["input_ids"].tolist() for batch in data.train_dataloader()] == expected


def test_fewer_examples_are_among_more_and_the_test_rows_stay(gym, byte_tokenizer):
    def rows(n_examples, split, seed=1):
        given = gym, ["a", "b"], byte_tokenizer, data_of(samples=[100, 13])
        few = {"decoder_only": False, "seed": seed, "n_examples": n_examples}
        module = TextToTextDataModule(*given, **few)
        return module.train_rows["row"][:] if split == "train" else module.prepared(split)["row"][:]

    every = list(range(N_ROWS))
    assert rows(None, "train") == rows(N_ROWS, "train") == every
    kept = [set(rows(n, "train")) for n in (1, 2, 4, 8)]
    assert [len(found) for found in kept] == [1, 2, 4, 8]
    assert all(few < more for few, more in pairwise(kept))
    assert rows(8, "train", seed=2) != rows(8, "train")
    assert rows(2, "test") == rows(None, "test")
    assert len(rows(2, "dev")) == 2


def test_training_and_development_rows_are_drawn_apart(make_gym, byte_tokenizer):
    """Files sorted by label would else give both splits the same labels."""
    given = make_gym({"a": 4}), ["a"], byte_tokenizer, data_of(samples=[100])  # four rows of dev
    equal = []
    for seed in range(20):
        few = {"decoder_only": False, "seed": seed, "n_examples": 2}
        module = TextToTextDataModule(*given, **few)
        equal.append(module.train_rows["row"][:] == module.prepared("dev")["row"][:])
    assert 0 < sum(equal) < len(equal)  # one of six by chance


def test_rows_from_disk_are_those_of_memory(make_module, tmp_path):
    """The same draws and the same batches, bit for bit, of all rows and of some."""
    for n_examples in (None, 5):
        form = {"sampler": "temperature", "length_window": 2}
        disk, memory = make_module(**form, cache_dir=str(tmp_path)), make_module(**form)
        disk.n_examples = memory.n_examples = n_examples
        apart = disk.train_rows.data.__class__ is not memory.train_rows.data.__class__
        assert apart == (n_examples is None)
        for kept, held in zip(disk.train_dataloader(), memory.train_dataloader(), strict=True):
            for name, value in held.items():
                assert torch.equal(kept[name], value)
