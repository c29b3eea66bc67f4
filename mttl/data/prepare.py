"""Tokenise the files of a gym into one data set, cached on disk.

The key of the cache is a hash of the bytes of every file that is read, of the tokenizer, of all
settings and of the version of this format, so that no change of any of them can be missed.
"""

import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from datasets import Dataset, Features, List, Value
from transformers import PreTrainedTokenizerBase

from mttl.data.cache import cached
from mttl.data.encode import TextEncoder, tokenizer_identity
from mttl.data.opening import Opening, check_codes
from mttl.data.prompt_form import PromptForm
from mttl.errors import TaskError, nearest
from mttl.gym.folder import SPLITS, Gym
from mttl.gym.rows import parse_rows

_log = logging.getLogger(__name__)

# Raise it when the columns, the text form or the encoding change.
FORMAT_VERSION = 2

COLUMNS = Features(
    {
        "row": Value("int64"),
        "task_id": Value("int64"),
        "sample": Value("int64"),
        "input": Value("string"),
        "references": List(Value("string")),
        "input_ids": List(Value("int32")),
        "labels": List(Value("int32")),
    }
)


class _Source(NamedTuple):
    task_id: int
    sample: int
    path: Path
    data: bytes


def prepare(
    gym: Gym,
    tasks: Sequence[str],
    split: str,
    samples: Sequence[int],
    tokenizer: PreTrainedTokenizerBase,
    *,
    decoder_only: bool,
    form: PromptForm,
    max_rows: int | None = None,
    cache_dir: str | Path | None = None,
) -> Dataset:
    """Read, format and tokenise the rows of ``tasks``, in the order task, sample, split, row.

    Rows that stand in several samples are kept as often (that is how the published results were
    trained); but a test file that equals an earlier sample's of its task byte for byte is read
    once, because it would only be scored twice.

    Args:
        gym: Where the files are.
        tasks: Their names in id order: `task_id` is the index here.
        split: `train`, `dev`, `test`, or several joined by ``+``: `train+dev`.
        samples: Which few-shot samples.
        tokenizer: Of the backbone.
        decoder_only: Whether the backbone is a decoder-only model; see `mttl.data.encode`.
        form: How rows become text; descriptions are those in TASKS.csv.
        max_rows: Read only so many rows of every file, spread evenly.
        cache_dir: Where the result is kept; None keeps nothing.

    Returns:
        A data set with the columns `row` (its index), `task_id`, `sample`, `input` (the text as
        the model reads it), `references` (all accepted outputs), `input_ids` (of the prompt) and
        `labels` (ids of the first output, end token included).

    Raises:
        TaskError: If a file is absent or malformed, or a description is asked for and absent.
    """
    encoder = form.encoder(tokenizer, decoder_only=decoder_only)
    sources = _read_sources(gym, tasks, split, samples)
    if form.descriptions:
        texts = {task: _description(gym, task) for task in tasks}
        form = form.model_copy(update={"task_descriptions": texts})
    openings = [form.opening(task) for task in tasks]
    if form.prefix == "code":
        check_codes(tasks)

    def build() -> Dataset:
        return _build(sources, openings, encoder, max_rows)

    if cache_dir is None:
        return _telling_what_was_cut(build())
    settings = {
        "format": FORMAT_VERSION,
        "tokenizer": tokenizer_identity(tokenizer),
        "tasks": list(tasks),
        "openings": [opening.text for opening in openings],
        "files": [(s.task_id, s.sample, hashlib.sha256(s.data).hexdigest()) for s in sources],
        "decoder_only": decoder_only,
        "lengths": [form.max_input_length, form.max_output_length],
        "max_rows": max_rows,
        **({} if form.truncate == "end" else {"truncate": form.truncate}),
    }
    if form.template == "chat":  # what its template says now: some show the date
        settings["frames"] = [encoder.frame(opening.system) for opening in openings]
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    key = f"{split.replace('+', '-')}-{digest[:24]}"
    return _telling_what_was_cut(cached(build, key, cache_dir))


def _read_sources(
    gym: Gym, tasks: Sequence[str], split: str, samples: Sequence[int]
) -> list[_Source]:
    parts = split.split("+")
    for part in parts:
        if part not in SPLITS:
            raise ValueError(
                f"split is '{split}'; it must be train, dev, test, or several of them joined by "
                f"'+'.{nearest(part, SPLITS)}"
            )
    if not tasks or not samples:
        what = "tasks" if not tasks else "samples"
        raise TaskError(f"{what} is empty: there is nothing to read in '{gym.directory}'.")
    sources: list[_Source] = []
    for task_id, task in enumerate(tasks):
        seen: set[bytes] = set()
        for sample in samples:
            for part in parts:
                path = gym.file(task, part, sample)
                try:
                    data = path.read_bytes()
                except OSError as error:
                    raise TaskError(f"cannot read '{path}': {error.strerror or error}.") from error
                if part == "test":
                    if data in seen:
                        continue
                    seen.add(data)
                sources.append(_Source(task_id, sample, path, data))
    return sources


def _description(gym: Gym, task: str) -> str:
    description = gym.description(task)
    if description is None:
        raise TaskError(
            f"data.descriptions is on, but '{gym.directory / 'TASKS.csv'}' has no description "
            f"of '{task}'; add one in the column 'description', or turn it off."
        )
    return description


def _build(
    sources: Sequence[_Source],
    openings: Sequence[Opening],
    encoder: TextEncoder,
    max_rows: int | None,
) -> Dataset:
    task_ids: list[int] = []
    samples: list[int] = []
    inputs: list[str] = []
    references: list[list[str]] = []
    for source in sources:
        rows = parse_rows(source.data, source.path, max_rows)
        task_ids += [source.task_id] * len(rows)
        samples += [source.sample] * len(rows)
        inputs += [openings[source.task_id].text + row.input for row in rows]
        references += [list(row.outputs) for row in rows]
    _log.info("tokenising %d rows of %d files", len(inputs), len(sources))
    unknown = encoder.lost_characters([outputs[0] for outputs in references])
    if unknown:
        _log.warning(
            "the tokenizer does not keep %s, which answers hold: they are learned without. Set "
            "backbone.tokenizer to one that does, such as byte",
            " and ".join(unknown),
        )
    lost: dict[str, list[int]] = {"max_input_length": [], "max_output_length": []}
    before = [openings[task_id] for task_id in task_ids]
    columns = {
        "row": list(range(len(inputs))),
        "task_id": task_ids,
        "sample": samples,
        "input": inputs,
        "references": references,
        "input_ids": encoder.prompts(inputs, before, lost["max_input_length"]),
        "labels": encoder.answers(
            [outputs[0] for outputs in references], lost["max_output_length"]
        ),
    }
    dataset = Dataset.from_dict(columns, features=COLUMNS)
    # Kept with the rows, so that a run on cached ones tells it too.
    dataset.info.description = "; ".join(
        f"{len(cut):,} of {len(inputs):,} {what} are longer than data.{setting}: "
        f"{sum(cut):,} tokens are cut at their {side}"
        for (setting, cut), what, side in zip(
            lost.items(), ("inputs", "answers"), (encoder.truncate, "end"), strict=True
        )
        if cut
    )
    return dataset


def _telling_what_was_cut(rows: Dataset) -> Dataset:
    if rows.info.description:
        _log.info("%s", rows.info.description)
    return rows
