r"""Encode text as ids, and truncate it without losing special tokens.

An input is ``[task] input`` (with a prefix), and an answer is the first accepted output. CrossFit
puts a blank before both. The blank is kept for tokenizers in which it changes a word's token
without adding one (byte-level BPE of GPT-2 and BART); in others it would be dropped, doubled or
cost a token.

Special tokens are the tokenizer's own. Encoder–decoder: inputs and answers have them, and an answer
ends with the end token. Decoder-only: start + input + newline, then answer + end; the newline marks
the end of the input. Long texts are truncated at the end (inputs optionally at the start), without
losing prefix, newline and end token; dialogues lose their oldest turns. Chats follow the
tokenizer's template (`mttl.data.chat_encoder`). Special tokens spelled in texts are ordinary text
(`mttl.data.user_text`).
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import transformers
from transformers import PreTrainedTokenizerBase

from mttl.config.data_schema import Truncate
from mttl.data.user_text import UserText
from mttl.io.errors import ConfigError
from mttl.tasks.dialogue import Dialogue

_PROBE = "the"
_BEHAVIOUR_PROBE = " [Task_1] Café  naïve\tÅß 12,345.60\n日本 </s> the end."

Turns: TypeAlias = tuple[tuple[str, str], ...]


class PromptPrefix(NamedTuple):
    """The beginning of an input; in chats additionally the system text and earlier turns.

    Turns are pairs of input and answer. The input of a ``dialogue`` has knowledge and further turns
    (`mttl.tasks.dialogue`).
    """

    text: str
    system: str | None = None
    turns: Turns = ()
    dialogue: bool = False


class Frame(NamedTuple):
    """Text around an input and its answer."""

    head: str  # before the input
    tail: str  # between the input and the generated text
    lead: str  # blanks generated before the answer
    end: str  # after the answer


class TextEncoder:
    """Encodes prompts and answers for a decoder-only or encoder–decoder model.

    Lengths are in ids, special tokens included; ``truncate`` is the side of a long input that is
    cut. Raises a `ConfigError` if a length leaves no room for text.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        decoder_only: bool,
        max_input_length: int,
        max_output_length: int,
        truncate: Truncate = "end",
    ):
        eos_id: Any = tokenizer.eos_token_id
        end = [] if eos_id is None else [eos_id]
        self.tokenizer, self.truncate = tokenizer, truncate
        self.user_text = UserText(tokenizer)
        self._decoder_only = decoder_only
        self.leading_space = " " if wants_leading_space(tokenizer) else ""
        before, after = special_ids(tokenizer)
        if decoder_only:
            self.prompt_ends, self._answer_ends = (before, _bare(tokenizer, "\n")), ([], end)
        else:
            ends = after if eos_id in after else [*after, *end]
            self.prompt_ends, self._answer_ends = (before, after), (before, ends)
        self._max_lengths = max_input_length, max_output_length
        self._check_room("max_input_length", max_input_length, self.prompt_ends)
        self._check_room("max_output_length", max_output_length, self._answer_ends)

    def frame(self, system: str | None = None, turns: Turns = ()) -> Frame:
        """Return the text around an input and its answer; arguments are for chats only."""
        head, tail, lead, end = (
            "".join(self.tokenizer.convert_ids_to_tokens(ids))
            for ids in (*self.prompt_ends, *self._answer_ends)
        )
        if self._decoder_only:
            tail = "\n"
        return Frame(head + self.leading_space, tail, lead + self.leading_space, end)

    @property
    def stops(self) -> list[int]:
        """Ids that end an answer, in addition to the model's own."""
        return []

    def prompts(
        self,
        texts: Sequence[str],
        prompt_prefixes: Sequence[PromptPrefix] = (),
        lost: list[int] | None = None,
    ) -> list[list[int]]:
        """Return the ids of each input, given with its prefix.

        Prefixes are kept if inputs are cut at the start. ``lost`` receives the number of cut ids of
        each truncated text.
        """
        kept = [*prompt_prefixes] or [PromptPrefix("")] * len(texts)
        return self._encode(texts, self.prompt_ends, self._max_lengths[0], lost, kept)

    def answers(self, texts: Sequence[str], lost: list[int] | None = None) -> list[list[int]]:
        """Return the ids of each answer, including the end token; ``lost`` as for `prompts`.

        Raises a `ConfigError` if there is no end token.
        """
        if self.tokenizer.eos_token_id is None:  # heads need none
            raise ConfigError(
                f"{type(self.tokenizer).__name__} has no end token, so generation could not stop; "
                "set its eos_token, or give all tasks a head (kind: tokens, label or tree)"
            )
        return self._encode(texts, self._answer_ends, self._max_lengths[1], lost)

    def lost_characters(self, texts: Sequence[str]) -> list[str]:
        """Return characters of texts that the tokenizer does not preserve: line breaks, tabs."""
        return [
            name
            for character, name in (("\n", "line breaks"), ("\t", "tabs"))
            if any(character in text for text in texts)
            and character not in self.tokenizer.decode(_bare(self.tokenizer, f"a{character}b"))
        ]

    @staticmethod
    def _check_room(name: str, length: int, ends: tuple[list[int], list[int]]) -> None:
        around = sum(map(len, ends))
        if length <= around:
            raise ConfigError(
                f"data.{name} ({length}) must be larger than {around}, the number of tokens of the "
                "template or special tokens around the text."
            )

    def _encode(
        self,
        texts: Sequence[str],
        ends: tuple[list[int], list[int]],
        max_length: int,
        lost: list[int] | None = None,
        prompt_prefixes: Sequence[PromptPrefix] | None = None,
    ) -> list[list[int]]:
        before, after = ends
        room = max_length - len(before) - len(after)
        encoded = self.user_text.encode([self.leading_space + text for text in texts])
        for place, ids in enumerate(encoded):
            if len(ids) > room:
                prefix = None if prompt_prefixes is None else prompt_prefixes[place]
                encoded[place] = self._cut_plain(ids, texts[place], prefix, room)
                if lost is not None:
                    lost.append(len(ids) - len(encoded[place]))
        return [[*before, *ids, *after] for ids in encoded]

    def _cut_plain(
        self, ids: list[int], text: str, prefix: PromptPrefix | None, room: int
    ) -> list[int]:
        """Return at most ``room`` ids of a text that has more."""

        def encode(text: str) -> list[int]:
            return self.user_text.encode([self.leading_space + text])[0]

        if prefix is not None and prefix.dialogue:
            own = Dialogue.parse(text.removeprefix(prefix.text))
            short = own.shortened(lambda part: len(encode(prefix.text + part.text)) <= room)
            return encode(prefix.text + short.text)[:room]
        n_kept = room  # ids kept at the beginning; the remaining room is for the end
        if prefix is not None and self.truncate == "start":
            kept = prefix.text.rstrip()  # the blank at its end may belong to the next word's token
            n_kept = min(room, len(encode(kept))) if kept else 0
        return ids[:n_kept] + ids[len(ids) - (room - n_kept) :]


