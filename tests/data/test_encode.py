import pytest
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from mttl.data.encode import (
    TextEncoder,
    check_positions,
    special_ids,
    tokenizer_identity,
    wants_leading_space,
)
from mttl.data.prompt_prefix import PromptPrefix
from mttl.io.errors import ConfigError


def encoder(tokenizer, decoder_only=False, max_input_length=50, max_output_length=20):
    return TextEncoder(
        tokenizer,
        decoder_only=decoder_only,
        max_input_length=max_input_length,
        max_output_length=max_output_length,
    )


def byte_ids(text):
    return [byte + 3 for byte in text.encode()]


END = 1  # ByT5's


def test_leading_space_only_where_it_changes_a_token_for_free(
    byte_tokenizer, bart_like_tokenizer, gpt_like_tokenizer
):
    assert not wants_leading_space(byte_tokenizer)
    assert wants_leading_space(bart_like_tokenizer)
    assert wants_leading_space(gpt_like_tokenizer)


def test_bytes_for_an_encoder_decoder(byte_tokenizer):
    encode = encoder(byte_tokenizer)
    assert encode.prompts(["[a] naïve"]) == [[*byte_ids("[a] naïve"), END]]
    assert encode.answers(["yes"]) == [[*byte_ids("yes"), END]]
    # The same as the tokenizer's own encoding.
    assert encode.prompts(["[a] x"])[0] == byte_tokenizer("[a] x")["input_ids"]


def test_bpe_for_an_encoder_decoder(bart_like_tokenizer):
    encode = encoder(bart_like_tokenizer)
    assert encode.prompts(["the train"])[0] == bart_like_tokenizer(" the train")["input_ids"]
    assert encode.answers(["the"])[0] == bart_like_tokenizer(" the")["input_ids"]


def test_bpe_for_a_decoder_only_model(bart_like_tokenizer, gpt_like_tokenizer):
    prompt, answer = (
        encoder(bart_like_tokenizer, decoder_only=True).prompts(["the train"])[0],
        encoder(bart_like_tokenizer, decoder_only=True).answers(["the"])[0],
    )
    assert prompt[0] == bart_like_tokenizer.bos_token_id
    assert bart_like_tokenizer.eos_token_id not in prompt
    assert answer[-1] == bart_like_tokenizer.eos_token_id
    decoded = bart_like_tokenizer.decode(prompt + answer, skip_special_tokens=True)
    assert decoded == " the train\n the"
    gpt = encoder(gpt_like_tokenizer, decoder_only=True)
    assert gpt.answers(["the"])[0][-1] == gpt_like_tokenizer.eos_token_id
    assert gpt_like_tokenizer.decode(gpt.prompts(["the"])[0]) == " the\n"


@pytest.mark.parametrize("decoder_only", [False, True])
def test_truncation_keeps_the_beginning_and_the_end_tokens(byte_tokenizer, decoder_only):
    encode = encoder(byte_tokenizer, decoder_only, max_input_length=8, max_output_length=3)
    last = byte_ids("\n")[0] if decoder_only else END
    assert encode.prompts(["[task] a long input"]) == [[*byte_ids("[task] "), last]]
    assert encode.answers(["answer"]) == [[*byte_ids("an"), END]]


@pytest.mark.parametrize("decoder_only", [False, True])
def test_truncation_at_the_start_keeps_what_stands_before(byte_tokenizer, decoder_only):
    encode = TextEncoder(
        *(byte_tokenizer,),
        decoder_only=decoder_only,
        max_input_length=10,
        max_output_length=3,
        truncate="start",
    )
    last = byte_ids("\n")[0] if decoder_only else END
    lost = []
    texts = ["[task] a long input", "[b] short", "no opening"]
    prompt_prefixes = [PromptPrefix("[task] "), PromptPrefix("[b] "), PromptPrefix("")]
    assert encode.prompts(texts, prompt_prefixes, lost) == [
        [*byte_ids("[task]put"), last],
        [*byte_ids("[b] short"), last],
        [*byte_ids("o opening"), last],
    ]
    assert lost == [10, 1]
    assert encode.prompts(["[a much longer task] x"], [PromptPrefix("[a much longer task] ")]) == [
        [*byte_ids("[a much l"), last]
    ]
    assert encode.answers(["answer"], lost) == [[*byte_ids("an"), END]]
    assert lost == [10, 1, 4]


def test_lengths_above_the_positions_of_a_model():
    lengths = {"max_input_length": 20, "max_output_length": 13}
    check_positions(None, decoder_only=True, **lengths)
    check_positions(20, decoder_only=False, **lengths)
    check_positions(33, decoder_only=True, **lengths)
    with pytest.raises(
        ConfigError, match=r"data.max_input_length \(20\) must be at most 19, the p"
    ):
        check_positions(19, decoder_only=False, **lengths)
    both = (
        r"data.max_input_length \+ data.max_output_length \(33\) must be at most 32, the positions"
    )
    with pytest.raises(ConfigError, match=both):
        check_positions(32, decoder_only=True, **lengths)
    with pytest.raises(ConfigError, match=r"max_input_length \+ skills.length \(25\) must be at"):
        check_positions(24, decoder_only=False, prompt_length=5, **lengths)
    with pytest.raises(ConfigError, match=r"skills.length \+ data.max_output_length \(38\) must"):
        check_positions(37, decoder_only=True, prompt_length=5, **lengths)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ({"max_input_length": 1}, r"max_input_length \(1\) must be larger than 1"),
        ({"max_output_length": 1}, r"max_output_length \(1\) must be larger than 1"),
    ],
)
def test_lengths_without_room_for_text(byte_tokenizer, lengths, message):
    with pytest.raises(ValueError, match=message):
        encoder(byte_tokenizer, **lengths)


def test_no_end_token(gpt_like_tokenizer):
    bare = PreTrainedTokenizerFast(tokenizer_object=gpt_like_tokenizer.backend_tokenizer)
    with pytest.raises(ValueError, match="has no end token, so generation could not stop"):
        encoder(bare)


def test_a_tokenizer_whose_special_tokens_cannot_be_told_apart():
    class Odd(ByT5Tokenizer):
        def build_inputs_with_special_tokens(self, token_ids_0, token_ids_1=None):
            return token_ids_0[::-1]

    with pytest.raises(ValueError, match=r"Odd encodes 'the' as .* the first must be part"):
        special_ids(Odd())


def test_identity_changes_with_what_matters(
    byte_tokenizer, bart_like_tokenizer, gpt_like_tokenizer
):
    identities = [
        tokenizer_identity(tokenizer)
        for tokenizer in (
            byte_tokenizer,
            ByT5Tokenizer(eos_token="<end>"),
            ByT5Tokenizer(extra_ids=7),
            bart_like_tokenizer,
            gpt_like_tokenizer,
        )
    ]
    assert len(set(identities)) == len(identities)
