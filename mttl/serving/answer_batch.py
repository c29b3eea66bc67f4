"""Answers of one model to a batch of questions of any of its tasks."""

from collections.abc import Sequence, Set
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria

from mttl.data.collate import pad_id_of, padded_inputs
from mttl.inference.predictor import Predictor
from mttl.models.generation import own_settings
from mttl.serving.generation_request import GenerationRequest, Piece
from mttl.serving.stream_decoder import StreamDecoder
from mttl.serving.token_choice import TokenChoice


def answer_batch(predictor: Predictor, wanted: Sequence[GenerationRequest]) -> None:
    """Answer a batch; every answer is sent when it has ended, also before the others have.

    All answers have the same number of beams, and with several beams the same length.
    """
    if wanted[0].alone is not None:
        wanted[0].alone()
        wanted[0].send(Piece(finish="stop"))
        return
    prompts = [row.prompt for row in wanted]
    decoder_only = predictor.decoder_only
    inputs = padded_inputs(prompts, pad_id_of(predictor.tokenizer), left=decoder_only)
    # An encoder-decoder's output begins with one start token; others repeat the prompt.
    start = inputs["input_ids"].shape[1] if decoder_only else 1
    settings: dict[str, Any] = {name: x.to(predictor.device) for name, x in inputs.items()}
    settings |= {**predictor.search, "max_new_tokens": max(row.most_tokens for row in wanted)}
    ends = tokens_at_end(predictor, "eos_token_id")
    answers = [StreamDecoder(row, predictor.tokenizer, ends) for row in wanted]
    task_ids = torch.tensor([row.task_id for row in wanted], device=predictor.device)
    predictor.model.eval()
    if wanted[0].n_beams > 1:
        settings["stopping_criteria"] = [AllDropped(wanted)]
        ids = predictor.generate(task_ids, **settings)
        for answer, row in zip(answers, ids[:, start:].tolist(), strict=True):
            if not answer.wanted.dropped:
                answer.finish(row)
        return
    forced = tokens_at_end(predictor, "forced_eos_token_id")
    choice = TokenChoice(wanted, predictor.device, forced)
    settings |= {
        "num_beams": 1,
        "do_sample": False,
        "forced_eos_token_id": None,  # `generate` would force it at the end of the longest row
        "logits_processor": [choice],
        "stopping_criteria": [RowEnds(answers, choice)],
    }
    settings.pop("length_penalty", None)  # of beams
    backbone: Any = predictor.model.backbone
    with ExitStack() as hooks:
        if own_settings(backbone.generation_config).keys() - settings.keys():  # they change logits
            hooks.callback(backbone.register_forward_hook(choice.read).remove)
        predictor.generate(task_ids, **settings)


def tokens_at_end(predictor: Predictor, name: str) -> Set[int]:
    """Return the tokens of a setting of generation: where it stops, or what it forces there."""
    own = predictor.model.backbone.generation_config
    ends: Any = predictor.search.get(name, getattr(own, name))
    return frozenset() if ends is None else frozenset([ends] if isinstance(ends, int) else ends)


class RowEnds(StoppingCriteria):
    """Hands every new token to its answer, and stops the rows whose answers have ended."""

    def __init__(self, answers: Sequence[StreamDecoder], choice: TokenChoice) -> None:
        self._answers, self._choice = answers, choice

    def __call__(self, input_ids: Tensor, scores: Any, **settings: Any) -> Tensor:  # type: ignore[override]
        """Return which rows stop, shape (R,)."""
        for place, token in enumerate(input_ids[:, -1].tolist()):
            answer = self._answers[place]
            answer.ended = answer.ended or answer.wanted.dropped
            if not answer.ended:
                answer.add(token, self._choice.scores.get(place))
        return torch.tensor([answer.ended for answer in self._answers], device=input_ids.device)


class AllDropped(StoppingCriteria):
    """Stops a search with beams when nobody waits for any of its answers."""

    def __init__(self, wanted: Sequence[GenerationRequest]) -> None:
        self._wanted = wanted

    def __call__(self, input_ids: Tensor, scores: Any, **settings: Any) -> Tensor:  # type: ignore[override]
        """Return for all rows whether they stop, shape (R,)."""
        over = all(row.dropped for row in self._wanted)
        return torch.full((len(input_ids),), over, device=input_ids.device)
