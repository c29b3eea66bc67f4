"""Residual adapters: 1 × 1 convolutions beside or after the convolutions of a network."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.aggregation.mix import mix_blocks
from mttl.skills.inventory import Inventory, draw


class ResidualInventory(Inventory):
    r"""K residual adapters of a convolution with an odd kernel, as changes of its weight W.

    In parallel, :math:`y = W * x + \sum_k w_k A_k x` adds :math:`A_k` to the centre of the kernel.
    In series, :math:`y = W * x + \sum_k w_k A_k (W * x)` adds :math:`A_k W`; the bias stays as it
    is, and so do other parameters than convolutions.

    Args:
        in_features: Input channels, of a group.
        out_features: Output channels.
        kernel: Height and width of the kernel.
        series: Whether adapters read the output of the convolution instead of its input.

    References:
        Rebuffi, Bilen and Vedaldi, *Learning Multiple Visual Domains with Residual Adapters*, NIPS
        2017, arXiv:1705.08045 (series); *Efficient Parametrization of Multi-Domain Deep Neural
        Networks*, CVPR 2018, arXiv:1803.10082 (parallel).
    """

    internal = ("init",)
    uses = ("composed",)
    smallest_ndim = 4

    def __init__(
        self,
        in_features: int,
        out_features: int,
        n_skills: int,
        *,
        kernel: Sequence[int],
        series: bool = False,
        init: str = "zero",
    ) -> None:
        super().__init__(in_features, out_features, n_skills)
        if not all(size % 2 for size in kernel):
            raise ValueError(f"kernel ({tuple(kernel)}) must be odd for residual adapters")
        self.series, self.init = series, init
        self.centre = tuple(size // 2 for size in kernel)
        read = out_features if series else in_features
        self.matrix = nn.Parameter(torch.empty(n_skills, out_features, read))
        self.reset_parameters()

    @classmethod
    def of_tensor(cls, shape: Sequence[int], n_skills: int, **settings: Any) -> "ResidualInventory":
        out_features, in_features, *kernel = shape
        return cls(in_features, out_features, n_skills, kernel=kernel, **settings)

    def reset_parameters(self) -> None:
        draw(self.matrix, self.init, self.matrix.shape[-1])

    def compose(
        self, base: Float[Tensor, "O I *kernel"], weights: Float[Tensor, "T 1 K"]
    ) -> Float[Tensor, "T O I *kernel"]:
        mixed = mix_blocks(self.matrix, weights)
        if self.series:
            return base + (mixed @ base.flatten(1)).unflatten(2, base.shape[1:])
        tasks = base.expand(len(mixed), *base.shape).clone()
        tasks[(..., *self.centre)] += mixed
        return tasks
