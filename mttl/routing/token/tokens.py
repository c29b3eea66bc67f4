"""The tokens of one layer, as a token router reads them."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Tokens:
    """N tokens and what is known of each.

    Attributes:
        states: Hidden states, one row per token.
        mask: False for padding, which gets no expert and counts nowhere.
        prior: Added to the logits; minus infinity forbids an expert to a token.
        examples: The example of each token, for routers of whole examples.
        ids: The vocabulary entry of each token, for routers of vocabulary entries.
    """

    states: Float[Tensor, "N I"]
    mask: Bool[Tensor, "N"] | None = None
    prior: Float[Tensor, "N E"] | None = None
    examples: Int[Tensor, "N"] | None = None
    ids: Int[Tensor, "N"] | None = None

    def __len__(self) -> int:
        """Return N."""
        return len(self.states)

    def numbers(self) -> Int[Tensor, "N"]:
        """Return 0 to N - 1."""
        return torch.arange(len(self), device=self.states.device)

    def logits(self, weight: Float[Tensor, "E I"]) -> Float[Tensor, "N E"]:
        """Return ``x Wᵀ`` in float32, with the prior added where there is one."""
        logits = self.states @ weight.float().t()
        return logits if self.prior is None else logits + self.prior

    def select(self, kept: Int[Tensor, "n"] | None) -> "Tokens":
        """Return some of the tokens, or all where None, in float32 and without a mask."""
        prior, examples, ids = (
            given if given is None or kept is None else given[kept]
            for given in (self.prior, self.examples, self.ids)
        )
        states = self.states if kept is None else self.states[kept]
        return Tokens(states.float(), None, None if prior is None else prior.float(), examples, ids)
