"""The pieces of an answer are the answer, whatever arrives."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from mttl.serving.generation_request import GenerationRequest, Piece
from mttl.serving.stream_decoder import StreamDecoder, settled

END = 1


class Words:
    """A tokenizer whose tokens are given texts, decoded as bytes: half characters and blanks."""

    PARTS = (b"", b"</s>", b" ", b"ab", b" ab", b"\xe2", b"\x82", b"\xac", b"\n", b"c ", b".")

    def __init__(self, clean: bool = False) -> None:
        self.clean_up_tokenization_spaces = clean

    def __len__(self) -> int:
        return len(self.PARTS)

    def convert_ids_to_tokens(self, token: int) -> str:
        return repr(self.PARTS[token])

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        kept = [self.PARTS[i] for i in ids if i > END or not skip_special_tokens]
        text = b"".join(kept).decode("utf-8", errors="replace")
        return text.replace(" .", ".") if self.clean_up_tokenization_spaces else text


def byte_fallback(strip: bool) -> PreTrainedTokenizerFast:
    """Return a tokenizer that decodes as Llama 2 does (with `strip`), or as Gemma."""
    blank = "\N{LOWER ONE EIGHTH BLOCK}"
    parts = ["<s>", "</s>", "<pad>", blank, "ab", f"{blank}ab"]
    parts += ["<0xE2>", "<0x82>", "<0xAC>", "<0x0A>", "<0x20>", "a", "."]
    tokenizer = Tokenizer(WordLevel({part: place for place, part in enumerate(parts)}, "<pad>"))
    blanks = decoders.Replace(blank, " ")
    cut = [decoders.Strip(" ", 1, 0)] if strip else []
    tokenizer.decoder = decoders.Sequence(  # type: ignore[assignment]
        [blanks, decoders.ByteFallback(), decoders.Fuse(), *cut]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )


FALLBACKS = [byte_fallback(True), byte_fallback(False)]
EURO = [6, 7, 8]  # its three bytes


def answered(tokenizer: Any, ids: list[int], **settings: Any) -> list[Piece]:
    pieces: list[Piece] = []
    settings = {"most_tokens": len(ids) + 1, **settings}
    wanted = GenerationRequest(task_id=0, prompt=[], send=pieces.append, **settings)
    growing = StreamDecoder(wanted, tokenizer, {END})
    scored = settings.get("n_logprobs") is not None
    for token in [*ids, END]:
        if not growing.ended:
            growing.add(token, (-float(token), [(token, -float(token))]) if scored else None)
    return pieces


IDS = st.lists(st.integers(2, len(Words.PARTS) - 1), max_size=12)
# Whole characters as often as parts of them.
BYTES = st.lists(st.one_of(st.just(EURO), st.integers(2, 12).map(lambda i: [i])), max_size=9).map(
    lambda parts: [token for part in parts for token in part]
)
STOPS = st.lists(st.sampled_from(["ab", "b ", "\n", "€", "bab", ". "]), max_size=2).map(tuple)


@pytest.mark.parametrize(
    ("tokenizer", "scored"),
    [(Words(), None), (Words(True), None), (Words(), 1), (FALLBACKS[0], 1), (FALLBACKS[1], 1)],
    ids=["words", "cleaned", "scored words", "llama", "gemma"],
)
@given(data=st.data(), stop=STOPS)
def test_a_stream_joins_to_the_whole_answer(tokenizer: Any, scored: Any, data, stop: Any) -> None:
    ids = data.draw(IDS if isinstance(tokenizer, Words) else BYTES)
    (whole,) = answered(tokenizer, ids, stop=stop, n_logprobs=scored)
    pieces = answered(tokenizer, ids, stop=stop, n_logprobs=scored, stream=True)
    assert "".join(piece.text for piece in pieces) == whole.text
    assert pieces[-1].finish == whole.finish == "stop"
    assert sum(piece.n_tokens for piece in pieces) == whole.n_tokens
    assert not any(text in whole.text for text in stop)
    assert [token for piece in pieces for token in piece.tokens] == list(whole.tokens)
    for token in whole.tokens:
        assert whole.text[token.offset :].startswith(token.text)
    if scored:
        assert "".join(token.text for token in whole.tokens) == whole.text
    if not stop:
        assert whole.text == tokenizer.decode(ids, skip_special_tokens=True).strip()
        assert whole.n_tokens == len(ids)
        assert [-token.logprob for token in whole.tokens] == (ids if scored else [])


@pytest.mark.parametrize("tokenizer", FALLBACKS, ids=["llama", "gemma"])
def test_a_run_of_bytes_waits_for_its_end(tokenizer: Any) -> None:
    (whole,) = answered(tokenizer, [*EURO, 11], n_logprobs=0)
    assert [token.text for token in whole.tokens] == ["€", "", "", "a"]
    texts = [piece.text for piece in answered(tokenizer, [4, *EURO, 2, 11, 4], stream=True)]
    assert texts == ["ab", "€a", "ab", ""]
    texts = [piece.text for piece in answered(tokenizer, [*EURO, 6, 11], stream=True)]
    assert texts == ["\N{REPLACEMENT CHARACTER}" * 4 + "a", ""]


def test_a_stream_does_not_wait_for_more_than_it_has_to() -> None:
    texts = [piece.text for piece in answered(Words(), [3, 2, 3, 3], stream=True)]
    assert texts == ["ab", " ab", "ab", ""]
    cleaned = [piece.text for piece in answered(Words(True), [3, 2, 3, 3], stream=True)]
    assert cleaned == ["ab", " abab"]


@pytest.mark.parametrize(
    ("text", "stops", "kept"),
    [
        ("a b", (), "a b"),
        (" a b ", (), "a b"),
        ("a b\N{REPLACEMENT CHARACTER}", (), "a b"),
        ("ab", ("bc",), "a"),
        ("ab", ("b", "abc"), ""),
        ("a END", (" END.",), "a"),
    ],
)
def test_what_is_settled(text: str, stops: tuple[str, ...], kept: str) -> None:
    assert settled(text, stops) == kept
