r"""Load-balancing losses of a layer's experts, and balancing by biases.

Every loss is a function of sums over tokens (`LoadSums`), which may be summed over processes.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mttl.plugins.part_settings import Bounded, Fraction, NonNegative
from mttl.routing.token.choice import Assignment, Tokens

# Keeps logarithms and quotients finite for experts without tokens.
SMALLEST = 1e-20


@dataclass(frozen=True)
class LoadSums:
    """Sums over the tokens of a layer; ``pairs`` and ``first`` have no gradient."""

    tokens: Float[Tensor, ""]
    pairs: Float[Tensor, "E"]
    first: Float[Tensor, "E"]  # tokens for which each expert is the most probable
    probabilities: Float[Tensor, "E"]
    gates: Float[Tensor, "E"]  # the importance of each expert
    load: Float[Tensor, "E"]  # differentiable estimate of `pairs`, or `pairs`
    squared_z: Float[Tensor, ""]  # of the squared log-sum-exp of the logits

    def over_processes(self) -> "LoadSums":
        """Return the differentiable sums over all processes.

        Gradients are those of the sum of the processes' losses, so that DDP's average of gradients
        is the gradient of the loss of the whole batch.
        """
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return self
        # Imported late, since some builds of PyTorch have no processes.
        from torch.distributed.nn.functional import all_reduce

        own = [getattr(self, one.name) for one in fields(self)]
        total: Any = all_reduce(torch.cat([value.flatten() for value in own]), group=None)
        parts = total.split([value.numel() for value in own])
        return LoadSums(*(part.view_as(value) for part, value in zip(parts, own, strict=True)))


def load_sums(choice: Assignment) -> LoadSums:
    """Return the sums over the tokens of an assignment."""
    probabilities, logits = choice.probabilities, choice.logits
    assert logits is not None
    n_tokens, n_experts = probabilities.shape
    zeros = probabilities.new_zeros(n_experts)
    pairs = torch.bincount(choice.experts, minlength=n_experts).to(zeros)
    first = torch.bincount(probabilities.argmax(-1), minlength=n_experts).to(zeros)
    return LoadSums(
        tokens=zeros.new_tensor(n_tokens),
        pairs=pairs,
        first=first,
        probabilities=probabilities.sum(0),
        gates=zeros.index_add(0, choice.experts, choice.weights),
        load=pairs if choice.load is None else choice.load,
        squared_z=logits.logsumexp(-1).square().sum(),
    )


def switch_loss(sums: LoadSums) -> Float[Tensor, ""]:
    r"""Return :math:`E \sum_e f_e P_e`: 1 for equally used experts, E if all tokens use one.

    f is the share of pairs of each expert and P its mean probability. Some libraries divide pairs
    by the number of tokens, which multiplies the loss by the number of experts per token.

    References:
        Fedus, Zoph and Shazeer, *Switch Transformers*, JMLR 2022, arXiv:2101.03961, equation 4.
    """
    share = sums.pairs / sums.pairs.sum().clamp(min=1)
    return len(share) * (share * sums.probabilities).sum() / sums.tokens.clamp(min=1)


def gshard_loss(sums: LoadSums) -> Float[Tensor, ""]:
    r"""Return :math:`E \sum_e (c_e / N) m_e`, with first choices c and mean gates m.

    It is the paper's loss, :math:`\frac{1}{E} \sum_e (c_e / N) m_e`, times :math:`E^2` as in
    published code, so that the coefficient does not depend on the number of experts.

    References:
        Lepikhin et al., *GShard*, ICLR 2021, arXiv:2006.16668, algorithm 1.
    """
    n_tokens = sums.tokens.clamp(min=1)
    return len(sums.first) * (sums.first / n_tokens * sums.probabilities / n_tokens).sum()


def squared_variation(values: Float[Tensor, "E"]) -> Float[Tensor, ""]:
    """Return the squared coefficient of variation: variance over squared mean, 0 for no load.

    It is the importance loss for sums of gates, and the load loss for estimated loads.

    References:
        Shazeer et al., *Outrageously Large Neural Networks*, ICLR 2017, arXiv:1701.06538.
    """
    mean = values.mean()
    return (values - mean).square().mean() / mean.square().clamp(min=SMALLEST)


def z_loss(sums: LoadSums) -> Float[Tensor, ""]:
    r"""Return the mean of :math:`(\log \sum_e \exp z_e)^2`, which keeps logits small.

    References:
        Zoph et al., *ST-MoE*, 2022, arXiv:2202.08906, equation 5.
    """
    return sums.squared_z / sums.tokens.clamp(min=1)


def entropy_loss(sums: LoadSums) -> Float[Tensor, ""]:
    r"""Return :math:`\log E - H(P)` for mean probabilities P: 0 for equally used experts."""
    mean = sums.probabilities / sums.tokens.clamp(min=1)
    nothing = (sums.tokens == 0).to(mean)  # no tokens: no loss
    negative_entropy = torch.xlogy(mean, mean.clamp(min=SMALLEST)).sum()
    return (1 - nothing) * mean.new_tensor(len(mean)).log() + negative_entropy


def localised_loss(choice: Assignment, tokens: Tokens, delta: float) -> Float[Tensor, ""]:
    r"""Return the squared variation of the probabilities summed over each example's tokens.

    They are multiplied by :math:`1 + \delta` for the experts of the example's task (``tokens.own``)
    and :math:`1 - \delta` for others, so that tasks prefer their own experts and balance the rest.

    References:
        Dou et al., *LoRAMoE: Alleviating World Knowledge Forgetting in Large Language Models via
        MoE-Style Plugin*, ACL 2024, arXiv:2312.09979, section 3.3, with the squared mean of the
        released code.
    """
    assert tokens.own is not None
    assert tokens.examples is not None
    names, rows = tokens.examples.unique(return_inverse=True)
    weighted = choice.probabilities * torch.where(tokens.own, 1 + delta, 1 - delta)
    sums = weighted.new_zeros(max(1, len(names)), weighted.shape[1]).index_add(0, rows, weighted)
    return squared_variation(sums.flatten())


LOSSES: dict[str, Callable[[LoadSums], Tensor]] = {
    "switch": switch_loss,
    "gshard": gshard_loss,
    "importance": lambda sums: squared_variation(sums.gates),
    "load": lambda sums: squared_variation(sums.load),
    "z": z_loss,
    "entropy": entropy_loss,
}


class Balance(Bounded, nn.Module):
    """A weighted sum of balancing losses; a coefficient of 0 leaves a loss out.

    Each loss is a mean over the tokens of one forward pass; steps of several passes average them.

    Args:
        switch: Coefficient of `switch_loss`; 1e-2 in the paper.
        gshard: Coefficient of `gshard_loss`; 1e-2 in published code.
        importance: Coefficient of `squared_variation` of the summed gates.
        load: Coefficient of `squared_variation` of the load; only for routers that estimate it.
        z: Coefficient of `z_loss`; 1e-3 in the paper.
        entropy: Coefficient of `entropy_loss`.
        localised: Coefficient of `localised_loss`; for tokens with experts of their own.
        delta: Its preference δ for the experts of a task, from 0 to 1.
        global_statistics: Whether to use statistics over all processes, which lets experts
            specialise on the data of one process: products of two means are larger for a part of
            a batch than for the whole.
    """

    def __init__(
        self,
        *,
        switch: NonNegative = 0.0,
        gshard: NonNegative = 0.0,
        importance: NonNegative = 0.0,
        load: NonNegative = 0.0,
        z: NonNegative = 0.0,
        entropy: NonNegative = 0.0,
        localised: NonNegative = 0.0,
        delta: Fraction = 0.1,
        global_statistics: bool = False,
    ) -> None:
        super().__init__()
        factors = zip(LOSSES, (switch, gshard, importance, load, z, entropy), strict=True)
        self.losses = {name: (factor, LOSSES[name]) for name, factor in factors if factor}
        self.localised, self.delta = localised, delta
        self.global_statistics = global_statistics

    def forward(
        self, choice: Assignment, tokens: Tokens | None = None
    ) -> dict[str, Float[Tensor, ""]]:
        """Return the losses of one forward pass by name, coefficients included."""
        found = {}
        if tokens is not None and self.localised:
            found["localised"] = self.localised * localised_loss(choice, tokens, self.delta)
        if not self.losses:
            return found
        sums = load_sums(choice)
        if self.global_statistics:
            sums = sums.over_processes()
        return found | {name: factor * loss(sums) for name, (factor, loss) in self.losses.items()}


class BiasBalance(nn.Module):
    r"""Balancing without a loss: a bias per expert that affects only the choice.

    Experts are chosen by :math:`p_e + b_e`; gates are those of p. After each step,
    :math:`b_e \leftarrow b_e + u\,\mathrm{sign}(\bar c - c_e)` with the load c of that step and the
    ``rate`` u.

    References:
        Wang, Gao, Zhao, Sun and Dai, *Auxiliary-Loss-Free Load Balancing Strategy for
        Mixture-of-Experts*, 2024, arXiv:2408.15664.
    """

    value: Tensor

    def __init__(self, n_experts: int, *, rate: float = 1e-3) -> None:
        super().__init__()
        self.rate = rate
        self.register_buffer("value", torch.zeros(n_experts))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.value)

    @torch.no_grad()
    def adjust(self, load: Float[Tensor, "E"] | Int[Tensor, "E"]) -> None:
        """Update the bias by the load of the last step, of all passes and processes."""
        load = load.to(self.value)
        self.value += self.rate * torch.sign(load.mean() - load)
