"""Small tokenizers for the tests of the data room; nothing is downloaded."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from helpers.gym_fixtures import crossfit, make_gym  # noqa: F401


@pytest.fixture(scope="session")
def byte_tokenizer() -> ByT5Tokenizer:
    return ByT5Tokenizer()


def train_bpe() -> Tokenizer:
    """A byte-level BPE as GPT-2's and BART's: ' the' and 'the' are one token each."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the the answer the other the train test dev"] * 4, trainer)
    return tokenizer


@pytest.fixture(scope="session")
def bart_like_tokenizer() -> PreTrainedTokenizerFast:
    """Puts '<s>' before and '</s>' after a text."""
    tokenizer = train_bpe()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )


@pytest.fixture(scope="session")
def gpt_like_tokenizer() -> PreTrainedTokenizerFast:
    """Adds no special token to a text, and has no padding token."""
    return PreTrainedTokenizerFast(tokenizer_object=train_bpe(), bos_token="</s>", eos_token="</s>")
