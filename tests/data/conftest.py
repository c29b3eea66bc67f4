"""Small gyms and tokenizers for the tests of the data room; nothing is downloaded."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from mttl.data.gym import Gym

GymMaker = Callable[..., Gym]


@pytest.fixture
def make_gym(tmp_path: Path) -> GymMaker:
    """Return a function that writes a gym: task -> number of rows, and gives it back."""

    def make(
        sizes: Mapping[str, int],
        *,
        samples: Sequence[int] = (100, 13),
        k: int = 16,
        folder: str = "gym",
        table: str | None = None,
    ) -> Gym:
        root = tmp_path / folder
        for task, size in sizes.items():
            (root / task).mkdir(parents=True)
            for sample in samples:
                for split, n in (("train", size), ("dev", 4), ("test", 3)):
                    # A test file is the same in all samples, as CrossFit's are.
                    mark = split if split == "test" else f"{split} {sample}"
                    lines = [f"{task} {mark} {i}\tanswer {i}\tother {i}\n" for i in range(n)]
                    path = root / task / f"{task}_{k}_{sample}_{split}.tsv"
                    path.write_text("".join(lines), encoding="utf-8")
        if table is not None:
            (root / "TASKS.csv").write_text(table, encoding="utf-8")
        return Gym(root)

    return make


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


@pytest.fixture
def crossfit() -> Gym:
    """The real CrossFit subset, where the checkout has it beside it."""
    default = Path(__file__).parents[2].parent / "shared"
    folder = Path(os.environ.get("MTTL_SHARED", default)) / "crossfit"
    if not folder.is_dir():
        pytest.skip(f"no CrossFit subset at '{folder}'; set MTTL_SHARED to the folder above it")
    return Gym(folder)
