"""The Lightning data module: a gym's tasks as batches for training, validation and scoring."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase

from mttl.config.data_schema import Data
from mttl.data.collate import EvalCollator, TrainCollator, pad_id_of
from mttl.data.evaluation import evaluation_batches
from mttl.data.loader import ResumableLoader
from mttl.data.prepare import prepare
from mttl.data.prompt_form import PromptForm
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
        data: Samples, splits, sampler, sizes of batches and form of the rows; its folder and
            partition are not read, and without a ``cache_dir`` nothing is kept.
        decoder_only: Whether the backbone is a decoder-only model.
        seed: Of the order of the training rows.
        n_examples: Training and development rows to keep of all that there are: the first of an
            order that seed and samples draw, so that fewer rows are among more. All by default.
    """

    def __init__(
        self,
        gym: Gym,
        tasks: Sequence[str],
        tokenizer: PreTrainedTokenizerBase,
        data: Data,
        *,
        decoder_only: bool,
        seed: int = 13,
        n_examples: int | None = None,
    ):
        super().__init__()
        self.gym, self.tasks, self.data = gym, list(tasks), data
        self.tokenizer, self.decoder_only, self.seed = tokenizer, decoder_only, seed
        self.n_examples = n_examples
        self._train_loader: ResumableLoader | None = None
        self._position_to_load: dict[str, Any] = {}

    @cached_property
    def train_rows(self) -> Dataset:
        """The prepared training rows."""
        return self._prepared(self.data.split, self.data.max_rows)

    def prepared(self, split: str) -> Dataset:
        """Return the prepared rows of a split for scoring, of all tasks and samples."""
        return self._prepared(split, self.data.max_eval_rows or self.data.max_rows)

    def _prepared(self, split: str, max_rows: int | None) -> Dataset:
        rows = prepare(
            *(self.gym, self.tasks, split, self.data.samples, self.tokenizer),
            decoder_only=self.decoder_only,
            form=PromptForm.of(self.data),
            max_rows=max_rows,
            cache_dir=self.data.cache_dir,
        )
        if self.n_examples is None or split == "test":
            return rows
        order = np.random.default_rng([self.seed, *self.data.samples]).permutation(len(rows))
        return rows.select(sorted(order[: self.n_examples]))

    def prepare_data(self) -> None:
        """Tokenise on one process of each node, so that the others find it done."""
        if self.data.cache_dir is None:
            return
        self._prepared(self.data.split, self.data.max_rows)
        if self.data.validation != "none":
            self.prepared(self.data.validation)

    def train_dataloader(self) -> ResumableLoader:
        """Return the training batches, from the restored position on if there is one."""
        # Prompt and answer both cost padding; the answer is read again by cross-attention.
        inputs, labels = self.train_rows["input_ids"][:], self.train_rows["labels"][:]
        lengths = [len(x) + 2 * len(y) for x, y in zip(inputs, labels, strict=True)]
        sampler = build_sampler(
            self.data.sampler.kind,
            self.train_rows["task_id"][:],
            lengths=lengths,
            length_window=self.data.length_window,
            batch_size=self.data.batch_size,
            seed=self.seed,
            temperature=getattr(self.data.sampler, "temperature", 1.0),
            rank=self._rank,
            world_size=self._world_size,
            global_batch_size=self.data.global_batch_size,
            n_parts=self._n_parts,
        )
        collate = TrainCollator(pad_id_of(self.tokenizer), len(self.tasks), self.decoder_only)
        counted = self.data.global_batch_size is not None
        loader = ResumableLoader(
            self.train_rows,
            sampler,
            n_targets=collate.n_targets if counted else None,
            collate_fn=collate,
            **self._options,
        )
        if self._position_to_load:
            loader.load_state_dict(self._position_to_load)
            self._position_to_load = {}  # a later fit begins anew
        self._train_loader = loader
        return loader

    def val_dataloader(self) -> DataLoader | list[DataLoader]:
        """Return the development rows of all samples, or no loader where validation is off."""
        split = self.data.validation
        return [] if split == "none" else self.evaluation_dataloader(split)

    def evaluation_dataloader(self, split: str) -> DataLoader:
        """Return every row of `train`, `dev` or `test` once, for scoring; see `EvalCollator`.

        Test files that are copies across samples are read once, with the first sample.
        """
        rows = self.prepared(split)
        lengths = [len(ids) for ids in rows["input_ids"]]
        batches = evaluation_batches(
            lengths,
            batch_size=self.data.eval_batch_size,
            rank=self._rank,
            world_size=self._world_size,
        )
        collate = EvalCollator(pad_id_of(self.tokenizer), len(self.tasks), self.decoder_only)
        # Its own generator: a loader draws seeds for workers, kept ones only once, and training has
        # to go on with the same noise whether it validated in this process or in an earlier one.
        generator = torch.Generator().manual_seed(self.seed)
        return DataLoader(
            rows,  # pyright: ignore
            batch_sampler=batches,  # pyright: ignore
            collate_fn=collate,
            generator=generator,
            **self._options,
        )

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
            "num_workers": self.data.n_workers,
            "persistent_workers": self.data.n_workers > 0,
            "pin_memory": torch.cuda.is_available(),
        }

    @property
    def _n_parts(self) -> int:
        """Into how many batches a process cuts its rows of a step."""
        if self.data.global_batch_size is None or self.trainer is None:
            return 1
        return self.trainer.accumulate_grad_batches

    @property
    def _rank(self) -> int:
        return self.trainer.global_rank if self.trainer is not None else 0

    @property
    def _world_size(self) -> int:
        return self.trainer.world_size if self.trainer is not None else 1
