"""How each row of a batch chooses its next token: the likeliest one, or one that it draws.

Rows that draw have temperature, share and generator of their own. So rows of all settings share a
batch, and a seed leads to the same answer whatever else is in it, to the rounding of the logits.
"""

import math
import random
from collections.abc import Collection, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import LogitsProcessor

from mttl.serving.generation_request import GenerationRequest
from mttl.serving.stream_decoder import TokenScore


class TokenChoice(LogitsProcessor):
    """Replaces the logits of rows that draw by the token that they drew, and scores tokens.

    If ``forced`` holds tokens, one of them is the last token of a row of full length. ``scores``
    are those of the tokens chosen last, by row, if they are requested.
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
        self._n_logprobs = {
            place: row.n_logprobs for place, row in enumerate(wanted) if row.n_logprobs is not None
        }
        self.scores: dict[int, TokenScore] = {}
        self._own: Tensor | None = None

    def read(self, model: Any, given: Any, output: Any) -> None:
        """Take the model's own logits, which processors change before they come: a forward hook."""
        self._own = output.logits[:, -1]

    def __call__(  # type: ignore[override]
        self, input_ids: Int[Tensor, "R L"], scores: Float[Tensor, "R V"]
    ) -> Float[Tensor, "R V"]:
        """Return logits whose largest one is the choice of each row."""
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
    """Draw a token for each row: invert its distribution function at a uniform number in [0, 1).

    Logits are divided by temperatures above 0; only the likeliest tokens up to the share ``top_ps``
    are drawn.
    """
    logits = logits.double()
    # The largest logit becomes 0 before the division, so that no temperature overflows.
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
    last = (cumulative < total).sum(1)  # where rounding leads beyond the last that has a share
    return torch.minimum(found, last)
