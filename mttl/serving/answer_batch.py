"""Answer a batch of requests for tasks of one model."""

import math
import random
from collections.abc import Collection, Sequence, Set
from contextlib import ExitStack
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import LogitsProcessor

from mttl.data.collate import pad_id_of, padded_inputs
from mttl.inference.predictor import Predictor
from mttl.models.generation import own_settings
from mttl.serving.generation_request import GenerationRequest, Piece
from mttl.serving.stream_decoder import StreamDecoder, TokenScore


def answer_batch(predictor: Predictor, wanted: Sequence[GenerationRequest]) -> None:
    """Answer a batch; each answer is sent as soon as it is complete.

    All requests have the same number of beams, and with several beams the same length. Either all
    or none have options.
    """
    if wanted[0].alone is not None:
        wanted[0].alone()
        wanted[0].send(Piece(finish="stop"))
        return
    prompts = [row.prompt for row in wanted]
    task_ids = torch.tensor([row.task_id for row in wanted], device=predictor.device)
    if wanted[0].options:
        options = [row.options for row in wanted]
        chosen = predictor.choose_encoded(task_ids, prompts, options, per_token=predictor.per_token)
        for row, choice in zip(wanted, chosen, strict=True):
            n_tokens = len(row.options[choice.answer]) - 1  # without the end
            row.send(Piece(choice.answer, finish="stop", n_tokens=n_tokens))
        return
    decoder_only = predictor.decoder_only
    inputs = padded_inputs(prompts, pad_id_of(predictor.tokenizer), left=decoder_only)
    # The output of an encoder–decoder begins with one start token; others repeat the prompt.
    start = inputs["input_ids"].shape[1] if decoder_only else 1
    settings: dict[str, Any] = {name: x.to(predictor.device) for name, x in inputs.items()}
    settings |= {**predictor.search, "max_new_tokens": max(row.most_tokens for row in wanted)}
    settings["added"] = [*zip(*(row.added for row in wanted), strict=True)]
    ends = tokens_at_end(predictor, "eos_token_id")
    answers = [StreamDecoder(row, predictor.tokenizer, ends) for row in wanted]
    predictor.model.eval()
    if wanted[0].n_beams > 1:

        def nobody_waits(ids: Tensor, scores: Any, **more: Any) -> Tensor:
            return torch.full((len(ids),), all(row.dropped for row in wanted), device=ids.device)

        settings["stopping_criteria"] = [nobody_waits]
        ids = predictor.generate(task_ids, **settings)
        for answer, row in zip(answers, ids[:, start:].tolist(), strict=True):
            if not answer.wanted.dropped:
                answer.finish(row)
        return
    choice = TokenChoice(wanted, predictor.device, tokens_at_end(predictor, "forced_eos_token_id"))

    def have_ended(ids: Tensor, scores: Any, **more: Any) -> Tensor:
        """Pass new tokens to their answers, and return the mask of finished rows, shape (R,)."""
        for place, (answer, token) in enumerate(zip(answers, ids[:, -1].tolist(), strict=True)):
            answer.ended = answer.ended or answer.wanted.dropped
            if not answer.ended:
                answer.add(token, choice.scores.get(place))
        return torch.tensor([answer.ended for answer in answers], device=ids.device)

    settings |= {
        "num_beams": 1,
        "do_sample": False,
        "forced_eos_token_id": None,  # `generate` would force it only at the end of the longest row
        "logits_processor": [choice],
        "stopping_criteria": [have_ended],
    }
    settings.pop("length_penalty", None)  # only for beams
    backbone: Any = predictor.model.backbone
    with ExitStack() as hooks:
        changed = own_settings(backbone.generation_config).keys() - settings.keys()
        if changed and not predictor.added:
            hooks.callback(backbone.register_forward_hook(choice.read).remove)
        predictor.generate(task_ids, **settings)


def tokens_at_end(predictor: Predictor, name: str) -> Set[int]:
    """Return the end tokens of a generation setting."""
    own = predictor.model.backbone.generation_config
    ends: Any = predictor.search.get(name, getattr(own, name))
    return frozenset() if ends is None else frozenset([ends] if isinstance(ends, int) else ends)


