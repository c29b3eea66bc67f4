"""Low-rank skills with a separate magnitude (DoRA)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.aggregation.mix import active_dtype, mix_blocks
from mttl.aggregation.packed_weights import dense_weight
from mttl.plugins.part_settings import Positive, PositiveInt
from mttl.skills.inventory import Inputs, Inventory, Merged, Outputs, Weights, draw


class DoRAInventory(Inventory):
    r"""K low-rank changes of the direction of a weight's rows, and changes of their magnitudes.

    :math:`y = \frac{\lVert W_0 \rVert + \sum_k w_k m_k}{\lVert W_0 + \Delta \rVert} \odot
    (W_0 + \Delta)\,x` with :math:`\Delta = \frac{\alpha}{r} (\sum_k w_k B_k)(\sum_k w_k A_k)^\top`,
    and norms of rows. As in the paper, the denominator has no gradient. New skills change nothing.

    Args:
        rank: Rank r of each skill.
        alpha: Numerator of the factor of the change.

    References:
        Liu, Wang, Yin, Molchanov, Wang, Cheng and Chen, *DoRA: Weight-Decomposed Low-Rank
        Adaptation*, ICML 2024, arXiv:2402.09353.
    """

    reads_weight = True
    cut_by_heads = ("in_features", "out_features")
    undecayed = ("magnitude",)
    second_factors = ("up",)

    def __init__(
        self,
        in_features: int,
        out_features: int,
        n_skills: int,
        *,
        rank: PositiveInt = 16,
        alpha: Positive = 1.0,
        n_heads: int = 1,
    ) -> None:
        super().__init__(in_features, out_features, n_skills, n_heads)
        self.rank, self.alpha = rank, alpha
        self.down = nn.Parameter(torch.empty(n_skills, in_features, rank))
        self.up = nn.Parameter(torch.empty(n_skills, out_features, rank))
        self.magnitude = nn.Parameter(torch.empty(n_skills, out_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        draw(self.down, "kaiming", self.in_features)
        nn.init.zeros_(self.up)
        nn.init.zeros_(self.magnitude)

    def merge(self, weights: Weights) -> Merged:
        up = mix_blocks(self.up, self.alpha / self.rank * weights)
        return mix_blocks(self.down, weights), up, mix_blocks(self.magnitude, weights)

    def combine_linear(self, x: Inputs, base: nn.Linear, merged: Merged) -> Outputs:
        dtype = active_dtype(x)
        down, up, _ = (part.to(dtype) for part in merged)
        weight, x = dense_weight(base).to(dtype), x.to(dtype)
        y = torch.baddbmm(nn.functional.linear(x, weight), torch.bmm(x, down), up.mT)
        y = y * _scales(weight, merged).to(dtype).unsqueeze(1)
        return y if base.bias is None else y + base.bias.to(dtype)

    def fold(
        self, weight: Tensor, bias: Tensor | None, weights: Float[Tensor, "H K"]
    ) -> tuple[Tensor, Tensor | None]:
        down, up, _ = merged = self.merge(weights[None])
        return _scales(weight, merged)[0][:, None] * (weight + (up @ down.mT)[0]), bias


def _scales(weight: Float[Tensor, "O I"], merged: Merged) -> Float[Tensor, "B O"]:
    """Return the quotient of new magnitude and norm of each row, without the dense change."""
    wide = torch.promote_types(weight.dtype, torch.float32)
    weight, down, up, magnitude = (part.to(wide) for part in (weight, *merged))
    before = weight.square().sum(1)
    with torch.no_grad():  # ‖W + B Aᵀ‖² = ‖W‖² + 2 (W A) · B + B (AᵀA) · B
        squares = before + ((2 * weight @ down + up @ (down.mT @ down)) * up).sum(2)
        norms = squares.clamp_min(torch.finfo(squares.dtype).tiny).sqrt()
    return (before.sqrt() + magnitude) / norms
