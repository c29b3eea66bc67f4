"""Top-k routing: each token goes to its most probable experts, possibly with noise."""

from dataclasses import replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mttl.io.errors import require_at_most
from mttl.plugins.part_settings import Fraction, Positive, PositiveInt
from mttl.routing.token.balance import BiasBalance
from mttl.routing.token.choice import Assignment, Tokens, keep_pairs
from mttl.routing.token.token_router import LinearRouter, TokenRouter

# Why routers that draw cannot be used in reinforcement learning.
NOISE = (
    "its noise changes actions between playing and learning; set {path}.kind: top_k, without jitter"
)


class TopKRouter(LinearRouter):
    r"""Sends each token to its ``top_k`` most probable experts.

    With :math:`p = \mathrm{softmax}(W x + b)` and S the ``top_k`` largest entries of p, the gates
    are :math:`p_e` for e in S, or, normalised, :math:`p_e / \sum_{j \in S} p_j`. Mixtral is
    ``top_k=2``; the Switch Transformer is ``top_k=1, normalise=False, jitter=1e-2``.

    Args:
        top_k: Number of experts per token.
        normalise: Whether the gates of a token sum to 1; must be false for one expert per token.
        jitter: Range of the noise in training: inputs are multiplied by U(1 - jitter, 1 + jitter).
        bias: Balancing bias without a loss; see `BiasBalance`.

    Raises:
        ValueError: If ``top_k`` is above E, or a single gate would be normalised.

    References:
        Fedus, Zoph and Shazeer, *Switch Transformers*, JMLR 2022, arXiv:2101.03961. Jiang et al.,
        *Mixtral of Experts*, 2024, arXiv:2401.04088.
    """

    lacks: ClassVar = {"takes_bias": "", "plays": ("jitter", NOISE)}
    refuses: ClassVar = {
        "normalise and top_k = 1": "with normalise and top_k 1 every gate is 1 and the router "
        "learns nothing: set normalise: false, or kind: switch"
    }

    def __init__(
        self,
        in_features: int,
        n_experts: int,
        *,
        top_k: PositiveInt = 2,
        normalise: bool = True,
        jitter: Fraction = 0.0,
        bias: BiasBalance | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(in_features, n_experts, **settings)
        require_at_most("n_experts", n_experts, top_k=top_k)
        if normalise and top_k == 1 and n_experts > 1:
            raise ValueError("with normalise and top_k (1) every gate is 1; set normalise: false")
        self.top_k, self.normalise, self.jitter, self.bias = top_k, normalise, jitter, bias

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.bias is not None:
            self.bias.reset_parameters()

    def choose(self, tokens: Tokens) -> Assignment:
        if self.training and self.jitter:
            factors = torch.empty_like(tokens.states).uniform_(1 - self.jitter, 1 + self.jitter)
            tokens = replace(tokens, states=tokens.states * factors)
        logits = tokens.logits(self.weight)
        liked = logits
        if self.bias is not None:
            # Excluded experts stay excluded for any bias.
            liked = (torch.softmax(logits, dim=-1) + self.bias.value).where(
                logits > -torch.inf, logits
            )
        chosen = liked.topk(self.top_k, dim=-1).indices
        forbids = tokens.prior is not None
        return top_choice(logits, chosen, normalise=self.normalise, forbids=forbids)


class SwitchRouter(TopKRouter):
    """Sends each token to its most probable expert, with the probability as the gate (Switch)."""

    internal = ("top_k", "normalise")

    def __init__(
        self, in_features: int, n_experts: int, *, jitter: Fraction = 1e-2, **settings: Any
    ) -> None:
        fixed = {"top_k": 1, "normalise": False}
        super().__init__(in_features, n_experts, jitter=jitter, **fixed, **settings)


class ExampleRouter(TopKRouter):
    r"""Routes all tokens of an example to the same experts, by their mean; not for causal decoders.

    It has the arguments of `TopKRouter`. The mean includes later tokens, so the router cannot be
    used in a causal decoder. Losses weight an example by its number of tokens.

    References:
        Compared with token and task routing in Kudugunta et al., *Beyond Distillation: Task-level
        Mixture-of-Experts for Efficient Inference*, Findings of EMNLP 2021, arXiv:2110.03742.
    """

    causal = False
    internal = ("jitter",)
    lacks: ClassVar = {"takes_bias": "it routes examples; set moe.router.kind: top_k or switch"}

    def choose(self, tokens: Tokens) -> Assignment:
        assert tokens.examples is not None
        x, prior = tokens.states, tokens.prior
        names, example_of = tokens.examples.unique(return_inverse=True)
        sums = x.new_zeros(len(names), x.shape[1]).index_add(0, example_of, x)
        means = sums / torch.bincount(example_of, minlength=len(names))[:, None]
        if prior is not None:  # equal for all tokens of an example, as it is that of the task
            first = torch.empty_like(names)
            prior = prior[first.scatter_(0, example_of.flip(0), tokens.numbers().flip(0))]
        choice = super().choose(Tokens(means, prior=prior))
        assert choice.logits is not None
        # Expand pairs of examples to pairs of their tokens, in the same order of precedence.
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
    """Return the pairs of chosen experts, all first choices before the second ones.

    With ``forbids``, experts whose logit is minus infinity are left out.
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


class GShardRouter(LinearRouter):
    r"""Sends each token to its best expert, and at random to its second best.

    The gates are :math:`g_1, g_2`, the two largest probabilities divided by their sum. In training
    the second expert is kept with probability :math:`\min(1, g_2 / \tau)`, in evaluation if
    :math:`g_2 > \tau`. Without it, :math:`g_1` does not change.

    Args:
        threshold: Gate τ from which the second expert is always used in training.

    References:
        Lepikhin et al., *GShard: Scaling Giant Models with Conditional Computation and Automatic
        Sharding*, ICLR 2021, arXiv:2006.16668.
    """

    lacks: ClassVar = {"plays": NOISE}

    def __init__(
        self, in_features: int, n_experts: int, *, threshold: Positive = 0.2, **settings: Any
    ) -> None:
        super().__init__(in_features, n_experts, **settings)
        self.threshold = threshold

    def choose(self, tokens: Tokens) -> Assignment:
        logits = tokens.logits(self.weight)
        chosen = logits.topk(2, dim=-1).indices
        choice = top_choice(logits, chosen, normalise=True, forbids=tokens.prior is not None)
        weights = choice.weights.detach()
        level = torch.rand_like(weights) if self.training else torch.ones_like(weights)
        kept = weights > level * self.threshold
        kept[: len(tokens)] = True  # first choices come first
        return keep_pairs(choice, kept)


class NoisyTopKRouter(TokenRouter):
    r"""Sends each token to its best experts by logits with learned noise (Shazeer et al.).

    In training, :math:`h = W_g x + \epsilon \odot \sigma` with
    :math:`\sigma = \mathrm{softplus}(W_n x) + 10^{-2}` and standard normal :math:`\epsilon`; in
    evaluation :math:`h = W_g x`. Gates are the softmax over the ``top_k`` largest entries of h. The
    load of expert e is estimated by the probability that it is chosen if only its noise is
    resampled, :math:`\sum_x \Phi((W_g x - t_e(x)) / \sigma)_e`, where :math:`t_e` is the
    ``top_k``-th largest entry of h without e.

    Args:
        top_k: Number of experts per token.

    Raises:
        ValueError: If ``top_k`` is above E - 1.

    References:
        Shazeer et al., *Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts
        Layer*, ICLR 2017, arXiv:1701.06538.
    """

    lacks: ClassVar = {"estimates_load": "", "plays": NOISE}

    def __init__(
        self, in_features: int, n_experts: int, *, top_k: PositiveInt = 2, **settings: Any
    ) -> None:
        super().__init__(in_features, n_experts, **settings)
        # The estimate of the load compares with the first expert that is not chosen.
        require_at_most("n_experts - 1", n_experts - 1, top_k=top_k)
        self.top_k = top_k
        self.weight = nn.Parameter(torch.empty(n_experts, in_features))
        self.noise_weight = nn.Parameter(torch.empty(n_experts, in_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)  # at first, only noise decides
        nn.init.zeros_(self.noise_weight)

    def choose(self, tokens: Tokens) -> Assignment:
        clean = tokens.logits(self.weight)
        noisy, load = clean, None
        if self.training:
            spread = nn.functional.softplus(tokens.states @ self.noise_weight.float().t())
            deviation = spread + 1e-2  # never without noise
            noisy = clean + torch.randn_like(clean) * deviation
            load = expected_load(clean, noisy, deviation, self.top_k).sum(0)
        chosen = noisy.topk(self.top_k, dim=-1).indices
        choice = top_choice(noisy, chosen, normalise=True, forbids=tokens.prior is not None)
        return choice if load is None else replace(choice, load=load)


def expected_load(
    clean: Float[Tensor, "N E"],
    noisy: Float[Tensor, "N E"],
    deviation: Float[Tensor, "N E"],
    top_k: int,
) -> Float[Tensor, "N E"]:
    """Return the probability that each expert is chosen if only its noise is resampled."""
    best = noisy.topk(top_k + 1, dim=-1).values
    last, next_best = best[:, -2:-1], best[:, -1:]
    # Without a chosen expert, the next best one is among the chosen.
    threshold = torch.where(noisy >= last, next_best, last)
    # With fewer allowed experts than choices, allowed ones are always chosen, excluded ones never.
    margin = torch.where(clean > -torch.inf, clean - threshold, clean).clamp(-1e9, 1e9)
    return torch.special.ndtr(margin / deviation)
