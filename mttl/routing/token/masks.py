"""Masks of the tokens of a forward pass, and records of the experts that they chose."""

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
    """The experts that the tokens of one layer chose in one forward pass."""

    layer: str  # path in the backbone
    stack: str  # of the tokens: "encoder", "decoder" or "model"
    rows: int  # R
    positions: int  # L: token n is row n // L, position n % L
    n_experts: int
    tokens: Int[Tensor, "P"]  # of every pair, without padding
    experts: Int[Tensor, "P"]
    kept: Bool[Tensor, "P"] | None = None  # pairs within the expert's capacity; None if all are

    def load(self) -> Int[Tensor, "E"]:
        """Return the number of tokens that chose each expert, including dropped ones."""
        return torch.bincount(self.experts, minlength=self.n_experts)

    def dropped(self) -> Int[Tensor, ""]:
        """Return the number of pairs beyond the capacity of their expert."""
        if self.kept is None:
            return self.experts.new_zeros(())
        return (~self.kept).sum()


@dataclass
class TokenMasks:
    """The masks of tokens and padding of a batch; a stack without a mask has no padding."""

    stacks: dict[str, Bool[Tensor, "B L"]]  # by "encoder", "decoder" or "model"; True for tokens
    # Rows that have ended in generation, whose further positions are padding.
    finished: Bool[Tensor, "R"] | None = None

    def of(self, stack: str, n_rows: int, n_positions: int) -> Bool[Tensor, "R L"] | None:
        """Return the mask of a layer's input, or None if all positions are tokens.

        Positions after those of the mask were generated; with a cache, a decoder's input has only
        these. An input that does not fit the mask is a ValueError.
        """
        mask = self.stacks.get(stack)
        if mask is not None:
            check_fit(stack, mask, n_rows, n_positions if stack == "encoder" else mask.shape[1])
        if stack == "encoder":
            return None if mask is None else _repeated(mask, n_rows)
        finished = self.finished
        if finished is not None and finished.shape[0] != n_rows:
            finished = None  # rows of another call
        n_known = 0 if mask is None else mask.shape[1]
        if n_positions < n_known or mask is None:
            return None if finished is None else (~finished)[:, None].expand(-1, n_positions)
        known = _repeated(mask, n_rows)
        if n_positions == n_known:
            return known
        new = known.new_ones(n_rows) if finished is None else ~finished
        return torch.cat([known, new[:, None].expand(-1, n_positions - n_known)], dim=1)


def check_fit(stack: str, known: Tensor, n_rows: int, n_positions: int) -> None:
    """Raise ValueError if a layer's rows are no multiple of its stack's, or positions differ."""
    if n_rows % known.shape[0] or n_positions != known.shape[1]:
        raise ValueError(
            f"a layer of the {stack} received {n_rows} rows of {n_positions} positions, but the "
            f"mask or ids of its stack have {known.shape[0]} rows of {known.shape[1]}"
        )


def token_masks(inputs: Mapping[str, Any], *, encoder_decoder: bool) -> TokenMasks:
    """Return the masks of tokens from the arguments of a language model.

    These are ``attention_mask``, and for the decoder of an encoder-decoder
    ``decoder_attention_mask`` or ``labels``, whose padding is -100. Stacks without an argument have
    no padding.
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
        # Only positions with a label contribute to the loss.
        stacks["decoder"] = labels != IGNORED
    return TokenMasks(stacks)


def _repeated(mask: Bool[Tensor, "B L"], n_rows: int) -> Bool[Tensor, "R L"]:
    """Repeat each row, so that rows of one example are adjacent."""
    times = n_rows // mask.shape[0]
    return mask if times == 1 else mask.repeat_interleave(times, dim=0)
