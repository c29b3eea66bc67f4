"""The Lightning data module: a gym's tasks as batches for training, validation and scoring."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase

from mttl.data.collate import EvalCollator, TrainCollator, pad_id_of
from mttl.data.evaluation import evaluation_batches
from mttl.data.loader import ResumableLoader
from mttl.data.prepare import prepare
from mttl.data.samplers import build_sampler
from mttl.gym.folder import Gym


class TextToTextDataModule(pl.LightningDataModule):
    """Batches of text-to-text tasks; see `mttl.data.collate` for what a batch holds.

    Its state is the position in the training data: a run resumed in the middle of an epoch sees
    exactly the batches that were left. Build the trainer with ``use_distributed_sampler=False``:
    the rows are dealt to the processes here, for training by `TaskBatchSampler`, for evaluation
    each exactly once.

    Args:
        gym: Where the files are.
        tasks: The names of the tasks, in id order.
        tokenizer: Of the backbone.
        decoder_only: Whether the backbone is a decoder-only model.
        samples: Which few-shot samples of every task.
        split: Rows to train on: `train` or `train+dev`.
        validation: `dev` to validate on the development rows of all samples while training, or
            `none`.
        sampler: `proportional`, `uniform`, `temperature` or `homogeneous`.
        temperature: Of the sampler of that name.
        length_window: Batches whose rows are sorted by length before they are cut anew; see
            `TaskBatchSampler`. 0 leaves them as drawn.
        batch_size: Training rows per step and process.
        eval_batch_size: The most rows per batch and process in validation and scoring.
        max_input_length: The most ids of a prompt.
        max_output_length: The most ids of an answer.
        prefix: Put ``[task]`` before every input.
        descriptions: Put the description in TASKS.csv before every input.
        max_rows: Read only so many rows of every file, spread evenly.
        max_eval_rows: The same for validation and scoring; ``max_rows`` by default.
        n_workers: Processes that collate; 0 collates in this one.
        seed: Of the order of the training rows.
        cache_dir: Where tokenised data is kept; None keeps nothing.

    Raises:
        ValueError: If ``split`` or ``validation`` is unknown, or would validate on trained rows.
    """

    def __init__(
        self,
        gym: Gym,
        tasks: Sequence[str],
        tokenizer: PreTrainedTokenizerBase,
        *,
        decoder_only: bool,
        samples: Sequence[int] = (100,),
        split: str = "train",
        validation: str = "dev",
        sampler: str = "proportional",
        temperature: float = 1.0,
        length_window: int = 0,
        batch_size: int = 32,
        eval_batch_size: int = 64,
        max_input_length: int = 512,
        max_output_length: int = 64,
        prefix: bool = True,
        descriptions: bool = False,
        max_rows: int | None = None,
        max_eval_rows: int | None = None,
        n_workers: int = 0,
        seed: int = 13,
        cache_dir: str | Path | None = None,
    ):
        super().__init__()
        if split not in ("train", "train+dev"):
            raise ValueError(f"split is '{split}'; it must be 'train' or 'train+dev'.")
        if validation not in ("dev", "none"):
            raise ValueError(f"validation is '{validation}'; it must be 'dev' or 'none'.")
        if validation == "dev" and split == "train+dev":
            raise ValueError(
                "validation 'dev' would validate on rows that split 'train+dev' trains; set "
                "validation to 'none' or split to 'train'."
            )
        # With fewer rows than processes, some have nothing to evaluate.
        self.allow_zero_length_dataloader_with_multiple_devices = True
        self.gym, self.tasks, self.samples = gym, list(tasks), list(samples)
        self.tokenizer, self.decoder_only = tokenizer, decoder_only
        self.split, self.validation = split, validation
        self.sampler, self.temperature, self.seed = sampler, temperature, seed
        self.length_window = length_window
        self.batch_size, self.eval_batch_size = batch_size, eval_batch_size
        self.n_workers = n_workers
        self._form = {
            "decoder_only": decoder_only,
            "max_input_length": max_input_length,
            "max_output_length": max_output_length,
            "prefix": prefix,
            "descriptions": descriptions,
            "cache_dir": cache_dir,
        }
        self._max_rows, self._max_eval_rows = max_rows, max_eval_rows or max_rows
        self._train_loader: ResumableLoader | None = None
        self._position_to_load: dict[str, Any] = {}

    @cached_property
    def train_rows(self) -> Dataset:
        """The prepared training rows."""
        return self._prepared(self.split, self._max_rows)

    def prepared(self, split: str) -> Dataset:
        """Return the prepared rows of a split for scoring, of all tasks and samples."""
        return self._prepared(split, self._max_eval_rows)

    def _prepared(self, split: str, max_rows: int | None) -> Dataset:
        return prepare(
            *(self.gym, self.tasks, split, self.samples, self.tokenizer),
            max_rows=max_rows,
            **self._form,
        )

    def prepare_data(self) -> None:
        """Tokenise on one process of each node, so that the others find it done."""
        if self._form["cache_dir"] is None:
            return
        self._prepared(self.split, self._max_rows)
        if self.validation != "none":
            self.prepared(self.validation)

    def train_dataloader(self) -> ResumableLoader:
        """Return the training batches, from the restored position on if there is one."""
        # Prompt and answer both cost padding; the answer is read again by cross-attention.
        inputs, labels = self.train_rows["input_ids"][:], self.train_rows["labels"][:]
        lengths = [len(x) + 2 * len(y) for x, y in zip(inputs, labels, strict=True)]
        sampler = build_sampler(
            self.sampler,
            self.train_rows["task_id"][:],
            lengths=lengths,
            length_window=self.length_window,
            batch_size=self.batch_size,
            seed=self.seed,
            temperature=self.temperature,
            rank=self._rank,
            world_size=self._world_size,
        )
        collate = TrainCollator(pad_id_of(self.tokenizer), len(self.tasks), self.decoder_only)
        loader = ResumableLoader(self.train_rows, sampler, collate_fn=collate, **self._options)
        if self._position_to_load:
            loader.load_state_dict(self._position_to_load)
            self._position_to_load = {}  # a later fit begins anew
        self._train_loader = loader
        return loader

    def val_dataloader(self) -> DataLoader | list[DataLoader]:
        """Return the development rows of all samples, or no loader where validation is off."""
        return [] if self.validation == "none" else self.evaluation_dataloader(self.validation)

    def evaluation_dataloader(self, split: str) -> DataLoader:
        """Return every row of `train`, `dev` or `test` once, for scoring; see `EvalCollator`.

        Test files that are copies across samples are read once, with the first sample.
        """
        rows = self.prepared(split)
        lengths = [len(ids) for ids in rows["input_ids"]]
        batches = evaluation_batches(
            lengths,
            batch_size=self.eval_batch_size,
            rank=self._rank,
            world_size=self._world_size,
        )
        collate = EvalCollator(pad_id_of(self.tokenizer), len(self.tasks), self.decoder_only)
        return DataLoader(rows, batch_sampler=batches, collate_fn=collate, **self._options)  # pyright: ignore

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the training data."""
        if self._train_loader is None:
            return self._position_to_load
        return self._train_loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let training go on where the state was saved."""
        self._position_to_load = state_dict
        if self._train_loader is not None:
            self._train_loader.load_state_dict(state_dict)

    @property
    def _options(self) -> dict[str, Any]:
        return {
            "num_workers": self.n_workers,
            "persistent_workers": self.n_workers > 0,
            "pin_memory": torch.cuda.is_available(),
        }

    @property
    def _rank(self) -> int:
        return self.trainer.global_rank if self.trainer is not None else 0

    @property
    def _world_size(self) -> int:
        return self.trainer.world_size if self.trainer is not None else 1
