r"""Diagonal Fisher information of a model's parameters, and merging by it.

It measures the dependence of a model's answers on each parameter:

.. math::

    f = \frac{1}{N} \sum_{n=1}^{N} \left( \nabla_\theta \log p(y_n \mid x_n; \theta) \right)^2

There are two choices:

- the labels y: those of the data (the *empirical* Fisher information), or samples of the model (the
  Fisher information). Labels are part of the batches here; for samples, see
  `mttl.merging.likelihood.sample_targets`;
- the gradients: of each example, as in the equation, or of each batch, a faster approximation.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from mttl.config.enums import GRADIENTS
from mttl.io.errors import require_one_of, require_positive

Batch = Mapping[str, Tensor]
# Function that calls the model and returns log-likelihood and number of tokens of each example.
LogLikelihood = Callable[[Callable[..., Any], Batch], tuple[Float[Tensor, "B"], Float[Tensor, "B"]]]


def diagonal_fisher(
    model: nn.Module,
    log_likelihood: LogLikelihood,
    batches: Iterable[Batch],
    *,
    gradients: str = "example",
    at_once: int = 8,
    on_batch: Callable[[int], object] = lambda n_examples: None,
) -> dict[str, Tensor]:
    """Return the diagonal Fisher information of every floating-point parameter, in float32.

    The model runs in evaluation mode. Shared parameters appear once, under their first name.

    Args:
        model: Any model; parameters and their gradients do not change.
        log_likelihood: Function that returns log p(y | x) of every example, summed over its tokens,
            and the number of these tokens.
        batches: Tensors with a leading axis B of examples.
        gradients: Unit of the squared gradients: each ``"example"``, or each ``"batch"``, as in the
            code released with elastic weight removal: the gradient of the mean loss over the
            batch's tokens is squared, divided by the number of examples, and averaged.
        at_once: Number of examples whose gradients are in memory together; above 1 by
            `torch.func.vmap`, which is faster, but supports no branches on input values.
        on_batch: Function that is called with the number of examples after every batch.

    Raises:
        ValueError: If there is no example, or a gradient is not finite.

    References:
        Kunstner, Hennig and Balles, *Limitations of the Empirical Fisher Approximation for Natural
        Gradient Descent*, NeurIPS 2019, arXiv:1905.12558, on the two kinds of labels.
    """
    require_one_of(GRADIENTS, gradients=gradients)
    parameters = {
        name: value.detach()
        for name, value in model.named_parameters()
        if value.is_floating_point()
    }
    total = {
        name: torch.zeros_like(value, dtype=torch.float32) for name, value in parameters.items()
    }

    def likelihood(values: dict[str, Tensor], batch: Batch) -> tuple[Tensor, Tensor]:
        def call(**inputs: Any) -> Any:
            return functional_call(model, values, kwargs=inputs)

        return log_likelihood(call, batch)

    def example(values: dict[str, Tensor], row: Batch) -> Tensor:
        return likelihood(values, {name: value[None] for name, value in row.items()})[0].sum()

    def gradients_of(rows: Batch) -> Iterable[tuple[str, Tensor]]:
        def mean_loss(values: dict[str, Tensor]) -> Tensor:
            sums, counts = likelihood(values, rows)
            return -sums.sum() / counts.sum()

        if gradients == "batch":
            return _gradient(mean_loss, parameters)
        if at_once > 1:  # with a leading axis of examples
            found = vmap(grad(example), in_dims=(None, 0), randomness="error")(parameters, rows)
            return found.items()
        row = {name: value[0] for name, value in rows.items()}
        return _gradient(lambda values: example(values, row), parameters)

    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        count = 0
        for batch in batches:
            size = len(next(iter(batch.values())))
            step, divisor = (size, size) if gradients == "batch" else (at_once, 1)
            for start in range(0, size, step):
                rows = {name: value[start : start + step] for name, value in batch.items()}
                for name, value in gradients_of(rows):
                    squares = value.float().square().sum_to_size(total[name].shape)
                    total[name] += squares / divisor
            count += size // divisor
            on_batch(size)
    finally:
        for module, mode in training.items():
            module.training = mode
    if not count:
        raise ValueError("batches is empty; Fisher information needs at least one example")
    for name, value in total.items():
        value.div_(count)
        if not value.isfinite().all():
            raise ValueError(f"the gradient of '{name}' is not finite; load the model in float32")
    return total


def _gradient(
    function: Callable[[dict[str, Tensor]], Tensor], parameters: dict[str, Tensor]
) -> Iterable[tuple[str, Tensor]]:
    """Return the gradient by name; it is 0 for parameters that do not affect the value."""
    leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
    with torch.enable_grad():
        value = function(leaves)
    found = torch.autograd.grad(value, list(leaves.values()), materialize_grads=True)
    return zip(leaves, found, strict=True)


FLOOR = 1e-6


def elastic_removal(
    base: Float[Tensor, "*shape"],
    base_fisher: Float[Tensor, "*shape"],
    vectors: Sequence[Float[Tensor, "*shape"]],
    fishers: Sequence[Float[Tensor, "*shape"]],
    weights: Sequence[float],
    *,
    base_weight: float = 1.0,
    floor: float = FLOOR,
    ceiling: float | None = None,
) -> Float[Tensor, "*shape"]:
    r"""Return the merge of a base and task vectors by elastic weight removal (EWR).

    .. math::

        \theta' = \frac{\lambda_0 f_0 \theta_0 + \sum_i \lambda_i f_i \tau_i}{Z}, \qquad
        Z = \lambda_0 f_0 + \sum_i |\lambda_i| f_i

    with every Fisher information f clipped to [floor, ceiling]. A positive :math:`\lambda_i` adds
    a vector (an expert), a negative one removes it (an anti-expert).

    The base shrinks by :math:`\lambda_0 f_0 / Z`, most for weights whose Fisher information is
    larger for a vector than for the base: these are removed. If both are at the floor, it shrinks
    by :math:`1 / (1 + \sum_i |\lambda_i|)`, which affects the whole network for large λ.

    Two settings are published as EWR: the paper's algorithm, with λ0 = 1, one vector per expert and
    anti-expert, λ = 0.15 for an anti-expert and no ceiling; and, in the released code, CaPE with
    Fisher information: one vector :math:`\theta_E - \theta_A`, λ0 = 1 − λ, and a ceiling of 1e6.

    Raises:
        ValueError: If numbers of tensors differ, or ``base_weight`` or ``floor`` is not positive.

    References:
        Daheim et al., *Elastic Weight Removal for Faithful and Abstractive Dialogue Generation*,
        NAACL 2024, arXiv:2303.17574.
    """
    require_positive(base_weight=base_weight, floor=floor)
    normaliser = base_weight * base_fisher.clamp(floor, ceiling)
    merged = normaliser * base
    for vector, fisher, weight in zip(vectors, fishers, weights, strict=True):
        bounded = fisher.clamp(floor, ceiling)
        merged.addcmul_(bounded, vector, value=weight)
        normaliser.add_(bounded, alpha=abs(weight))
    return merged.div_(normaliser)


def fisher_average(
    base: Float[Tensor, "*shape"],
    vectors: Sequence[Float[Tensor, "*shape"]],
    fishers: Sequence[Float[Tensor, "*shape"]],
    weights: Sequence[float],
    *,
    floor: float = FLOOR,
) -> Float[Tensor, "*shape"]:
    r"""Return the average of models, weighted by their Fisher information.

    .. math::

        \theta' = \frac{\sum_i \lambda_i f_i \theta_i}{\sum_i \lambda_i f_i}
                = \theta_0 + \frac{\sum_i \lambda_i f_i \tau_i}{\sum_i \lambda_i f_i}

    The second form is computed, which is more accurate for small changes; the base only serves as
    the origin. Arguments are those of `elastic_removal`.

    Raises:
        ValueError: If numbers of tensors differ or are 0, or a weight or the floor is not positive.

    References:
        Matena and Raffel, *Merging Models with Fisher-Weighted Averaging*, NeurIPS 2022,
        arXiv:2111.09832.
    """
    require_positive(floor=floor)
    if not vectors or min(weights) <= 0:
        raise ValueError(f"weights ({list(weights)}) must be positive, and at least one")
    pairs = zip(weights, fishers, strict=True)
    weighed = [weight * fisher.clamp(floor) for weight, fisher in pairs]
    first, *changes = (part * vector for part, vector in zip(weighed, vectors, strict=True))
    return base + sum(changes, start=first) / sum(weighed[1:], start=weighed[0])
