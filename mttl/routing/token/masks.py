"""Which positions of a forward pass are tokens, and the record of which experts they chose."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

# Positions with this label do not count in a loss.
IGNORED = -100


@dataclass(frozen=True)
class TokenRecord:
    """Which experts one layer chose for which tokens in one forward pass.

    Attributes:
        layer: The layer's path in the backbone.
        stack: Whose tokens it saw: ``"encoder"``, ``"decoder"`` or ``"model"``.
        rows: Rows R of its input.
        positions: Positions L of its input: token n is row n // L, position n % L.
        n_experts: Experts E.
        tokens: The token of every chosen pair; padding is in none.
        experts: The expert of every chosen pair.
        kept: Whether the expert had room for it; all of them where None.
    """

    layer: str
    stack: str
    rows: int
    positions: int
    n_experts: int
    tokens: Int[Tensor, "P"]
    experts: Int[Tensor, "P"]
    kept: Bool[Tensor, "P"] | None = None

    def load(self) -> Int[Tensor, "E"]:
        """Return how many tokens chose each expert, before any were dropped."""
        return torch.bincount(self.experts, minlength=self.n_experts)

    def dropped(self) -> Int[Tensor, ""]:
        """Return how many pairs found no room."""
        if self.kept is None:
            return self.experts.new_zeros(())
        return (~self.kept).sum()


@dataclass
class TokenMasks:
    """Which positions of a batch are tokens and which are padding.

    Args:
        stacks: By stack (``"encoder"``, ``"decoder"``, ``"model"``), True where a token is. A stack
            without an entry has no padding.
        finished: While text is generated, the rows that have ended: what a stack sees of them
            beyond its mask is padding.
    """

    stacks: dict[str, Bool[Tensor, "B L"]]
    finished: Bool[Tensor, "R"] | None = None

    def of(self, stack: str, n_rows: int, n_positions: int) -> Bool[Tensor, "R L"] | None:
        """Return the mask of a layer's input, or None where all of it is tokens.

        Positions after those of the mask were generated. A decoder that keeps its keys and values
        sees nothing but them.

        Raises:
            ValueError: If the input does not fit the mask.
        """
        mask = self.stacks.get(stack)
        if mask is not None:
            check_fit(stack, mask, n_rows, n_positions if stack == "encoder" else mask.shape[1])
        if stack == "encoder":
            return None if mask is None else _repeated(mask, n_rows)
        finished = self.finished
        if finished is not None and finished.shape[0] != n_rows:
            finished = None  # of another call's rows
        n_known = 0 if mask is None else mask.shape[1]
        if n_positions < n_known or mask is None:
            return None if finished is None else _same(~finished, n_positions)
        known = _repeated(mask, n_rows)
        if n_positions == n_known:
            return known
        new = known.new_ones(n_rows) if finished is None else ~finished
        return torch.cat([known, _same(new, n_positions - n_known)], dim=1)


def check_fit(stack: str, known: Tensor, n_rows: int, n_positions: int) -> None:
    """Refuse an input of a layer with no multiple of its stack's known rows, or other positions."""
    if n_rows % known.shape[0] or n_positions != known.shape[1]:
        raise ValueError(
            f"a layer of the {stack} received {n_rows} rows of {n_positions} positions, its stack "
            f"{known.shape[0]} of {known.shape[1]}"
        )


def token_masks(inputs: Mapping[str, Any], *, encoder_decoder: bool) -> TokenMasks:
    """Return which positions are tokens, from what a language model is called with.

    That is ``attention_mask``, and for the decoder of an encoder-decoder ``decoder_attention_mask``
    or ``labels``, whose padding is -100. What is absent has no padding.
    """
    attention = inputs.get("attention_mask")
    given = None if attention is None else attention.bool()
    if not encoder_decoder:
        names = ("encoder", "decoder", "model")
        return TokenMasks({} if given is None else dict.fromkeys(names, given))
    stacks = {} if given is None else {"encoder": given}
    decoder, labels = inputs.get("decoder_attention_mask"), inputs.get("labels")
    if decoder is not None:
        stacks["decoder"] = decoder.bool()
    elif labels is not None:
        # What a position computes matters if it has a label to predict.
        stacks["decoder"] = labels != IGNORED
    return TokenMasks(stacks)


def _repeated(mask: Bool[Tensor, "B L"], n_rows: int) -> Bool[Tensor, "R L"]:
    """The rows of one example are neighbours."""
    times = n_rows // mask.shape[0]
    return mask if times == 1 else mask.repeat_interleave(times, dim=0)


def _same(rows: Bool[Tensor, "R"], n_positions: int) -> Bool[Tensor, "R L"]:
    return rows[:, None].expand(-1, n_positions)
