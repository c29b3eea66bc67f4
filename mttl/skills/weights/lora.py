"""Low-rank skills (LoRA)."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from mttl.aggregation.grouped import grouped_linear
from mttl.aggregation.mix import active_dtype, mix_blocks, mix_deltas, mix_factors, mix_outputs
from mttl.aggregation.packed_weights import dense_weight, is_packed, is_transposed
from mttl.plugins.part_settings import Fraction, OneOf, Positive, PositiveInt, ReadFrom
from mttl.routing.token.choice import Assignment, combine, gate_matrix, sort_by_expert
from mttl.skills.inventory import Inputs, Merged, Outputs, ProductInventory, Weights, draw

# Values of ``init`` that read the layer's weight.
STARTS = ("pissa", "orthogonal")


class LoRAInventory(ProductInventory):
    r"""K low-rank changes of a linear layer.

    With mixing weights w, :math:`y = W_0 x + s \sum_k w_k B_k A_k^\top x` for ``mix="deltas"`` and
    ``"outputs"``, and, for ``"factors"``,
    :math:`y = W_0 x + s (\sum_k w_k B_k)(\sum_k w_k A_k)^\top x` (see `mttl.aggregation.mix`).
    With token routing, gates always weigh outputs.

    Dropout applies to the change's input, per token, once for all skills of a layer. With
    ``shared_down``, routing weights and gates mix only the :math:`B_k`; ``"factors"`` then also
    multiplies A by the sum of the weights, which is 1 if they are normalised.

    ``init="pissa"`` and ``"orthogonal"`` start at singular directions of the weight. The base
    weight does not change: the initial :math:`A^0_k, B^0_k` are subtracted as further columns,
    :math:`[A_k, A^0_k]` and :math:`[B_k, -B^0_k]`, which are mixed equally. So a fresh mixture
    changes nothing under any weights, and with one skill the layer equals PEFT's, whose base is the
    residual. (Dropout also drops the subtracted columns; PEFT's residual reads the whole input.)

    Args:
        rank: Rank r of each skill.
        scale: Factor s on the change; alpha / rank by default.
        alpha: Numerator of the scale, instead of ``scale``; 1 by default.
        rslora: Whether to divide alpha by the square root of the rank (rsLoRA).
        dropout: Probability that an entry of the change's input is dropped in training.
        shared_down: Whether skills of a layer share the factor that reads the input (HydraLoRA).
        mix: Quantity averaged over the skills: the two ``"factors"``, their products (``"deltas"``,
            the default for the use ``"composed"``), or the ``"outputs"``.
        init: ``"zero"``: one factor is 0; ``"pissa"``: every skill has the leading singular vectors
            of the layer's weight; ``"orthogonal"``: each has others. None changes the output before
            training. ``"kaiming"``, for networks without a pretrained base, draws both factors.

    References:
        Hu et al., *LoRA: Low-Rank Adaptation of Large Language Models*, ICLR 2022,
        arXiv:2106.09685. As skills: Ponti et al., arXiv:2202.13914; with heads: Caccia et al.,
        arXiv:2211.03831. As experts: Zadouri et al., *Pushing Mixture of Experts to the Limit*,
        ICLR 2024, arXiv:2309.05444.

        Kalajdzievski, *A Rank Stabilization Scaling Factor for Fine-Tuning with LoRA*,
        arXiv:2312.03732. Tian, Shi, Guo, Li and Xu, *HydraLoRA: An Asymmetric LoRA Architecture
        for Efficient Fine-Tuning*, NeurIPS 2024, arXiv:2404.19245. Meng, Wang and Zhang, *PiSSA:
        Principal Singular Values and Singular Vectors Adaptation of Large Language Models*,
        NeurIPS 2024, arXiv:2404.02948, which changes the base weight instead.
    """

    lacks: ClassVar = {
        **dict.fromkeys(("exports_inventory", "has_factors"), ""),
        "mixes_by_token": ("mix != outputs", "weights per token need {path}.mix: outputs"),
    }
    refuses: ClassVar = {
        **dict.fromkeys(
            ("scale and alpha", "scale and rslora"),
            "scale ({scale}) cannot be combined with alpha or rslora: the factor is scale, or "
            "alpha / rank, or alpha / √rank with rslora",
        ),
        "identical_init and init = orthogonal": "identical_init (true) and init ('orthogonal') "
        "contradict each other; choose one",
    }
    uses = ("task", "token", "composed")
    second_factors = ("up",)
    start_down: Tensor
    start_up: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        n_skills: int,
        *,
        rank: PositiveInt = 16,
        n_heads: int = 1,
        scale: Positive | None = None,
        alpha: Positive | None = None,
        rslora: bool = False,
        dropout: Fraction = 0.0,
        shared_down: bool = False,
        mix: Annotated[str, OneOf("factors", "deltas", "outputs")] = "factors",
        init: Annotated[str, ReadFrom(Literal["zero", "pissa", "orthogonal"])] = "zero",
    ) -> None:
        if mix == "factors":
            self.cut_by_heads = ("in_features", "out_features")
        super().__init__(in_features, out_features, n_skills, n_heads)
        if scale is not None and (alpha is not None or rslora):
            raise ValueError(f"scale ({scale}) cannot be combined with alpha or rslora")
        self.rank, self.rslora, self.dropout = rank, rslora, dropout
        self.shared_down, self.mix, self.init = shared_down, mix, init
        alpha = 1 if alpha is None else alpha
        self.scale = alpha / (rank**0.5 if rslora else rank) if scale is None else scale
        if shared_down and init in STARTS:
            raise ValueError(
                f"init ('{init}') needs a separate input factor for every skill: set shared_down: "
                "false, or init: zero"
            )
        self.starts = init in STARTS
        if self.starts:
            self.register_buffer("start_down", torch.zeros(n_skills, in_features, rank))
            self.register_buffer("start_up", torch.zeros(n_skills, out_features, rank))
        self.down = nn.Parameter(torch.empty(1 if shared_down else n_skills, in_features, rank))
        self.up = nn.Parameter(torch.empty(n_skills, out_features, rank))
        LoRAInventory.reset_parameters(self)  # subclasses have more parameters

    @classmethod
    def of_tensor(cls, shape: Sequence[int], n_skills: int, **settings: Any) -> Any:
        """Return skills of a tensor; ValueError for settings that need inputs or a layer."""
        if settings.get("dropout") or settings.get("init") in STARTS:
            raise ValueError("for whole parameters dropout must be 0, and init 'zero' or 'kaiming'")
        return super().of_tensor(shape, n_skills, **settings)

    def reset_parameters(self) -> None:
        if self.starts:
            with torch.no_grad():
                self.down.copy_(self.start_down)
                self.up.copy_(self.start_up)
            return
        draw(self.down, "kaiming", self.in_features)
        draw(self.up, self.init, self.rank)

    @torch.no_grad()
    def init_from_base(self, base: nn.Module) -> None:
        if not self.starts:
            return
        kept = getattr(base, "weight", None)
        if kept is None or not (kept.is_floating_point() or is_packed(kept)):
            raise ValueError(
                f"init ('{self.init}') cannot read the weight of {type(base).__name__}; use zero"
            )
        weight = dense_weight(base).detach().float()
        if weight.is_meta:
            return
        n_wanted = self.rank * (1 if self.init == "pissa" else self.n_skills)
        if n_wanted > min(weight.shape):
            raise ValueError(
                f"init ('{self.init}') needs {n_wanted} singular directions for {self.n_skills} "
                f"skills of rank {self.rank}, but there are {min(weight.shape)}; lower rank"
            )
        weight = weight.t() if is_transposed(base) else weight
        left, values, right = torch.linalg.svd(weight, full_matrices=False)
        roots = (values / self.scale).sqrt()
        for start, vectors in ((self.start_down, right.t()), (self.start_up, left)):
            chosen = (vectors * roots)[:, :n_wanted].unflatten(1, (-1, self.rank))
            start.copy_(chosen.transpose(0, 1))  # (1 or K, features, r)
        self.reset_parameters()

    def columns(self) -> tuple[Float[Tensor, "K I q"], Float[Tensor, "K O q"]]:
        """Return both factors of every skill, with the subtracted start as further columns."""
        if not self.starts:
            return self.down.expand(self.n_skills, -1, -1), self.up
        start_down, start_up = self.start_down.to(self.down), self.start_up.to(self.up)
        return torch.cat([self.down, start_down], -1), torch.cat([self.up, -start_up], -1)

    def merge(self, weights: Weights) -> Merged:
        # The scale multiplies the weights, the smallest tensor.
        scaled = self.scale * weights
        if self.mix == "factors":
            down, up = self.columns()
            down, up = mix_blocks(down, weights), mix_blocks(up, scaled)
            if not torch.is_grad_enabled():
                up = up.mT.contiguous().mT  # generation reads the transpose at every token
            return down, up
        if self.mix == "deltas":
            return (mix_deltas(*self.columns(), scaled),)
        return (scaled,)

    def combine(self, x: Inputs, y: Outputs, merged: Merged) -> Outputs:
        dtype, x = active_dtype(x), self._dropped(x)
        if self.mix == "factors":
            down, up = (factor.to(dtype) for factor in merged)
            return torch.baddbmm(y.to(dtype), torch.bmm(x.to(dtype), down), up.transpose(1, 2))
        if self.mix == "deltas":
            return super().combine(x, y, merged)
        down, up, weights = (tensor.to(dtype) for tensor in (*self.columns(), *merged))
        return y + mix_outputs(x.to(dtype), down, up, weights)

    def combine_linear(self, x: Inputs, base: nn.Linear, merged: Merged) -> Outputs:
        """Compute base and change, in one operation if the factors are merged."""
        if self.mix != "factors" or self._drops():
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
        if self.mix != "factors":
            return super().combine_segments(x, base, merged, segments)
        return self.add_to_rows(x, base(x), merged, torch.tensor(segments, device=x.device))

    def add_to_rows(
        self, x: Float[Tensor, "P I"], y: Float[Tensor, "P O"], factors: Merged, counts: Tensor
    ) -> Float[Tensor, "P O"]:
        """Add the changes by one pair of factors after another to that number of rows each."""
        hidden = grouped_linear(self._dropped(x), factors[0].mT, None, counts)
        return y + grouped_linear(hidden, factors[1], None, counts).to(y.dtype)

    def hidden_units(self, x: Inputs, y: Outputs) -> Float[Tensor, "B L K r"]:
        dtype = active_dtype(x)
        down = self.columns()[0].to(dtype).transpose(0, 1).flatten(1)
        return (self._dropped(x).to(dtype) @ down).unflatten(-1, (self.n_skills, -1))

    def last_product(self) -> Float[Tensor, "K O r"]:
        return self.scale * self.columns()[1]

    def factors(self) -> tuple[Float[Tensor, "K I q"], Float[Tensor, "K O q"]]:
        down, up = self.columns()
        return down, self.scale * up

    def dispatch(self, x: Float[Tensor, "N I"], assignment: Assignment) -> Float[Tensor, "N O"]:
        down, up = self.columns()
        x = self._dropped(x)
        if self.shared_down or down.shape[0] * down.shape[2] <= self.in_features:
            # Compute all skills for all tokens and multiply by gates, most of them 0: faster as
            # long as the products are no wider than the layer.
            down = down[: len(self.down)].transpose(0, 1).flatten(1)  # (I, E q); (I, q) if shared
            up = up.transpose(1, 2).flatten(0, 1)  # (E q, O)
            dtype = active_dtype(x)
            gates = self.scale * gate_matrix(assignment).to(dtype)
            hidden = (x.to(dtype) @ down.to(dtype)).unflatten(1, (len(self.down), -1))
            return (hidden * gates[:, :, None]).flatten(1) @ up.to(dtype)
        work = sort_by_expert(assignment)
        hidden = grouped_linear(x[work.tokens], down.mT, None, work.counts)
        y = grouped_linear(self.scale * hidden, up, None, work.counts)
        return combine(y, work, len(x))

    def delta(self, weights: Float[Tensor, "T H K"]) -> Float[Tensor, "T O I"]:
        if self.mix == "factors":
            down, up = mix_factors(*self.columns(), weights)
            return torch.bmm(self.scale * up, down.mT)
        return mix_deltas(*self.columns(), self.scale * weights)

    def _drops(self) -> bool:
        return self.training and self.dropout > 0

    def _dropped(self, x: Float[Tensor, "*rows I"]) -> Float[Tensor, "*rows I"]:
        return nn.functional.dropout(x, self.dropout) if self._drops() else x


class LoRAExperts(LoRAInventory):
    """Low-rank changes of linear layers, as experts."""

    internal = ("mix", "init")


def low_rank_linear(
    x: Float[Tensor, "B L I"],
    weight: Float[Tensor, "O I"],
    bias: Float[Tensor, "O"] | None,
    down: Float[Tensor, "B I r"],
    up: Float[Tensor, "B O r"],
) -> Float[Tensor, "B L O"]:
    """Return ``x Wᵀ + bias + (x A) Bᵀ`` with one pair of factors per example, in one operation.

    It saves three tensors of the output's or input's size: products are added in place, forward and
    backward. All arguments must have one dtype. Gradients are exact; there is no second derivative.
    """
    if not torch.is_grad_enabled():
        return _forward(x, weight, bias, down, up)[0]  # avoids autograd's overhead per token
    return _LowRankLinear.apply(x, weight, bias, down, up)  # type: ignore[return-value]


def _forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, down: Tensor, up: Tensor
) -> tuple[Tensor, Tensor]:
    # Forward: the base layer, then (x A) Bᵀ added into its output in place.
    y = torch.nn.functional.linear(x, weight, bias)
    hidden = torch.bmm(x, down)
    return y.baddbmm_(hidden, up.mT), hidden


class _LowRankLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, down: Tensor, up: Tensor
    ) -> Tensor:
        y, hidden = _forward(x, weight, bias, down, up)
        ctx.save_for_backward(x, weight, down, up, hidden)
        ctx.has_bias = bias is not None
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, down, up, hidden = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, needs_down, needs_up = ctx.needs_input_grad
        grad_x = grad_weight = grad_bias = grad_down = grad_up = None
        # Gradient of x A, from which those of x and A follow.
        grad_hidden = torch.bmm(grad, up)
        if needs_x:
            grad_x = torch.matmul(grad, weight)
            grad_x.baddbmm_(grad_hidden, down.mT)
        # Gradients have the layout of the factors; autograd would copy transposed ones.
        if needs_down:
            grad_down = torch.bmm(x.mT, grad_hidden)
        if needs_up:
            grad_up = torch.bmm(grad.mT, hidden)
        if needs_weight:
            grad_weight = grad.flatten(0, 1).t() @ x.flatten(0, 1)
        if needs_bias and ctx.has_bias:
            grad_bias = grad.sum((0, 1))
        return grad_x, grad_weight, grad_bias, grad_down, grad_up
