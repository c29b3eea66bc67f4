"""Tokenise the files of a gym into one data set, cached on disk.

The cache key is a hash of all files, the tokenizer, all settings and the format version.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, List, Value
from transformers import PreTrainedTokenizerBase

from mttl.data.cache import Write, cached, in_memory
from mttl.data.encode import PromptPrefix, TextEncoder, tokenizer_identity
from mttl.data.headed import HeadedEncoder
from mttl.data.prompt_form import PromptForm
from mttl.data.raw_text import LineEncoder
from mttl.io.errors import TaskError
from mttl.tasks.folder import Gym
from mttl.tasks.head_form import HeadForm
from mttl.tasks.rows import Row, RowFile

_log = logging.getLogger(__name__)

# Increase it when columns, text format or encoding change.
FORMAT_VERSION = 7

# Rows tokenised and written together.
AT_ONCE = 1000

COLUMNS = Features(
    {
        "row": Value("int64"),
        "task_id": Value("int64"),
        "sample": Value("int64"),
        "input": Value("string"),
        "prefix_length": Value("int64"),
        "columns": Value("string"),
        "references": List(Value("string")),
        "input_ids": List(Value("int32")),
        "labels": List(Value("int32")),
        "word_starts": List(Value("int32")),
        "second": Value("int32"),
    }
)
_Source = tuple[int, int, RowFile]  # task, sample


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
    """Return the formatted and tokenised rows of tasks, in the order task, sample, split, row.

    Rows in several samples are repeated, as in the published results; but a test file identical to
    that of an earlier sample is read once. Several splits are joined by ``+``: `train+dev`. At most
    ``max_rows`` rows of a file are read, evenly spaced. Nothing is cached without a ``cache_dir``.

    Columns are `row` (its index), `task_id`, `sample`, `input` (the formatted text),
    `prefix_length` (characters before the row's own input), `columns` (JSON of other columns, or
    empty), `references` (all accepted outputs), `input_ids` (of the prompt) and `labels` (ids of
    the first output, end token included). Raises a `TaskError` if a file is missing or malformed,
    or a required description is missing.
    """
    sources = _read_sources(gym, tasks, split, samples)
    form = described(form, gym, tasks)
    if "+" in split and (controlled := [task for task in tasks if form.edges(task)]):
        raise TaskError(
            f"data.split '{split}' would train '{controlled[0]}' on development rows without codes "
            "(control); set data.split: train"
        )
    encoder = row_encoder(form, tokenizer, decoder_only=decoder_only)
    prompt_prefixes = [form.prompt_prefix(task) for task in tasks]
    heads = [form.task_heads.get(task) for task in tasks]

    def prefix_of(task: int, row: Row) -> PromptPrefix:
        codes = form.codes_in(tasks[task], row.columns)
        return form.prompt_prefix(tasks[task], codes) if codes else prompt_prefixes[task]

    build = partial(_build, sources, prefix_of, encoder, max_rows, heads)
    if cache_dir is None:
        found = in_memory(build, COLUMNS)
    else:
        settings = {
            "format": FORMAT_VERSION,
            "tokenizer": tokenizer_identity(tokenizer),
            "tasks": list(tasks),
            "files": [(task, sample, file.digest) for task, sample, file in sources],
            "decoder_only": decoder_only,
            "max_rows": max_rows,
            "form": form.model_dump(mode="json"),
        }
        if form.template == "chat":  # the template's text, which may contain the date
            settings["frames"] = [encoder.frame(*prefix[1:3]) for prefix in prompt_prefixes]
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
        key = f"{split.replace('+', '-')}-{digest[:24]}"
        found = cached(build, COLUMNS, key, cache_dir)
    if found.info.description:
        _log.info("%s", found.info.description)
    return found


def row_encoder(form: PromptForm, tokenizer: PreTrainedTokenizerBase, *, decoder_only: bool) -> Any:
    """Return the encoder of rows of raw text, with heads, or with generated answers."""
    if form.texts:
        return LineEncoder(tokenizer, form.max_input_length, causal=decoder_only)
    if form.headed:
        return HeadedEncoder(tokenizer, form.max_input_length)
    return form.encoder(tokenizer, decoder_only=decoder_only)


def described(form: PromptForm, gym: Gym, tasks: Sequence[str]) -> PromptForm:
    """Return the form with templates of dialogues and controlled tasks, and any descriptions."""
    found = ((task, gym.template(task)) for task in tasks)
    if templates := {task: one for task, one in found if one and (one.dialogue or one.control)}:
        own = {"task_templates": form.task_templates | templates}
        form = form.model_copy(update=own)
    if not form.descriptions:
        return form
    texts = gym.descriptions(tasks, "data.descriptions needs descriptions of tasks")
    return form.model_copy(update={"task_descriptions": texts})


def _read_sources(
    gym: Gym, tasks: Sequence[str], split: str, samples: Sequence[int]
) -> list[_Source]:
    sources: list[_Source] = []
    for task_id, task in enumerate(tasks):
        seen: set[str] = set()
        for sample in samples:
            for part in split.split("+"):
                file = RowFile.scan(gym.file(task, part, sample))
                if part == "test":
                    if file.digest in seen:
                        continue
                    seen.add(file.digest)
                sources.append((task_id, sample, file))
    return sources


def _build(
    sources: Sequence[_Source],
    prefix_of: Callable[[int, Row], PromptPrefix],
    encoder: TextEncoder | HeadedEncoder | LineEncoder,
    max_rows: int | None,
    heads: Sequence[HeadForm | None],
    write: Write,
) -> str:
    """Write all rows in chunks, and return a description of truncated texts."""
    n_rows = sum(min(file.n_lines, max_rows or file.n_lines) for _, _, file in sources)
    _log.info("tokenising %d rows of %d files", n_rows, len(sources))
    lost: dict[str, list[int]] = {"max_input_length": [], "max_output_length": []}
    side = getattr(encoder, "truncate", "end")
    unknown: set[str] = set()
    n_written, dialogues = 0, False
    rows = ((task, sample, row) for task, sample, file in sources for row in file.rows(max_rows))
    while some := list(islice(rows, AT_ONCE)):
        tasks, samples, read = zip(*some, strict=True)
        before = list(map(prefix_of, tasks, read))
        dialogues |= any(prefix.dialogue for prefix in before)
        inputs = [prefix.text + row.input for prefix, row in zip(before, read, strict=True)]
        answers = [row.outputs[0] for row in read]
        if isinstance(encoder, TextEncoder):
            unknown.update(encoder.lost_characters(answers))
            encoded = {
                "input_ids": encoder.prompts(inputs, before, lost["max_input_length"]),
                "labels": encoder.answers(answers, lost["max_output_length"]),
            }
        else:
            forms: Any = [heads[task] for task in tasks]
            encoded = encoder.columns(forms, read, before, lost["max_input_length"])
        write(
            {
                "row": range(n_written, n_written + len(some)),
                "task_id": tasks,
                "sample": samples,
                "input": inputs,
                "prefix_length": [len(prefix.text) for prefix in before],
                "columns": [json.dumps(row.columns) if row.columns else "" for row in read],
                "references": [list(row.outputs) for row in read],
                **{"word_starts": [[]] * len(some), "second": [0] * len(some)},
                **encoded,
            }
        )
        n_written += len(some)
    if unknown:
        _log.warning(
            "the tokenizer does not preserve %s in answers, so they are trained without. Set "
            "backbone.tokenizer to one that does, such as byte",
            " and ".join(sorted(unknown)),
        )
    if dialogues:
        side += ", of dialogues the oldest turns first"
    cuts = zip(("inputs", "answers"), lost.items(), (side, "end"), strict=True)
    # Stored with the rows, so that it is also logged for cached ones.
    return "; ".join(
        f"{len(cut):,} of {n_written:,} {what} are longer than data.{setting}: "
        f"{sum(cut):,} tokens were cut at their {end}"
        for what, (setting, cut), end in cuts
        if cut
    )
