"""Encode user text, in which spelled special tokens are ordinary text.

Text is encoded as usual, including merges with a chat template's text. If it contains other special
tokens than the template's, it is encoded again: fast tokenizers use a copy with renamed special
tokens (``split_special_tokens`` would still find T5's ``</s>`` in the vocabulary), others encode
piece by piece.
"""

import json
import re
from collections.abc import Sequence
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

_MARK = uuid4().hex  # occurs in no text
_copies: WeakKeyDictionary[PreTrainedTokenizerBase, dict[Any, Tokenizer]] = WeakKeyDictionary()


class UserText:
    """Encodes text in which only the added tokens of a chat template's text are special.

    The tokenizer is not changed.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template: str = "") -> None:
        self._tokenizer, self._mark = tokenizer, _MARK
        names = dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
        for token_id, token in tokenizer.added_tokens_decoder.items():  # type: ignore[attr-defined]
            name = str(token)
            if token.special or (name in template and not name.isspace()):
                names[name] = token_id
        self._special = frozenset(names.values())
        self._secret = {name: f"{_MARK}-{token_id}-" for name, token_id in names.items() if name}
        longest_first = sorted(map(re.escape, self._secret), key=len, reverse=True)
        self._pattern = re.compile("|".join(longest_first) or "(?!)")

    def hide(self, text: str) -> str:
        """Return a template's text with secret names instead of special tokens."""
        return self._pattern.sub(lambda found: self._secret[found[0]], text)

    def encode(self, texts: Sequence[str], hidden: Sequence[str] | None = None) -> list[list[int]]:
        """Return the ids of texts, without special tokens around them."""
        # verbose=False: long texts are truncated later, so no warning is needed.
        given: Any = self._tokenizer(list(texts), add_special_tokens=False, verbose=False)
        encoded: list[list[int]] = given["input_ids"]
        for place, (ids, text) in enumerate(zip(encoded, hidden or texts, strict=True)):
            if sum(token in self._special for token in ids) != text.count(self._mark):
                encoded[place] = self._encode_hidden(text)
        return encoded

    def _encode_hidden(self, text: str) -> list[int]:
        if self._tokenizer.is_fast:
            return self._copy.encode(text, add_special_tokens=False).ids
        encode: Any = self._tokenizer.encode
        ids: list[int] = []
        for place, piece in enumerate(re.split(f"{self._mark}-([0-9]+)-", text)):
            if place % 2:
                ids.append(int(piece))
            else:
                ids += encode(piece, add_special_tokens=False, split_special_tokens=True)
        return ids

    @property
    def _copy(self) -> Tokenizer:
        """Copy of the tokenizer's pipeline with secret names."""
        known = _copies.setdefault(self._tokenizer, {})
        key = len(self._tokenizer), *self._secret.items()
        if key not in known:
            known[key] = self._renamed()
        return known[key]

    def _renamed(self) -> Tokenizer:
        secret = self._secret
        tree = json.loads(self._tokenizer.backend_tokenizer.to_str())  # type: ignore[attr-defined]
        tree |= {"post_processor": None, "padding": None, "truncation": None}
        for token in tree["added_tokens"]:
            if token["content"] in secret:
                token |= {"content": secret[token["content"]], "normalized": False}
        model = tree["model"]
        if isinstance(model["vocab"], dict):
            model["vocab"] = {secret.get(name, name): i for name, i in model["vocab"].items()}
        else:
            model["vocab"] = [[secret.get(name, name), score] for name, score in model["vocab"]]
        if model.get("merges"):
            joins = [pair for pair in model["merges"] if "".join(pair) not in secret]
            model["merges"] = [pair for pair in joins if not secret.keys() & {*pair}]
        if model.get("unk_token") in secret:
            model["unk_token"] = secret[model["unk_token"]]
        return Tokenizer.from_str(json.dumps(tree))