class TokenChoice(LogitsProcessor):
    """Samples tokens by replacing logits, and computes token log-probabilities.

    Each sampled row has its own temperature, top_p and random generator, so that requests with
    different settings share a batch, and a seed gives the same answer in every batch (up to
    rounding). ``forced`` are the possible last tokens of a row of full length. ``scores`` are the
    scores of the last tokens by row, if requested.
    """

    def __init__(
        self,
        wanted: Sequence[GenerationRequest],
        device: torch.device,
        forced: Collection[int] = (),
    ) -> None:
        self._forced = list(forced)
        self._most_tokens = [row.most_tokens for row in wanted]
        self._n_chosen = 0
        drawing = [place for place, row in enumerate(wanted) if row.temperature > 0]
        self._drawing = torch.tensor(drawing, dtype=torch.long, device=device)
        self._generators = [random.Random(wanted[place].seed) for place in drawing]
        settings = [(wanted[place].temperature, wanted[place].top_p) for place in drawing]
        table = torch.tensor(settings, dtype=torch.float64, device=device).reshape(-1, 2)
        self._temperatures, self._top_ps = table.unbind(1)
        asked = enumerate(row.n_logprobs for row in wanted)
        self._n_logprobs = {place: n for place, n in asked if n is not None}
        self.scores: dict[int, TokenScore] = {}
        self._own: Tensor | None = None

    def read(self, model: Any, given: Any, output: Any) -> None:
        """Store the model's original logits, before processors change them; a forward hook."""
        self._own = output.logits[:, -1]

    def __call__(  # type: ignore[override]
        self, input_ids: Int[Tensor, "R L"], scores: Float[Tensor, "R V"]
    ) -> Float[Tensor, "R V"]:
        """Return logits whose maximum is the chosen token of each row."""
        own = scores if self._own is None else self._own
        self._n_chosen += 1
        lasts = [place for place, most in enumerate(self._most_tokens) if most == self._n_chosen]
        if self._forced and lasts:
            only = torch.full_like(scores[0], -torch.inf)
            only[self._forced] = 0.0
            scores = scores.clone()
            scores[lasts] = only
        logits = scores
        if len(self._drawing):
            uniform = [generator.random() for generator in self._generators]
            drawn = draw(
                logits[self._drawing],
                self._temperatures,
                self._top_ps,
                self._temperatures.new_tensor(uniform),
            )
            scores = logits.clone()
            scores[self._drawing] = -torch.inf
            scores[self._drawing, drawn] = 0.0
        if self._n_logprobs:
            self._note(own, scores.argmax(1))
        return scores

    def _note(self, logits: Float[Tensor, "R V"], chosen: Int[Tensor, "R"]) -> None:
        places = list(self._n_logprobs)
        logprobs = logits[places].float().log_softmax(1)
        most = max(self._n_logprobs.values())
        values, ids = (found.tolist() for found in logprobs.topk(most, dim=1))
        own = logprobs.gather(1, chosen[places][:, None]).squeeze(1).tolist()
        for row, (place, n) in enumerate(self._n_logprobs.items()):
            alternatives = list(zip(ids[row], values[row], strict=True))[:n]
            finite = [(token, value) for token, value in alternatives if math.isfinite(value)]
            self.scores[place] = own[row], finite


def draw(
    logits: Float[Tensor, "D V"],
    temperatures: Float[Tensor, "D"],
    top_ps: Float[Tensor, "D"],
    uniform: Float[Tensor, "D"],
) -> Int[Tensor, "D"]:
    """Sample a token per row by inverting its distribution function at a uniform number.

    Logits are divided by positive temperatures; only the most probable tokens with a total
    probability of ``top_ps`` are sampled.
    """
    logits = logits.double()
    # The maximum is subtracted before the division to avoid overflow.
    shares = ((logits - logits.amax(1, keepdim=True)) / temperatures[:, None]).softmax(1)
    rows = (top_ps < 1).nonzero().squeeze(1)
    if len(rows):
        ordered, places = shares[rows].sort(dim=1, descending=True, stable=True)
        before = ordered.cumsum(1) - ordered
        kept = torch.where(before < top_ps[rows, None], ordered, 0.0)
        shares[rows] = torch.zeros_like(kept).scatter(1, places, kept)
    cumulative = shares.cumsum(1)
    total = cumulative[:, -1:]
    found = torch.searchsorted(cumulative, uniform[:, None] * total, right=True).squeeze(1)
    last = (cumulative < total).sum(1)  # avoids tokens of probability 0 after rounding
    return torch.minimum(found, last)
