"""Sums over the tokens of a layer, from which balancing losses are computed."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mttl.routing.token.choice import RoutingDecision


@dataclass(frozen=True)
class LoadSums:
    """Sums over the tokens of a layer.

    Attributes:
        tokens: How many there are.
        pairs: Pairs of each expert, without gradient.
        first: Tokens of which each expert is the most probable one, without gradient.
        probabilities: Of each expert.
        gates: Of each expert; its importance.
        load: A differentiable estimate of ``pairs``, or ``pairs`` where the router has none.
        squared_z: Squared log-sum-exp of the logits.
    """

    tokens: Float[Tensor, ""]
    pairs: Float[Tensor, "E"]
    first: Float[Tensor, "E"]
    probabilities: Float[Tensor, "E"]
    gates: Float[Tensor, "E"]
    load: Float[Tensor, "E"]
    squared_z: Float[Tensor, ""]

    def over_processes(self) -> "LoadSums":
        """Return the sums over all processes, differentiable; the same on each.

        The gradient of the sum of all processes' losses arrives, so that processes that average
        their gradients, as DDP does, end with the gradient of the loss of the whole batch.
        """
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return self
        scalars = torch.stack([self.tokens, self.squared_z])
        vectors = [self.pairs, self.first, self.probabilities, self.gates, self.load]
        total = _SumOverProcesses.apply(torch.cat([scalars, *vectors]))
        pairs, first, probabilities, gates, load = total[2:].chunk(5)  # type: ignore[index]
        return LoadSums(
            total[0],  # type: ignore[index]
            pairs.detach(),
            first.detach(),
            probabilities,
            gates,
            load,
            total[1],  # type: ignore[index]
        )


def load_sums(choice: RoutingDecision) -> LoadSums:
    """Sum what the losses need over the tokens of a choice."""
    probabilities = choice.probabilities
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
        squared_z=choice.logits.logsumexp(-1).square().sum(),
    )


class _SumOverProcesses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, values: Tensor) -> Tensor:
        total = values.clone()
        torch.distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        total = grad.clone()
        torch.distributed.all_reduce(total)
        return total
