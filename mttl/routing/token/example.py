"""Example-level routing: all tokens of an example go to the same experts."""

from dataclasses import replace
from typing import ClassVar

import torch

from mttl.routing.token.choice import RoutingDecision
from mttl.routing.token.tokens import Tokens
from mttl.routing.token.top_k import TopKRouter


class ExampleRouter(TopKRouter):
    r"""Routes all tokens of an example to the same experts, by their mean; not for causal decoders.

    Otherwise a `TopKRouter`, whose arguments it takes. The mean is of all tokens, later ones among
    them, so this cannot route a causal decoder. Losses weigh an example by its tokens.

    References:
        Compared with token and task routing in Kudugunta et al., *Beyond Distillation: Task-level
        Mixture-of-Experts for Efficient Inference*, Findings of EMNLP 2021, arXiv:2110.03742.
    """

    causal = False
    lacks: ClassVar = {"takes_bias": "it chooses by example; use top_k or switch"}
    internal = ("jitter",)

    def choose(self, tokens: Tokens) -> RoutingDecision:
        """Choose the most probable experts of each example.

        Raises:
            ValueError: If there are no examples.
        """
        if tokens.examples is None:
            raise ValueError("ExampleRouter routes whole examples: pass the example of each token")
        x, prior = tokens.states, tokens.prior
        names, example_of = tokens.examples.unique(return_inverse=True)
        sums = x.new_zeros(len(names), x.shape[1]).index_add(0, example_of, x)
        means = sums / torch.bincount(example_of, minlength=len(names))[:, None]
        if prior is not None:  # of the task, hence the same for all tokens of an example
            first = torch.empty_like(names)
            prior = prior[first.scatter_(0, example_of.flip(0), tokens.numbers().flip(0))]
        choice = super().choose(Tokens(means, prior=prior))
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
