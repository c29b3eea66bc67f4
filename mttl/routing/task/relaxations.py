"""Differentiable stand-ins for binary choices.

References:
    Maddison, Mnih and Teh, *The Concrete Distribution*, ICLR 2017, arXiv:1611.00712.
    Jang, Gu and Poole, *Categorical Reparameterization with Gumbel-Softmax*, ICLR 2017,
    arXiv:1611.01144.
"""

import torch
from jaxtyping import Float
from torch import Tensor

# Keeps the two logarithms of the noise finite in float32.
SMALLEST_UNIFORM = 1e-6


def relaxed_bernoulli(
    logits: Float[Tensor, "*shape"], temperature: float | Float[Tensor, ""]
) -> Float[Tensor, "*shape"]:
    """Draw from the relaxed Bernoulli (binary concrete) distribution.

    Computes ``z = sigmoid((logits + log u - log(1 - u)) / temperature)`` with ``u ~ U(0, 1)``,
    drawn from PyTorch's global generator as dropout does. As the temperature falls to 0, ``z``
    becomes a Bernoulli draw with probability ``sigmoid(logits)``.

    Args:
        logits: Log-odds of each choice, of any shape.
        temperature: Positive; a tensor may be annealed without recompiling a graph.

    Returns:
        Values in (0, 1), of the shape of ``logits``, through which gradients flow.
    """
    uniform = torch.rand_like(logits, dtype=torch.float32)
    uniform = uniform.clamp(SMALLEST_UNIFORM, 1 - SMALLEST_UNIFORM)
    noise = uniform.log() - (-uniform).log1p()
    return torch.sigmoid((logits + noise) / temperature).to(logits.dtype)


def straight_through(soft: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Round to 0 or 1 in the forward pass and keep the gradient of the soft value.

    Returns:
        ``soft > 0.5`` as numbers; the gradient with respect to ``soft`` is 1.

    References:
        Bengio, Léonard and Courville, *Estimating or Propagating Gradients Through Stochastic
        Neurons for Conditional Computation*, 2013, arXiv:1308.3432.
    """
    hard = (soft > 0.5).to(soft.dtype)
    # The brackets make the sum exact: rounding must not tell equal columns apart.
    return hard + (soft - soft.detach())
