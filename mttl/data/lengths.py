"""Maximum lengths from the data and the model, and a limit on cut rows."""

import logging
from collections.abc import Sequence
from itertools import islice

import numpy as np
from transformers import PreTrainedTokenizerBase

from mttl.config.data_schema import Data
from mttl.data.prepare import AT_ONCE, described, row_encoder
from mttl.data.prompt_form import PromptForm
from mttl.io.errors import ConfigError
from mttl.tasks.folder import Gym
from mttl.tasks.rows import RowFile

_log = logging.getLogger(__name__)
_NO_LIMIT = 1 << 40
# Rows of a file that are measured, evenly spaced.
MOST_ROWS = 2000


def with_lengths(
    data: Data,
    gym: Gym,
    tasks: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    *,
    decoder_only: bool,
    n_positions: int | None,
) -> Data:
    """Return the section with the lengths of the data (`fit_lengths`), after checking `max_cut`.

    Each length is the largest 99th percentile of a task, rounded up to a multiple of 8, and at most
    the given length; inputs leave room for answers within the model's positions. Raises a
    `ConfigError` if a larger share of a task's rows than `max_cut` would be cut.
    """
    found = {task: _lengths(data, gym, task, tokenizer, decoder_only) for task in tasks}
    limits = np.array([data.max_input_length, data.max_output_length])
    if data.fit_lengths:
        wanted = np.max([_long(lengths) for lengths in found.values()], 0)
        # Heads have no answers in tokens.
        fitting = np.where(wanted > 0, -(-wanted // 8) * 8, limits)
        limits = np.minimum(limits, fitting)
        if n_positions is not None:
            limits[1] = min(limits[1], n_positions // 2 if decoder_only else n_positions)
            limits[0] = min(limits[0], n_positions - limits[1] * decoder_only)
        _log.info("lengths from the data: inputs have at most %d tokens, answers %d", *limits)
    shares = {task: float((n > limits).any(1).mean()) for task, n in found.items()}
    worst = max(shares, key=shares.__getitem__)
    if data.max_cut is not None and shares[worst] > data.max_cut:
        p99 = _long(found[worst])
        raise ConfigError(
            f"{100 * shares[worst]:.0f} % of the rows of '{worst}' would be cut: inputs may have "
            f"{limits[0]} tokens, answers {limits[1]}, and 99 % of its rows have at most {p99[0]} "
            f"and {p99[1]}. Raise data.max_input_length and data.max_output_length within the "
            "model's positions, shorten the texts, or set data.max_cut=1 to allow it"
        )
    lengths = {"max_input_length": int(limits[0]), "max_output_length": int(limits[1])}
    return data.model_copy(update={**lengths, "fit_lengths": False})


def _long(lengths: np.ndarray) -> np.ndarray:
    return np.percentile(lengths, 99, 0, method="higher")


def _lengths(
    data: Data, gym: Gym, task: str, tokenizer: PreTrainedTokenizerBase, decoder_only: bool
) -> np.ndarray:
    """Return the tokens of inputs and answers, a row for each, of all splits that a run reads."""
    whole: dict[str, object] = {"max_input_length": _NO_LIMIT, "max_output_length": _NO_LIMIT}
    head = gym.head(task)
    whole |= {"task_heads": {} if head is None else {task: head}}
    form = described(PromptForm.of(data), gym, [task]).model_copy(update=whole)
    encoder = row_encoder(form, tokenizer, decoder_only=decoder_only)
    prefix = form.prompt_prefix(task)
    splits = {*data.split.split("+"), *({data.validation} - {"none"}), *data.evaluate}
    files = {gym.file(task, split, sample) for split in splits for sample in data.samples}
    lengths: list[tuple[int, int]] = []
    for file in sorted(files):
        source = RowFile.scan(file).rows(MOST_ROWS)
        while rows := list(islice(source, AT_ONCE)):
            if head is not None:
                found = encoder.columns([head] * len(rows), rows, [prefix] * len(rows), [])
                pairs = zip(found["input_ids"], found["labels"], strict=True)
                lengths += [(len(ids) + len(labels), 0) for ids, labels in pairs]
                continue
            texts = [prefix.text + row.input for row in rows]
            prompts = encoder.prompts(texts, [prefix] * len(rows))
            answers = encoder.answers([row.outputs[0] for row in rows])
            lengths += zip(map(len, prompts), map(len, answers), strict=True)
    found = np.array(lengths)
    # Trees have no cut rows.
    return found if head is None or head.kind != "tree" else np.full_like(found, found.max(0))
