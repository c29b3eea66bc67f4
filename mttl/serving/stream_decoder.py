"""Decode the text of an answer while its tokens arrive.

Answers are stripped, so blanks are held back until text follows. Also held back are a possible
beginning of a stop text, incomplete characters, and, for tokenizers with byte fallback, a run of
bytes until another token follows. Text that was sent never changes.
"""

import re
from collections.abc import Sequence, Set

from transformers import PreTrainedTokenizerBase

from mttl.models.generation import decode
from mttl.serving.generation_request import GenerationRequest, Piece, ScoredToken

# A token's log-probability, and alternative ids with theirs.
TokenScore = tuple[float, Sequence[tuple[int, float]]]
UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # decoded from an incomplete character
BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")  # a token of byte fallback


class StreamDecoder:
    """Collects the tokens of an answer up to one of ``ends``, and sends its settled text."""

    def __init__(
        self, wanted: GenerationRequest, tokenizer: PreTrainedTokenizerBase, ends: Set[int]
    ) -> None:
        self.wanted, self.ended = wanted, False
        self._tokenizer, self._ends = tokenizer, ends
        self._ids: list[int] = []
        self._n_whole = 0  # tokens whose text is final
        self._scores: list[TokenScore] = []
        self._offsets = [0]  # start of each token's text, and of the next one's
        self._sent = 0
        self._n_sent_tokens = 0
        self._streams = wanted.stream
        self._reads = wanted.stream or bool(wanted.stop) or wanted.n_logprobs is not None

    def add(self, token: int, score: TokenScore | None = None) -> None:
        """Add the next token; send the settled text, or all text after the last token."""
        if token in self._ends:
            self._end("stop", self._text())
            return
        self._ids.append(token)
        if score is not None:
            self._scores.append(score)
        text = self._text() if self._reads else ""
        stops = [place for stop in self.wanted.stop if (place := text.find(stop)) >= 0]
        # A later byte may reduce the number of earlier characters.
        self._offsets = [*(min(offset, len(text)) for offset in self._offsets), len(text)]
        if stops:
            cut = text[: min(stops)]
            starts = zip(self._scores, self._offsets, strict=False)
            self._scores = [score for score, offset in starts if offset < len(cut)]
            self._end("stop", cut)
        elif len(self._ids) >= self.wanted.most_tokens:
            self._end("length", self._text())
        elif self._streams:
            eager = not getattr(self._tokenizer, "clean_up_tokenization_spaces", False)
            if self._in_bytes():
                text = self._text(self._n_whole)
            else:
                self._n_whole = len(self._ids)
            self._send(text, settled(text, self.wanted.stop, eager=eager))

    def finish(self, ids: Sequence[int]) -> None:
        """Add all tokens of a complete answer, and send it."""
        self._streams = False
        for token in ids:
            if not self.ended:
                self.add(token)

    def _end(self, reason: str, text: str) -> None:
        self.ended = True
        self._send(text, text.strip(), reason)

    def _send(self, text: str, answer: str, finish: str | None = None) -> None:
        """Send the new part of an answer; ``text`` is the unstripped answer."""
        blanks = len(text) - len(text.lstrip())
        tokens = []
        for place in range(self._n_sent_tokens, len(self._scores)):
            begin, end = (
                min(max(offset - blanks, 0), len(answer))
                for offset in self._offsets[place : place + 2]
            )
            if finish is None and self._offsets[place + 1] - blanks > len(answer):
                break  # its text is not complete yet
            self._n_sent_tokens += 1
            logprob, others = self._scores[place]
            texts = [decode(self._tokenizer, [other], skip=False) for other, _ in others]
            named = tuple(zip(texts, (value for _, value in others), strict=True))
            tokens.append(ScoredToken(answer[begin:end], begin, logprob, named))
        new, self._sent = answer[self._sent :], max(len(answer), self._sent)
        if new or tokens or finish is not None:
            n_tokens = 0 if finish is None else len(self._ids)
            self.wanted.send(Piece(new, tuple(tokens), finish, n_tokens))

    def _in_bytes(self) -> bool:
        """Return whether the last token belongs to an open run of bytes."""
        token = self._ids[-1]
        if BYTE.fullmatch(str(self._tokenizer.convert_ids_to_tokens(token))):
            return True
        is_open = self._n_whole < len(self._ids) - 1
        return is_open and not decode(self._tokenizer, [token])

    def _text(self, n_tokens: int | None = None) -> str:
        return decode(self._tokenizer, self._ids[:n_tokens])


def settled(text: str, stops: Sequence[str], *, eager: bool = True) -> str:
    """Return the stripped beginning of a text that cannot change any more.

    The text contains no stop text. Unless ``eager``, it ends with a whole word, because blanks
    within words may depend on the following text.
    """
    text = text.rstrip(UNFINISHED)
    held = max(
        (
            size
            for stop in stops
            for size in range(1, min(len(stop), len(text) + 1))
            if text.endswith(stop[:size])
        ),
        default=0,
    )
    text = text[: len(text) - held].rstrip()
    if not eager:
        text = text[: max((place for place, c in enumerate(text) if c.isspace()), default=0)]
    return text.strip()
