"""Test on a model whether rows can be packed into one sequence."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mttl.io.errors import ConfigError, raised_as
from mttl.skills.skilled_model import SkilledModel

N_TOKENS = 6


@torch.no_grad()
def check_packing(model: SkilledModel, packed_length: int) -> None:
    """Raise a `ConfigError` if rows of one sequence influence each other.

    A few tokens are run alone and after two other texts; the logits must agree. Sharded models are
    tested in the first process, which has the weights. Raises a `ConfigError` if the router reads
    prompts, or rows are not independent.
    """
    setting = f"data.packed_length ({packed_length})"
    if "prompts" in model.router.seen:
        raise ConfigError(
            f"{setting} does not work with a router that reads prompts, which are not separate in "
            "a packed sequence. Remove it, or use another router"
        )
    if any(value.is_meta for value in model.parameters()):
        return
    ids = model.backbone.get_input_embeddings().weight.shape[0] - 1  # type: ignore[operator]
    text = torch.arange(N_TOKENS) % ids
    fails = f"{setting} does not work with this backbone"
    # The model may not accept positions, or such a mask.
    with raised_as(ConfigError, fails, TypeError, ValueError), evaluating(model):
        alone = _logits(model, [text])
        behind = [_logits(model, [(text + shift) % ids, text]) for shift in (1, 2)]
    if max(apart(other, alone) for other in behind) > 1:
        raise ConfigError(
            f"{fails}: packed rows influence each other, or their positions do not start at 0. "
            f"Remove {setting}"
        )


def _logits(model: SkilledModel, texts: list[Int[Tensor, "L"]]) -> Float[Tensor, "1 L V"]:
    """Return the logits of the last text, with all texts in one sequence."""
    device = next(model.parameters()).device
    inputs: dict[str, Any] = {
        "input_ids": torch.cat(texts)[None].to(device),
        "position_ids": torch.cat([torch.arange(len(text)) for text in texts])[None].to(device),
    }
    task_ids = torch.zeros(len(texts), dtype=torch.long, device=device)
    segments = [len(text) for text in texts]
    with model.slot.use(model.route(task_ids, inputs={**inputs, "segments": segments})):
        logits = model.backbone(**inputs, use_cache=False).logits
    return logits[:, -len(texts[-1]) :]


def apart(ours: Float[Tensor, "R L V"], theirs: Float[Tensor, "R L V"]) -> float:
    """Return the largest difference of logits, in units of the rounding tolerance.

    Rows and positions that both have are compared.
    """
    tolerance = 1e-4 if theirs.dtype.itemsize > 2 else 3e-2  # relative
    most = tolerance * max(float(theirs.abs().max()), 1e-30)
    rows, length = min(len(ours), len(theirs)), min(ours.shape[1], theirs.shape[1])
    return float((ours[:rows, :length].float() - theirs[:rows, :length].float()).abs().max()) / most


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Context manager for evaluation mode that restores modes and random states."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        for module, training in modes:
            module.training = training