def check_positions(
    n_positions: int | None,
    *,
    decoder_only: bool,
    max_input_length: int,
    max_output_length: int,
    prompt_length: int = 0,
) -> None:
    """Raise a `ConfigError` if lengths exceed a model's maximum number of positions."""
    first = "data.max_input_length" + (" + skills.length" if prompt_length else "")
    lengths = {first: max_input_length + prompt_length}
    lengths["data.max_output_length"] = max_output_length
    if decoder_only:
        lengths = {" + ".join(lengths): sum(lengths.values())}
    for name, length in lengths.items():
        if n_positions is not None and length > n_positions:
            raise ConfigError(
                f"{name} ({length}) must be at most {n_positions}, the backbone's maximum number "
                "of positions; lower it, or use a backbone with more"
            )


def wants_leading_space(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether a leading blank changes a word's tokens without adding one."""
    without = _bare(tokenizer, _PROBE)
    spaced = _bare(tokenizer, " " + _PROBE)
    return spaced != without and len(spaced) <= len(without)


def special_ids(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Return the ids that the tokenizer adds before and after a text."""
    bare = _bare(tokenizer, _PROBE)
    full = list(tokenizer(_PROBE)["input_ids"])  # pyright: ignore[reportArgumentType]
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return full[:start], full[start + len(bare) :]
    raise ValueError(
        f"{type(tokenizer).__name__} encodes '{_PROBE}' as {bare} without and {full} with special "
        "tokens; the latter must contain the former."
    )


def tokenizer_identity(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a hash of everything that affects the tokenizer's encoding, except padding."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    pipeline = json.loads(backend.to_str()) if backend is not None else {}
    pipeline = {k: v for k, v in pipeline.items() if k not in ("padding", "truncation")}
    parts = {
        "class": type(tokenizer).__name__,
        "transformers": transformers.__version__,
        "pipeline": pipeline,
        "vocabulary": sorted(tokenizer.get_vocab().items()),
        "special": {key: str(value) for key, value in tokenizer.special_tokens_map.items()},
        "ids": [tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id],
        "probe": tokenizer(_BEHAVIOUR_PROBE, verbose=False)["input_ids"],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _bare(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])  # pyright: ignore
