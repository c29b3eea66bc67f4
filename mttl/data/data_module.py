"""Lightning data module: batches of a gym's tasks for training, validation and scoring."""

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytorch_lightning as pl
import torch
from datasets import Dataset
from datasets.table import InMemoryTable
from jaxtyping import Int64
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase

from mttl.config.data_schema import Data
from mttl.data.collate import EvalCollator, PackedCollator, TrainCollator, pad_id_of
from mttl.data.headed import HeadedCollator
from mttl.data.loader import ResumableLoader
from mttl.data.prepare import prepare
from mttl.data.prompt_form import PromptForm
from mttl.data.raw_text import TextCollator, corruption_of
from mttl.data.samplers import SeparateSampler, TaskBatchSampler, evaluation_batches
from mttl.data.token_sampler import TokenBatchSampler, padding_share
from mttl.tasks.folder import Gym

_log = logging.getLogger(__name__)


class TextToTextDataModule(pl.LightningDataModule):
    """Batches of text-to-text tasks; `mttl.data.collate` describes their fields.

    Its state is the position in the training data, so a resumed run continues with exactly the
    remaining batches. Build the trainer with ``use_distributed_sampler=False``, because rows are
    distributed over processes here.

    ``tasks`` are in the order of ids. Of ``data``, `dir` and `partition` are ignored; without a
    ``cache_dir`` nothing is cached. ``n_examples`` limits training and development rows, chosen by
    seed and samples so that fewer rows are a subset of more. The default ``form`` is that of
    ``data``. ``own_steps`` are the steps by task id of tasks that are trained separately
    (`SeparateSampler`); tasks without an entry train in all steps. Raw text is corrupted for an
    ``encoder`` or encoder–decoder, for each training batch with other draws.
    """

    def __init__(
        self,
        gym: Gym,
        tasks: Sequence[str],
        tokenizer: PreTrainedTokenizerBase,
        data: Data,
        *,
        decoder_only: bool,
        encoder: bool = False,
        seed: int = 13,
        n_examples: int | None = None,
        form: PromptForm | None = None,
        own_steps: Mapping[int, int] | None = None,
    ):
        super().__init__()
        self.gym, self.tasks, self.data = gym, list(tasks), data
        self.tokenizer, self.decoder_only, self.seed = tokenizer, decoder_only, seed
        self.n_examples, self.form = n_examples, form or PromptForm.of(data)
        self.own_steps = own_steps
        corrupted = self.form.texts and not decoder_only
        self.corruption = corruption_of(tokenizer, encoder=encoder) if corrupted else None
        self._prepared = cache(self._read)
        self._train_loader: ResumableLoader | None = None
        self._position_to_load: dict[str, Any] = {}

    @property
    def train_rows(self) -> Dataset:
        """Prepared training rows."""
        return self._prepared(self.data.split, self.data.max_rows)

    def prepared(self, split: str) -> Dataset:
        """Return the prepared rows of a split for scoring, of all tasks and samples."""
        return self._prepared(split, self.data.max_eval_rows or self.data.max_rows)

    def _read(self, split: str, max_rows: int | None) -> Dataset:
        rows = prepare(
            *(self.gym, self.tasks, split, self.data.samples, self.tokenizer),
            decoder_only=self.decoder_only,
            form=self.form,
            max_rows=max_rows,
            cache_dir=self.data.cache_dir,
        )
        if self.n_examples is None or split == "test":
            return rows
        # Files sorted by label would otherwise give both splits rows with the same labels.
        split_number = [1] if split == "dev" else []
        draw = np.random.default_rng([self.seed, *self.data.samples, *split_number])
        order = draw.permutation(len(rows))
        return pick(rows, np.sort(order[: self.n_examples]))

    def prepare_data(self) -> None:
        """Tokenise in one process per node, for all others."""
        if self.data.cache_dir is None:
            return
        self._prepared(self.data.split, self.data.max_rows)
        if self.data.validation != "none":
            self.prepared(self.data.validation)

    def train_dataloader(self) -> ResumableLoader:
        """Return the training batches, starting at the restored position if there is one."""
        rows, data = self.train_rows, self.data
        prompts, answers = lengths_of(rows, "input_ids"), lengths_of(rows, "labels")
        if self.corruption is not None:
            answers = np.array([self.corruption.n_labels(length) for length in prompts.tolist()])
        order: dict[str, Any] = {
            "batch_size": data.batch_size,
            "length_window": data.length_window,
            "seed": self.seed,
            **self._place,
            "kind": data.sampler.kind,
            "temperature": data.sampler.temperature or 2.0,
        }
        task_ids, packed = numbers_of(rows, "task_id"), data.packed_length
        stacks = (prompts + answers)[:, None]
        if not self.decoder_only:
            stacks = np.stack([prompts, answers], 1)
        n_parts = 1 if self.trainer is None else self.trainer.accumulate_grad_batches
        if self.own_steps is not None:
            order["lengths"] = prompts + 2 * answers
            sampler = SeparateSampler(task_ids, steps=self.own_steps, **order)
            _log.info("every step has %d rows of each task and process", sampler.of_each_task)
        elif data.token_budget is None:
            # Padding costs on prompt and answer; cross-attention reads the answer again.
            order |= {"lengths": prompts + 2 * answers, "global_batch_size": data.global_batch_size}
            order["n_parts"] = 1 if data.global_batch_size is None else n_parts
            sampler = TaskBatchSampler(task_ids, **order)
        else:
            order |= {"token_budget": data.token_budget, "packed_length": packed}
            sampler = TokenBatchSampler(task_ids, sizes=stacks, **order)
        if data.token_budget is not None or packed is not None:
            batches = list(sampler)
            n_rows = [len(batch) for batch in batches]
            _log.info(
                "an epoch has %d batches of %d to %d rows; %.1f %% of positions are padding",
                *(len(batches), min(n_rows), max(n_rows)),
                100 * padding_share(batches, stacks, packed),
            )
        read = ["input_ids", "labels", "task_id"]
        collate = self.collator()
        if packed is not None:
            collate = PackedCollator(pad_id_of(self.tokenizer), self.decoder_only, packed)
        if self.form.headed:
            read += ["word_starts", "second", "references"]
        if any(map(self.gym.has_choices, self.tasks)):
            read += ["columns"]
        counted: dict[str, Any] = {} if self.corruption is None else {"draw": collate}
        if n_parts > 1 or data.global_batch_size is not None:
            counted |= {"n_targets": collate.n_targets, "n_parts": n_parts}
        loader = ResumableLoader(
            *(rows.select_columns(read), sampler),
            collate_fn=collate if self.corruption is None else list,
            **counted,
            **self._options,
        )
        if self._position_to_load:
            loader.load_state_dict(self._position_to_load)
            self._position_to_load = {}  # later calls of fit start at the beginning
        self._train_loader = loader
        return loader

    def collator(self, *, evaluated: bool = False) -> Any:
        """Return the collator of unpacked rows for training or evaluation."""
        form = pad_id_of(self.tokenizer), self.decoder_only
        if self.form.texts:
            return TextCollator(*form, self.corruption, evaluated)
        if self.form.headed:
            return HeadedCollator(form[0], evaluated)
        return (EvalCollator if evaluated else TrainCollator)(*form)

    def val_dataloader(self) -> DataLoader | list[DataLoader]:
        """Return the development rows of all samples, or no loader without validation."""
        split = self.data.validation
        return [] if split == "none" else self.evaluation_dataloader(split)

    def evaluation_dataloader(self, split: str, tasks: Sequence[int] | None = None) -> DataLoader:
        """Return every row of `train`, `dev` or `test` once, for scoring; see `EvalCollator`.

        Test files that are identical in several samples are read once. ``tasks`` are task ids, by
        default all.
        """
        rows = self.prepared(split)
        if tasks is not None:
            rows = pick(rows, np.flatnonzero(np.isin(numbers_of(rows, "task_id"), tasks)))
        size, lengths = self.data.eval_batch_size, lengths_of(rows, "input_ids")
        batches = evaluation_batches(lengths, batch_size=size, **self._place)
        return DataLoader(
            rows,  # pyright: ignore
            batch_sampler=batches,  # pyright: ignore
            collate_fn=self.collator(evaluated=True),
            # The loader draws seeds for workers; its own generator keeps the noise of training
            # independent of validations.
            generator=torch.Generator().manual_seed(self.seed),
            **self._options,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the training data."""
        if self._train_loader is None:
            return self._position_to_load
        return self._train_loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue training at a saved position."""
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
    def _place(self) -> dict[str, int]:
        if self.trainer is None:
            return {}
        return {"rank": self.trainer.global_rank, "world_size": self.trainer.world_size}


# Columns as numpy arrays, without conversion to Python objects.


def numbers_of(rows: Dataset, column: str) -> Int64[np.ndarray, "N"]:
    """Return a column of integers."""
    return rows.data.column(column).to_numpy().astype(np.int64, copy=False)


def lengths_of(rows: Dataset, column: str) -> Int64[np.ndarray, "N"]:
    """Return the lengths of the lists in a column, without reading the lists."""
    lengths = pc.list_value_length(rows.data.column(column))  # pyright: ignore
    return lengths.to_numpy().astype(np.int64)


def pick(rows: Dataset, places: Sequence[int] | np.ndarray) -> Dataset:
    """Return some rows as an in-memory table."""
    return Dataset(InMemoryTable(rows.data.table.take(np.asarray(places))), rows.info)
