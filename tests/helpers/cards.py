"""Cards of exported weights, asked as they say; and runs whose answers differ by the question."""

import contextlib
import io
import json
import re
import warnings
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from helpers.chat_templates import INSTRUCTION, save_tokenizer
from helpers.gyms import TINY_LLAMA, TINY_T5, make_run, write_gym
from mttl.inference.model_card import QUESTION

QUESTIONS = ["abca", "is it so?", "a\nb.", "b c"]
# Random weights that are large: answers depend on the question without any training.
ASKED: dict[str, dict] = {
    "t5": {
        "backbone": {**TINY_T5, "initial_scale": {"*": 3.0}},
        "data": {"descriptions": True, "max_input_length": 64},
        "generation": {"num_beams": 3, "length_penalty": 0.5},
    },
    "llama": {"backbone": {**TINY_LLAMA, "initial_scale": {"*": 3.0}}},
    "chat": {
        "backbone": {**TINY_LLAMA, "initial_scale": {"*": 8.0}},
        "data": {"template": "chat", "system": "Answer.", "max_input_length": 160},
    },
    # A tokenizer that joins the line break after a question with the question.
    "joined": {"backbone": {**TINY_LLAMA, "initial_scale": {"*": 3.0}}},
    "joined chat": {
        "backbone": {**TINY_LLAMA, "initial_scale": {"*": 8.0}},
        "data": {"template": "chat", "max_input_length": 60},
    },
}


def train_asked(folder: Path, kind: str) -> Path:
    """Train a run of a kind of `ASKED` for a step; return its folder."""
    gym = write_gym(folder / "gym", description="what {} does")
    sections = {name: dict(settings) for name, settings in ASKED[kind].items()}
    if kind == "chat":
        sections["backbone"]["tokenizer"] = str(save_tokenizer(folder / "tokenizer"))
    if "joined" in kind:
        tokenizer = joined_tokenizer()
        tokenizer.chat_template = "{{ bos_token }}" + INSTRUCTION
        tokenizer.save_pretrained(folder / "tokenizer")
        sections["backbone"]["tokenizer"] = str(folder / "tokenizer")
    return make_run(folder, "data.evaluate=[test]", gym=gym, **sections)


def joined_tokenizer() -> PreTrainedTokenizerFast:
    """Return one of which "it.", a line break and what stands around may be one token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["it.\n is?\n ab.\n"] * 4, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<s>"
    )


def run_card(folder: Path, questions: Sequence[str]) -> list[str]:
    """Run the lines of a card, once for each question in the place of its example."""
    (code,) = re.findall(r"```python\n(.*?)\n```", (folder / "README.md").read_text(), re.DOTALL)
    example = json.dumps(QUESTION)
    assert code.count(example) == 1
    answers = []
    for question in questions:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(code.replace(example, repr(question)), {})
        answers.append(printed.getvalue().strip())
    return answers
