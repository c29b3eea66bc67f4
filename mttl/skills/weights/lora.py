"""Low-rank skills."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.aggregation.grouped import grouped_linear
from mttl.aggregation.mix import mix_blocks, mix_deltas, mix_factors, mix_outputs
from mttl.aggregation.products import active_dtype
from mttl.routing.token.choice import Assignment
from mttl.routing.token.dispatch import combine, gate_matrix, sort_by_expert
from mttl.skills.inventory import Inventory, Merged, draw, require_divisible
from mttl.skills.weights.low_rank import low_rank_linear


class LoRAInventory(Inventory):
    r"""K low-rank changes of a linear layer.

    With mixing weights w, :math:`y = W_0 x + s \sum_k w_k B_k A_k^\top x` for the mixings
    ``"deltas"`` and ``"outputs"``, and, for ``"factors"``,
    :math:`y = W_0 x + s (\sum_k w_k B_k)(\sum_k w_k A_k)^\top x` (see `mttl.aggregation.mix`).
    Where tokens choose, gates weigh outputs, whatever the mixing.

    Args:
        in_features: Features I of the layer's input.
        out_features: Features O of the layer's output.
        n_skills: Skills K.
        rank: Rank r of each skill.
        n_heads: Heads H; for ``"factors"`` it must divide I and O, else O.
        scale: The factor s; 1 / rank by default.
        mix: How skills combine; of tensors that are composed, ``"deltas"`` by default.
        init: ``"zero"`` draws A and sets B to 0; ``"kaiming"`` draws both.

    Raises:
        ValueError: If a size is not positive, H does not divide, or a word is unknown.

    References:
        Hu et al., *LoRA: Low-Rank Adaptation of Large Language Models*, ICLR 2022,
        arXiv:2106.09685. As skills: Ponti et al., arXiv:2202.13914; with heads: Caccia et al.,
        arXiv:2211.03831. As experts: Zadouri et al., *Pushing Mixture of Experts to the Limit*,
        ICLR 2024, arXiv:2309.05444.
    """

    uses = ("task", "token", "composed")
    smallest_ndim = 2

    def __init__(
        self,
        in_features: int,
        out_features: int,
        n_skills: int,
        *,
        rank: int = 16,
        n_heads: int = 1,
        scale: float | None = None,
        mix: str = "factors",
        init: str = "zero",
    ) -> None:
        super().__init__(in_features, out_features, n_skills, n_heads)
        if rank < 1:
            raise ValueError(f"rank ({rank}) must be at least 1")
        if mix not in ("factors", "deltas", "outputs"):
            raise ValueError(f"mix ('{mix}') must be 'factors', 'deltas' or 'outputs'")
        if mix == "factors":
            require_divisible(n_heads, in_features=in_features)
        require_divisible(n_heads, out_features=out_features)
        self.rank = rank
        self.scale = 1 / rank if scale is None else scale
        self.mix = mix
        self.init = init
        self.down = nn.Parameter(torch.empty(n_skills, in_features, rank))
        self.up = nn.Parameter(torch.empty(n_skills, out_features, rank))
        self.reset_parameters()

    @classmethod
    def of_tensor(cls, shape: Sequence[int], n_skills: int, **settings: Any) -> Inventory:
        """Return skills that add products of thin matrices to a tensor seen as a matrix."""
        return super().of_tensor(shape, n_skills, **{"mix": "deltas"} | settings)

    def reset_parameters(self) -> None:
        """Draw the input side as `nn.Linear` does, and the output side as ``init`` says."""
        draw(self.down, "kaiming", self.in_features)
        draw(self.up, self.init, self.rank)

    def merge(self, weights: Float[Tensor, "B H K"]) -> Merged:
        """Return each example's factors, its weight change, or the weights themselves."""
        # The scale goes into the weights, by far the smallest tensor it can go into.
        scaled = self.scale * weights
        if self.mix == "factors":
            down, up = mix_blocks(self.down, weights), mix_blocks(self.up, scaled)
            if not torch.is_grad_enabled():
                up = up.mT.contiguous().mT  # generation reads the transpose at every token
            return down, up
        if self.mix == "deltas":
            return (mix_deltas(self.down, self.up, scaled),)
        return (scaled,)

    def combine(
        self, x: Float[Tensor, "B L I"], y: Float[Tensor, "B L O"], merged: Merged
    ) -> Float[Tensor, "B L O"]:
        """Add the low-rank change to the base output."""
        dtype = active_dtype(x)
        if self.mix == "factors":
            down, up = (factor.to(dtype) for factor in merged)
            return torch.baddbmm(y.to(dtype), torch.bmm(x.to(dtype), down), up.transpose(1, 2))
        if self.mix == "deltas":
            return torch.baddbmm(y.to(dtype), x.to(dtype), merged[0].to(dtype).transpose(1, 2))
        down, up, weights = (tensor.to(dtype) for tensor in (self.down, self.up, merged[0]))
        return y + mix_outputs(x.to(dtype), down, up, weights)

    def combine_linear(
        self, x: Float[Tensor, "B L I"], base: nn.Linear, merged: Merged
    ) -> Float[Tensor, "B L O"]:
        """Compute base and change in one operation where the factors are merged."""
        if self.mix != "factors":
            return self.combine(x, base(x), merged)
        dtype = active_dtype(x)
        down, up = merged
        bias = None if base.bias is None else base.bias.to(dtype)
        return low_rank_linear(
            x.to(dtype), base.weight.to(dtype), bias, down.to(dtype), up.to(dtype)
        )

    def combine_segments(
        self, x: Float[Tensor, "N I"], base: nn.Module, merged: Merged, segments: Sequence[int]
    ) -> Float[Tensor, "N O"]:
        """Compute the base layer and add each example's change to its tokens."""
        if self.mix != "factors":
            return super().combine_segments(x, base, merged, segments)
        down, up = merged
        counts = torch.tensor(segments, device=x.device)
        hidden = grouped_linear(x, down.mT, None, counts)
        y = base(x)
        return y + grouped_linear(hidden, up, None, counts).to(y.dtype)

    def hidden_units(
        self, x: Float[Tensor, "B L I"], y: Float[Tensor, "B L O"]
    ) -> Float[Tensor, "B L K r"]:
        """Return the input's products with every skill's first factor."""
        dtype = active_dtype(x)
        down = self.down.to(dtype).transpose(0, 1).flatten(1)
        return (x.to(dtype) @ down).unflatten(-1, (self.n_skills, -1))

    def last_product(self) -> Float[Tensor, "K O r"]:
        """Return the second factors."""
        return self.scale * self.up

    def dispatch(self, x: Float[Tensor, "N I"], assignment: Assignment) -> Float[Tensor, "N O"]:
        """Return, for each token, the sum over its pairs of gate times low-rank change."""
        if self.n_skills * self.rank <= self.in_features:
            return self._all_at_once(x, assignment)
        work = sort_by_expert(assignment)
        hidden = grouped_linear(x[work.tokens], self.down.mT, None, work.counts)
        y = grouped_linear(self.scale * hidden, self.up, None, work.counts)
        return combine(y, work, len(x))

    def _all_at_once(self, x: Float[Tensor, "N I"], assignment: Assignment) -> Float[Tensor, "N O"]:
        """Give all tokens to all skills and set what was not chosen to 0.

        Two products of full width are the faster while they are no wider than the layer itself.
        """
        down = self.down.transpose(0, 1).flatten(1)  # (I, E r)
        up = self.up.transpose(1, 2).flatten(0, 1)  # (E r, O)
        dtype = active_dtype(x)
        gates = self.scale * gate_matrix(assignment).to(dtype)
        hidden = (x.to(dtype) @ down.to(dtype)).unflatten(1, (self.n_skills, self.rank))
        return (hidden * gates[:, :, None]).flatten(1) @ up.to(dtype)

    def delta(self, weights: Float[Tensor, "T H K"]) -> Float[Tensor, "T O I"]:
        """Return the change of the base weight that the mixture of each task amounts to."""
        if self.mix == "factors":
            down, up = mix_factors(self.down, self.up, weights)
            return torch.bmm(self.scale * up, down.mT)
        return mix_deltas(self.down, self.up, self.scale * weights)

    def compose(
        self, base: Float[Tensor, "*shape"], weights: Float[Tensor, "T 1 K"]
    ) -> Float[Tensor, "T *shape"]:
        """Return a parameter of each task: the common one and the task's change of it."""
        return base + self.delta(weights).view(-1, *base.shape)

    def extra_repr(self) -> str:
        """Name the sizes in the module's printed form."""
        return f"{super().extra_repr()}, rank={self.rank}, scale={self.scale:g}, mix={self.mix}"
