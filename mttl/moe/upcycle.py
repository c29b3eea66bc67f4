"""Sparse upcycling: experts that start as copies of a trained dense block."""

import torch
from torch import nn

from mttl.aggregation.packed_weights import is_packed
from mttl.skills.blocks.feed_forward import FeedForwardBlock
from mttl.skills.blocks.feed_forward_experts import FeedForwardExperts


def upcycle(block: FeedForwardBlock, n_experts: int) -> FeedForwardExperts:
    r"""Return E copies of a dense block as experts.

    A layer of them equals the block if the gates of a token sum to 1:
    :math:`\sum_e g_e(x) E(x) = E(x)`. A Switch router's single gate p scales the output by p, and
    dropped tokens have no output.

    Raises:
        ValueError: If the block's projections have skills, or are quantised.

    References:
        Komatsuzaki et al., *Sparse Upcycling: Training Mixture-of-Experts from Dense Checkpoints*,
        ICLR 2023, arXiv:2212.05055.
    """
    up = [_plain(part) for part in (block.gate, block.up) if part is not None]
    down = _plain(block.down)
    experts = FeedForwardExperts(
        *(up[0].in_features, down.in_features, down.out_features, n_experts),
        activation=block.activation,
        gated=block.gate is not None,
        bias=any(part.bias is not None for part in (*up, down)),
        dropout=block.dropout,
    ).to(down.weight)
    with torch.no_grad():
        experts.up.copy_(torch.cat([part.weight for part in up]))
        experts.down.copy_(down.weight)
        if experts.up_bias is not None and experts.down_bias is not None:
            experts.up_bias.copy_(torch.cat([_bias(part) for part in up]))
            experts.down_bias.copy_(_bias(down))
    return experts


def silent(experts: FeedForwardExperts) -> FeedForwardExperts:
    """Set the output of experts to 0, in place, so that they change nothing when they are added."""
    nn.init.zeros_(experts.down)
    if experts.down_bias is not None:
        nn.init.zeros_(experts.down_bias)
    return experts


def _bias(linear: nn.Linear) -> torch.Tensor:
    return linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias


def _plain(module: nn.Module) -> nn.Linear:
    if isinstance(module, nn.Linear) and not is_packed(module.weight):
        return module
    what, remedy = f"that contains {type(module).__name__}", "remove it from the skills' targets"
    if isinstance(module, nn.Linear):
        what = "with quantised weights"
        remedy = "use added experts (lora, adapter), or remove backbone.quantize"
    raise ValueError(f"a feed-forward block {what} cannot be copied into experts; {remedy}")
