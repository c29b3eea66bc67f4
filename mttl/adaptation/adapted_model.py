"""A model that was adapted to one task and answers inputs."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

from mttl.adaptation.few_shot import FewShotResult
from mttl.config.schema import Config
from mttl.data.collate import pad_id_of, padded_inputs
from mttl.data.encode import TextEncoder
from mttl.models.backbone import is_decoder_only
from mttl.skills.skilled_model import SkilledModel
from mttl.training.precision import precision_plugin
from mttl.training.text_to_text import TextToTextModule


@dataclass(frozen=True)
class AdaptedModel:
    """A model that was adapted to one task; call it with inputs to get its answers.

    Args:
        module: The adapted model with its tokenizer; its router knows the one task.
        config: How it was adapted.
        result: The score on the development rows, and the step whose weights were kept.
        opening: What stands before every input, as in training.
    """

    module: TextToTextModule
    config: Config
    result: FewShotResult
    opening: str

    @property
    def model(self) -> SkilledModel:
        """Backbone, skills and router; the task has the id 0."""
        return self.module.model

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The backbone's."""
        return self.module.tokenizer

    def __call__(self, inputs: Sequence[str]) -> list[str]:
        """Answer.

        Returns:
            An answer to each, in order.

        Raises:
            TypeError: If ``inputs`` is a single text rather than a list of them.
        """
        if isinstance(inputs, str):
            raise TypeError(f"inputs ('{inputs}') must be a list of texts; write ['{inputs}']")
        if not inputs:
            return []
        decoder_only = is_decoder_only(self.model.backbone)
        data = self.config.data
        encoder = TextEncoder(
            self.tokenizer,
            decoder_only=decoder_only,
            max_input_length=data.max_input_length,
            max_output_length=data.max_output_length,
            truncate=data.truncate,
        )
        texts = [self.opening + text.strip() for text in inputs]
        prompts = encoder.prompts(texts, [self.opening] * len(texts))
        size, device = data.eval_batch_size, self.module.device
        precision = precision_plugin(self.config.trainer.precision, device.type)
        self.module.eval()
        answers: list[str] = []
        for start in range(0, len(prompts), size):
            batch = padded_inputs(
                prompts[start : start + size], pad_id_of(self.tokenizer), left=decoder_only
            )
            batch = {name: value.to(device) for name, value in batch.items()}
            task_ids = torch.zeros(len(batch["input_ids"]), dtype=torch.long, device=device)
            with precision.forward_context():
                answers += self.module.answer(task_ids, batch)
        return answers
