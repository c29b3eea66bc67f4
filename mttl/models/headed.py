"""Losses and answers of models with heads."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mttl.models.backbone import hidden_states
from mttl.routing.context import Routing
from mttl.skills.skilled_model import SkilledModel

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def headed_states(
    model: SkilledModel, task_ids: Int[Tensor, "B"], batch: Mapping[str, Any]
) -> tuple[Float[Tensor, "B L D"], Routing]:
    """Return the last hidden states of a batch of `mttl.data.headed`, and the routing."""
    inputs = {name: batch[name] for name in INPUTS if name in batch}
    routing = model.route(task_ids, inputs=inputs)
    with model.slot.use(routing):
        return hidden_states(model.backbone, **inputs), routing


def headed_losses(
    model: SkilledModel, batch: Mapping[str, Any]
) -> tuple[Float[Tensor, "B W"], Int[Tensor, "B W"], Routing]:
    """Return the loss of each word or text, the labels that mark them, and the routing."""
    assert model.heads is not None
    hidden, routing = headed_states(model, batch["task_ids"], batch)
    if not batch["references"]:  # an empty batch
        return hidden[:, :1, 0] * 0, batch["labels"], routing
    losses = model.heads.losses(batch["task_ids"], hidden, batch)
    return losses, batch["labels"], routing


@torch.no_grad()
def headed_answers(
    model: SkilledModel,
    task_ids: Int[Tensor, "B"],
    batch: Mapping[str, Any],
    *,
    scored: bool = False,
) -> list[Any]:
    """Return the answer of each row of a batch, or its parts with scores (`Head.scored`)."""
    assert model.heads is not None
    hidden, _ = headed_states(model, task_ids, batch)
    return model.heads.answers(task_ids, hidden, batch, scored=scored)
