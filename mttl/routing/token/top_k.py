"""Top-k routing: each token goes to its k most probable experts."""

from dataclasses import replace
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mttl.io.errors import require_at_most
from mttl.plugins.part_settings import Fraction, PositiveInt
from mttl.routing.token.balance import Balance, BiasBalance
from mttl.routing.token.choice import Assignment, Tokens
from mttl.routing.token.dispatch import keep_pairs
from mttl.routing.token.token_router import LinearRouter


class TopKRouter(LinearRouter):
    r"""Sends each token to its ``top_k`` most probable experts.

    With :math:`p = \mathrm{softmax}(W x + b)` and S the ``top_k`` largest entries of p, the gates
    are :math:`p_e` for e in S, or, normalised, :math:`p_e / \sum_{j \in S} p_j`. Mixtral is
    ``top_k=2``; the Switch Transformer is ``top_k=1, normalise=False, jitter=1e-2``.

    Args:
        top_k: Experts per token.
        normalise: Let the gates of a token sum to 1; with one expert per token they must not.
        jitter: While training, multiply the router's input by U(1 - jitter, 1 + jitter).
        init_scale: The weight starts with variance ``init_scale / in_features``.
        bias: Balances without a loss; see `BiasBalance`.
        balance: As in `TokenRouter`.

    Raises:
        ValueError: If ``top_k`` is above E, or a single gate would be normalised.

    References:
        Fedus, Zoph and Shazeer, *Switch Transformers*, JMLR 2022, arXiv:2101.03961. Jiang et al.,
        *Mixtral of Experts*, 2024, arXiv:2401.04088.
    """

    internal = ("init_scale",)
    lacks: ClassVar = {"takes_bias": ""}
    refuses: ClassVar = {
        "normalise and top_k = 1": "normalise with top_k 1 makes every gate 1, and nothing is "
        "learned: set normalise: false, or kind: switch"
    }

    def __init__(
        self,
        in_features: int,
        n_experts: int,
        *,
        top_k: PositiveInt = 2,
        normalise: bool = True,
        jitter: Fraction = 0.0,
        init_scale: float = 0.1,
        bias: BiasBalance | None = None,
        balance: Balance | None = None,
    ) -> None:
        super().__init__(in_features, n_experts, balance, init_scale=init_scale)
        require_at_most("n_experts", n_experts, top_k=top_k)
        if normalise and top_k == 1 and n_experts > 1:
            raise ValueError(
                "top_k (1) with normalise makes every gate 1 and the router learns nothing; set "
                "normalise to False, as the Switch Transformer does"
            )
        self.top_k = top_k
        self.normalise = normalise
        self.jitter = jitter
        self.bias = bias

    def reset_parameters(self) -> None:
        """Re-initialise the weight and set the bias to 0."""
        super().reset_parameters()
        if self.bias is not None:
            self.bias.reset_parameters()

    def choose(self, tokens: Tokens) -> Assignment:
        """Choose the most probable experts of each token."""
        if self.training and self.jitter:
            factors = torch.empty_like(tokens.states).uniform_(1 - self.jitter, 1 + self.jitter)
            tokens = replace(tokens, states=tokens.states * factors)
        logits = tokens.logits(self.weight)
        liked = logits
        if self.bias is not None:
            # A forbidden expert has probability 0, and no bias may bring it back.
            liked = (torch.softmax(logits, dim=-1) + self.bias.value).where(
                logits > -torch.inf, logits
            )
        chosen = liked.topk(self.top_k, dim=-1).indices
        forbids = tokens.prior is not None
        return top_choice(logits, chosen, normalise=self.normalise, forbids=forbids)


class SwitchRouter(TopKRouter):
    """Sends each token to its most probable expert, with the probability as the gate (Switch).

    Args:
        jitter: While training, multiply the router's input by U(1 - jitter, 1 + jitter).
    """

    def __init__(
        self,
        in_features: int,
        n_experts: int,
        *,
        jitter: Fraction = 1e-2,
        bias: BiasBalance | None = None,
        balance: Balance | None = None,
    ) -> None:
        super().__init__(
            in_features,
            n_experts,
            top_k=1,
            normalise=False,
            jitter=jitter,
            bias=bias,
            balance=balance,
        )


class ExampleRouter(TopKRouter):
    r"""Routes all tokens of an example to the same experts, by their mean; not for causal decoders.

    Otherwise a `TopKRouter`, whose arguments it takes. The mean is of all tokens, later ones among
    them, so this cannot route a causal decoder. Losses weigh an example by its tokens.

    References:
        Compared with token and task routing in Kudugunta et al., *Beyond Distillation: Task-level
        Mixture-of-Experts for Efficient Inference*, Findings of EMNLP 2021, arXiv:2110.03742.
    """

    causal = False
    internal = ("jitter",)
    lacks: ClassVar = {"takes_bias": "it chooses by example; use top_k or switch"}

    def choose(self, tokens: Tokens) -> Assignment:
        """Choose the most probable experts of each example."""
        assert tokens.examples is not None
        x, prior = tokens.states, tokens.prior
        names, example_of = tokens.examples.unique(return_inverse=True)
        sums = x.new_zeros(len(names), x.shape[1]).index_add(0, example_of, x)
        means = sums / torch.bincount(example_of, minlength=len(names))[:, None]
        if prior is not None:  # of the task, hence the same for all tokens of an example
            first = torch.empty_like(names)
            prior = prior[first.scatter_(0, example_of.flip(0), tokens.numbers().flip(0))]
        choice = super().choose(Tokens(means, prior=prior))
        assert choice.logits is not None
        # From pairs of examples to pairs of their tokens, in the same order of precedence.
        pairs, numbers = (choice.tokens[:, None] == example_of[None]).nonzero(as_tuple=True)
        return replace(
            choice,
            tokens=numbers,
            experts=choice.experts[pairs],
            weights=choice.weights[pairs],
            logits=choice.logits[example_of],
            probabilities=choice.probabilities[example_of],
        )


def top_choice(
    logits: Float[Tensor, "N E"],
    chosen: Int[Tensor, "N k"],
    *,
    normalise: bool,
    forbids: bool = False,
) -> Assignment:
    """Turn the chosen experts of each token into pairs, all first choices before the second ones.

    Args:
        logits: Of all experts; minus infinity where an expert is forbidden.
        chosen: Experts of each token, the preferred one first.
        normalise: Let the gates of a token sum to 1.
        forbids: Leave forbidden experts out.
    """
    probabilities = torch.softmax(logits, dim=-1)
    if normalise:
        gates = torch.softmax(logits.gather(-1, chosen), dim=-1)
    else:
        gates = probabilities.gather(-1, chosen)
    tokens = torch.arange(len(logits), device=logits.device).repeat(chosen.shape[1])
    pairs = tokens, chosen.t().flatten(), gates.t().flatten()
    choice = Assignment(*pairs, probabilities, logits)
    if not forbids:
        return choice
    return keep_pairs(choice, (logits.gather(-1, chosen) > -torch.inf).t().flatten())
