"""The text of an answer while its tokens arrive: what of it is settled, and where it ends.

Answers are sent without blanks around them, as everywhere; so blanks are held back until something
follows. Held back, too, are the beginning of a text before which the answer would end, the first
bytes of a character, and bytes of a tokenizer that reads a run of them as a whole, until another
token ends the run. What was sent never has to be taken back.
"""

import re
from collections.abc import Sequence, Set

from transformers import PreTrainedTokenizerBase

from mttl.serving.generation_request import GenerationRequest, Piece, ScoredToken

# A token's log-probability, and ids with theirs that might have stood in its place.
TokenScore = tuple[float, Sequence[tuple[int, float]]]
UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # what a decoder makes of some bytes of a character
BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")  # what byte fallback splits characters into


class StreamDecoder:
    """Collects the tokens of an answer, of which ``ends`` end it, and sends its settled text."""

    def __init__(
        self, wanted: GenerationRequest, tokenizer: PreTrainedTokenizerBase, ends: Set[int]
    ) -> None:
        self.wanted, self.ended = wanted, False
        self._tokenizer, self._ends = tokenizer, ends
        self._ids: list[int] = []
        self._n_whole = 0  # tokens whose text no further byte changes
        self._scores: list[TokenScore] = []
        self._offsets = [0]  # where the text of each token begins, and the next one's
        self._sent = 0
        self._n_sent_tokens = 0
        self._streams = wanted.stream
        self._reads = wanted.stream or bool(wanted.stop) or wanted.n_logprobs is not None

    def add(self, token: int, score: TokenScore | None = None) -> None:
        """Take the next token; send what is settled, or the rest if it is the last."""
        if token in self._ends:
            self._end("stop", self._text())
            return
        self._ids.append(token)
        if score is not None:
            self._scores.append(score)
        text = self._text() if self._reads else ""
        stops = [place for stop in self.wanted.stop if (place := text.find(stop)) >= 0]
        # A later byte may make fewer characters of those before it.
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
        """Take all tokens at once, and send the answer."""
        self._streams = False
        for token in ids:
            if not self.ended:
                self.add(token)

    def _end(self, reason: str, text: str) -> None:
        self.ended = True
        self._send(text, text.strip(), reason)

    def _send(self, text: str, answer: str, finish: str | None = None) -> None:
        """Send the new part of an answer; ``text`` is the answer with surrounding blanks."""
        blanks = len(text) - len(text.lstrip())
        tokens = []
        for place in range(self._n_sent_tokens, len(self._scores)):
            begin, end = (
                min(max(offset - blanks, 0), len(answer))
                for offset in self._offsets[place : place + 2]
            )
            if finish is None and self._offsets[place + 1] - blanks > len(answer):
                break  # the rest of its text comes later
            self._n_sent_tokens += 1
            logprob, others = self._scores[place]
            named = tuple((str(self._tokenizer.decode([other])), value) for other, value in others)
            tokens.append(ScoredToken(answer[begin:end], begin, logprob, named))
        new, self._sent = answer[self._sent :], max(len(answer), self._sent)
        if new or tokens or finish is not None:
            n_tokens = 0 if finish is None else len(self._ids)
            self.wanted.send(Piece(new, tuple(tokens), finish, n_tokens))

    def _in_bytes(self) -> bool:
        """Return whether the last token belongs to a run of bytes that is still open."""
        token = self._ids[-1]
        if BYTE.fullmatch(str(self._tokenizer.convert_ids_to_tokens(token))):
            return True
        is_open = self._n_whole < len(self._ids) - 1
        return is_open and not self._tokenizer.decode([token], skip_special_tokens=True)

    def _text(self, n_tokens: int | None = None) -> str:
        return str(self._tokenizer.decode(self._ids[:n_tokens], skip_special_tokens=True))


def settled(text: str, stops: Sequence[str], *, eager: bool = True) -> str:
    """Return the beginning of a text that cannot change any more, without blanks around it.

    The text contains no stop text. Unless ``eager``, it ends with a whole word, since blanks within
    words may depend on what follows.
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
