import pytest
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from mttl.data.encode import (
    PromptPrefix,
    TextEncoder,
    check_positions,
    special_ids,
    tokenizer_identity,
    wants_leading_space,
)
from mttl.io.errors import ConfigError


def encoder(tokenizer, decoder_only=False, max_input_length=50, max_output_length=20, **more):
    lengths = {"max_input_length": max_input_length, "max_output_length": max_output_length}
    return TextEncoder(tokenizer, decoder_only=decoder_only, **lengths, **more)


def byte_ids(text):
    return [byte + 3 for byte in text.encode()]


END = 1  # ByT5's


def test_leading_space_only_where_it_changes_a_token_for_free(
    byte_tokenizer, bart_like_tokenizer, gpt_like_tokenizer
):
    assert not wants_leading_space(byte_tokenizer)
    assert wants_leading_space(bart_like_tokenizer)
    assert wants_leading_space(gpt_like_tokenizer)


def test_texts_for_an_encoder_decoder(byte_tokenizer, bart_like_tokenizer):
    encode = encoder(byte_tokenizer)
    assert encode.prompts(["[a] naïve"]) == [[*byte_ids("[a] naïve"), END]]
    assert encode.answers(["yes"]) == [[*byte_ids("yes"), END]]
    encode = encoder(bart_like_tokenizer)
    assert encode.prompts(["the train"])[0] == bart_like_tokenizer(" the train")["input_ids"]
    assert encode.answers(["the"])[0] == bart_like_tokenizer(" the")["input_ids"]


def test_bpe_for_a_decoder_only_model(bart_like_tokenizer, gpt_like_tokenizer):
    bart = encoder(bart_like_tokenizer, decoder_only=True)
    (prompt,), (answer,) = bart.prompts(["the train"]), bart.answers(["the"])
    assert prompt[0] == bart_like_tokenizer.bos_token_id
    assert bart_like_tokenizer.eos_token_id not in prompt
    assert answer[-1] == bart_like_tokenizer.eos_token_id
    decoded = bart_like_tokenizer.decode(prompt + answer, skip_special_tokens=True)
    assert decoded == " the train\n the"
    gpt = encoder(gpt_like_tokenizer, decoder_only=True)
    assert gpt.answers(["the"])[0][-1] == gpt_like_tokenizer.eos_token_id
    assert gpt_like_tokenizer.decode(gpt.prompts(["the"])[0]) == " the\n"


@pytest.mark.parametrize("decoder_only", [False, True])
def test_truncation_keeps_what_stands_before_and_the_end_tokens(byte_tokenizer, decoder_only):
    last = byte_ids("\n")[0] if decoder_only else END
    encode = encoder(byte_tokenizer, decoder_only, max_input_length=8)
    assert encode.prompts(["[task] a long input"]) == [[*byte_ids("[task] "), last]]
    encode = encoder(byte_tokenizer, decoder_only, 10, 3, truncate="start")
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
    for positions, decoder_only, prompt, message in (
        (19, False, 0, r"data.max_input_length \(20\) must be at most 19, the backbone"),
        (32, True, 0, r"length \+ data.max_output_length \(33\) must be at most 32, the backbone"),
        (24, False, 5, r"max_input_length \+ skills.length \(25\) must be at"),
        (37, True, 5, r"skills.length \+ data.max_output_length \(38\) must"),
    ):
        with pytest.raises(ConfigError, match=message):
            check_positions(positions, decoder_only=decoder_only, prompt_length=prompt, **lengths)


def test_what_cannot_be_encoded(byte_tokenizer, gpt_like_tokenizer):
    for name in ("max_input_length", "max_output_length"):
        with pytest.raises(ValueError, match=rf"{name} \(1\) must be larger than 1"):
            encoder(byte_tokenizer, **{name: 1})
    bare = PreTrainedTokenizerFast(tokenizer_object=gpt_like_tokenizer.backend_tokenizer)
    with pytest.raises(ValueError, match="has no end token, so generation could not stop"):
        encoder(bare).answers(["a"])

    class Odd(ByT5Tokenizer):
        def build_inputs_with_special_tokens(self, token_ids_0, token_ids_1=None):
            return token_ids_0[::-1]

    with pytest.raises(ValueError, match=r"Odd encodes 'the' as .* the latter must contain"):
        special_ids(Odd())


def test_identity_changes_with_what_matters(
    byte_tokenizer, bart_like_tokenizer, gpt_like_tokenizer
):
    changed = ByT5Tokenizer(eos_token="<end>"), ByT5Tokenizer(extra_ids=7)
    others = byte_tokenizer, *changed, bart_like_tokenizer, gpt_like_tokenizer
    assert len(set(map(tokenizer_identity, others))) == len(others)
