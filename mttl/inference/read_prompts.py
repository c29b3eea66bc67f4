"""Prompts that a model reads once, and answers that it reads after them.

Answers share the encoder states, or the cached keys and values of a decoder-only model. All of
a batch are computed together; the rows of an example follow each other as in beam search. The
prompt is repeated instead for models that route or weigh tokens, are compiled, keep a recurrent
state or take no positions, for prompt skills, and for decoder-only models in training.
"""

import copy
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional
from transformers.modeling_outputs import BaseModelOutput

from mttl.data.collate import TrainCollator, padded_inputs
from mttl.models.backbone import is_decoder_only
from mttl.models.generation import cache_argument
from mttl.models.teacher_forcing import forced_logits, run_at, shifted
from mttl.routing.token.masks import IGNORED
from mttl.skills.inputs.prompt import SkilledEmbedding
from mttl.skills.skilled_model import SkilledModel

Ids = Sequence[int]


def shares_prompts(model: SkilledModel) -> bool:
    """Return whether a model can read a prompt once for several answers."""
    backbone: Any = model.backbone
    by_token = model.routes_tokens or model.router.weighs_tokens
    if by_token or backbone._compiled_call_impl is not None:
        return False
    if not is_decoder_only(backbone):
        return True
    prompted = any(isinstance(module, SkilledEmbedding) for module in backbone.modules())
    positions = "position_ids" in inspect.signature(backbone.forward).parameters
    stateful = getattr(backbone, "_is_stateful", False)
    return positions and not (prompted or stateful or torch.is_grad_enabled())


def repeated_logits(
    model: SkilledModel,
    task_ids: Int[Tensor, "B"],
    prompts: Sequence[Ids],
    labels: Int[Tensor, "Bn L"],
    pad_id: int,
) -> tuple[Float[Tensor, "N V"], Int[Tensor, "N"]]:
    """Run the model on every prompt with every answer, as in training.

    Returns the logits of the N tokens of all answers, row by row, and these tokens.
    """
    n = len(labels) // len(prompts)
    rows = [
        {"input_ids": prompts[place // n], "labels": own[own != IGNORED].tolist(), "task_id": task}
        for place, (own, task) in enumerate(
            zip(labels, task_ids.repeat_interleave(n).tolist(), strict=True)
        )
    ]
    collate = TrainCollator(pad_id, is_decoder_only(model.backbone))
    batch = {name: value.to(labels.device) for name, value in collate(rows).items()}
    with model.slot.use(model.route(batch["task_ids"], inputs=batch)):
        logits, targets, places = forced_logits(model.backbone, batch)
    return logits, targets.flatten()[places]


class ReadPrompts:
    """Prompts that a model has read; `shares_prompts` must be true.

    ``first`` are the logits of the first token of each of R = B × n answers, for a decoder-only
    model; otherwise None.
    """

    def __init__(
        self,
        model: SkilledModel,
        task_ids: Int[Tensor, "B"],
        prompts: Sequence[Ids],
        n: int,
        pad_id: int,
    ) -> None:
        decoder_only = is_decoder_only(model.backbone)
        padded = padded_inputs(prompts, pad_id, left=decoder_only)
        inputs = {name: value.to(task_ids.device) for name, value in padded.items()}
        self.first: Float[Tensor, "R V"] | None = None
        self._model, self._pad_id = model, pad_id
        reuse = not torch.is_grad_enabled()
        self._routing = model.route(task_ids, inputs=inputs, expansion=n, reuse_merged=reuse)
        mask, backbone = inputs["attention_mask"], model.backbone
        self._mask = mask.repeat_interleave(n, 0)
        with model.slot.use(self._routing):
            if not decoder_only:
                states = backbone.get_encoder()(**inputs).last_hidden_state  # type: ignore[operator]
                self._states = BaseModelOutput(last_hidden_state=states.repeat_interleave(n, 0))
                return
            lasts = torch.arange(1, len(mask) + 1, device=mask.device) * mask.shape[1] - 1
            positions = (mask.cumsum(1) - 1).clamp_min(0)
            given: dict[str, Any] = {**inputs, "position_ids": positions, "use_cache": True}
            logits, found = run_at(backbone, lasts, **given)
        self.first = logits.float().repeat_interleave(n, 0)
        self._cache = getattr(found, cache_argument(backbone))
        self._cache.batch_repeat_interleave(n)

    def read(
        self, answers: Int[Tensor, "R L"], places: Int[Tensor, "N"], *, again: bool = False
    ) -> Float[Tensor, "N V"]:
        """Return the logits at some of the flattened positions of answers.

        An encoder–decoder predicts the token at a position, a decoder-only model the next one.
        ``again`` keeps the cache, to read other answers.
        """
        backbone, mask = self._model.backbone, self._mask
        if self.first is None:
            inputs = {
                "encoder_outputs": self._states,
                "attention_mask": mask,
                "decoder_input_ids": shifted(backbone, answers),
                "use_cache": False,
            }
        else:
            written = answers != IGNORED
            step = torch.arange(answers.shape[1], device=mask.device)
            inputs = {
                "input_ids": answers.masked_fill(~written, self._pad_id),
                "attention_mask": torch.cat([mask, written.to(mask)], 1),
                "position_ids": mask.sum(1)[:, None] + step,
                "use_cache": True,
                cache_argument(backbone): copy.deepcopy(self._cache) if again else self._cache,
            }
        with self._model.slot.use(self._routing):
            logits, _ = run_at(backbone, places, **inputs)
        return logits

    def next_logits(self, answers: Int[Tensor, "R t"]) -> Float[Tensor, "R V"]:
        """Return the logits of the token after each answer, which may be empty."""
        if self.first is None:
            answers = functional.pad(answers, (0, 1), value=self._pad_id)
        elif answers.shape[1] == 0:
            return self.first
        lasts = torch.arange(1, len(answers) + 1, device=answers.device) * answers.shape[1] - 1
        return self.read(answers, lasts, again=True)
