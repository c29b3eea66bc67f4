"""Texts as single vectors: what routers see that look at more than task ids."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mttl.routing.token.masks import IGNORED


@torch.no_grad()
def pooled_text(
    backbone: nn.Module, ids: Int[Tensor, "B L"], mask: Bool[Tensor, "B L"] | None = None
) -> Float[Tensor, "B D"]:
    """Return the mean of the input embeddings of each row."""
    embedded = backbone.get_input_embeddings()(ids)  # type: ignore[operator]
    if mask is None:
        return embedded.mean(1)
    counted = mask.unsqueeze(-1).to(embedded.dtype)
    return (embedded * counted).sum(1) / counted.sum(1).clamp_min(1)


def pooled_prompts(
    backbone: nn.Module, inputs: Mapping[str, Any] | None, *, encoder_decoder: bool
) -> Float[Tensor, "B D"]:
    """Return a vector of each prompt of a batch, the mean of its input embeddings.

    Where a decoder-only model reads prompt and answer in one sequence, ``labels`` tell them apart:
    they are -100 on the prompt.

    Raises:
        ValueError: If there are no input ids.
    """
    ids = inputs.get("input_ids") if inputs is not None else None
    if inputs is None or ids is None:
        raise ValueError("the router sees prompts, and there are none: give input_ids")
    attention, labels = inputs.get("attention_mask"), inputs.get("labels")
    mask = torch.ones_like(ids, dtype=torch.bool) if attention is None else attention.bool()
    if labels is not None and not encoder_decoder:
        mask = mask & (labels == IGNORED)
    return pooled_text(backbone, ids, mask)
