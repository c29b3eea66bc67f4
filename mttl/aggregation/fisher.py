r"""Merging by Fisher information: how much a model's answers depend on each weight.

A parameter that they hardly depend on may be moved or removed at little cost. The diagonal of the
Fisher information measures that dependence:

.. math::

    f = \frac{1}{N} \sum_{n=1}^{N} \left( \nabla_\theta \log p(y_n \mid x_n; \theta) \right)^2

with the square taken of every example's own gradient. Two things are a choice:

- the labels y: the data's own (the *empirical* Fisher information), or drawn from the model (the
  Fisher information itself). Here labels come with the batches, so drawing them is the caller's
  part; see `mttl.merging.likelihood.sample_targets`;
- the gradients: of each example, as the equation says, or of each batch, which needs one backward
  pass per batch and is only an approximation: squares of sums are not sums of squares.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from mttl.config.enums import GRADIENTS
from mttl.io.errors import require_at_least, require_one_of, require_positive

Batch = Mapping[str, Tensor]
# Calls the model and returns, per example, the log-likelihood and the number of its tokens.
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
    """Estimate the diagonal Fisher information of every floating-point parameter.

    The model is in evaluation mode meanwhile: dropout would add its own variance.

    Args:
        model: Any model. Its parameters are left as they are, gradients included.
        log_likelihood: Takes a function that calls the model, and a batch; returns log p(y | x) of
            every example, summed over its tokens, and the number of these tokens.
        batches: Tensors with a leading axis B over examples.
        gradients: ``"example"`` squares the gradient of each example. ``"batch"`` does what the
            code released with elastic weight removal does: it squares the gradient of the mean
            loss over the batch's tokens, divides by the number of examples, and averages.
        at_once: Examples whose gradients are held at the same time. 1 loops with plain automatic
            differentiation; more use `torch.func.vmap`, which is faster, and asks that the model's
            code does not branch on values of its inputs.
        on_batch: Called with the number of examples after every batch, for a progress bar.

    Returns:
        By name of the parameter, in float32; shared parameters appear once, under their first name.

    Raises:
        ValueError: If there is no example, or a gradient is not finite.

    References:
        Kunstner, Hennig and Balles, *Limitations of the Empirical Fisher Approximation for Natural
        Gradient Descent*, NeurIPS 2019, arXiv:1905.12558, on what the two kinds of labels mean.
    """
    require_one_of(GRADIENTS, gradients=gradients)
    require_at_least(1, at_once=at_once)
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

    def add_batch(batch: Batch, size: int) -> None:
        def mean_loss(values: dict[str, Tensor]) -> Tensor:
            sums, counts = likelihood(values, batch)
            return -sums.sum() / counts.sum()

        for name, value in _gradient(mean_loss, parameters):
            total[name] += value.float().square() / size

    def add_examples(rows: Batch) -> None:
        if at_once > 1:
            found = vmap(grad(example), in_dims=(None, 0), randomness="error")(parameters, rows)
            for name, value in found.items():
                total[name] += value.float().square().sum(0)
            return
        row = {name: value[0] for name, value in rows.items()}
        for name, value in _gradient(lambda values: example(values, row), parameters):
            total[name] += value.float().square()

    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        count = 0
        for batch in batches:
            size = len(next(iter(batch.values())))
            if gradients == "batch":
                add_batch(batch, size)
                count += 1
            else:
                for start in range(0, size, at_once):
                    add_examples({k: value[start : start + at_once] for k, value in batch.items()})
                count += size
            on_batch(size)
    finally:
        for module, mode in training.items():
            module.training = mode
    if not count:
        raise ValueError("batches is empty: Fisher information is a mean over examples")
    for name, value in total.items():
        value.div_(count)
        if not value.isfinite().all():
            raise ValueError(
                f"the gradient of '{name}' is not finite; a model in half precision may overflow: "
                "load it in float32"
            )
    return total


def _gradient(
    function: Callable[[dict[str, Tensor]], Tensor], parameters: dict[str, Tensor]
) -> Iterable[tuple[str, Tensor]]:
    """Return the gradient by name; a parameter that has no part in the value has the gradient 0."""
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
    r"""Elastic weight removal (EWR): add and remove task vectors, weighed by Fisher information.

    .. math::

        \theta' = \frac{\lambda_0 f_0 \theta_0 + \sum_i \lambda_i f_i \tau_i}{Z}, \qquad
        Z = \lambda_0 f_0 + \sum_i |\lambda_i| f_i

    with every Fisher information f held within [floor, ceiling]. The sign of :math:`\lambda_i` says
    whether a vector is added (an expert) or removed (an anti-expert); Z takes its magnitude.

    The numerator holds task vectors and not models, but Z holds their Fisher information. So the
    base itself shrinks by :math:`\lambda_0 f_0 / Z`, most where a vector's information is large
    beside the base's: there the weight is removed. Where both rest on the floor it shrinks by
    :math:`1 / (1 + \sum_i |\lambda_i|)`, which for large λ is felt by the whole network.

    Two settings are published as EWR: the paper's algorithm, with λ0 = 1, one vector per expert and
    anti-expert, λ = 0.15 for an anti-expert and no ceiling; and, in the released code, CaPE with
    Fisher information: one vector :math:`\theta_E - \theta_A`, λ0 = 1 − λ, and a ceiling of 1e6.

    Args:
        base: A parameter of the base, θ0.
        base_fisher: Its Fisher information f0, on the base's data.
        vectors: Task vectors τ = θ − θ0, of all experts and anti-experts.
        fishers: The Fisher information of each, at the tuned model on its own data.
        weights: λ of each vector, negative for anti-experts.
        base_weight: λ0.
        floor: The smallest Fisher information.
        ceiling: The largest, if any.

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
    r"""Average models, each weight by its Fisher information.

    .. math::

        \theta' = \frac{\sum_i \lambda_i f_i \theta_i}{\sum_i \lambda_i f_i}
                = \theta_0 + \frac{\sum_i \lambda_i f_i \tau_i}{\sum_i \lambda_i f_i}

    The second form is computed: it keeps the digits of small changes. The base has no part in the
    average but as a place to measure from. Arguments are those of `elastic_removal`.

    Raises:
        ValueError: If numbers of tensors differ or are 0, or a weight or the floor is not positive.

    References:
        Matena and Raffel, *Merging Models with Fisher-Weighted Averaging*, NeurIPS 2022,
        arXiv:2111.09832.
    """
    require_positive(floor=floor)
    if not vectors or min(weights) <= 0:
        raise ValueError(
            f"weights ({list(weights)}) must be positive, and there must be at least one: an "
            "average cannot subtract"
        )
    pairs = zip(weights, fishers, strict=True)
    weighed = [weight * fisher.clamp(floor) for weight, fisher in pairs]
    first, *changes = (part * vector for part, vector in zip(weighed, vectors, strict=True))
    return base + sum(changes, start=first) / sum(weighed[1:], start=weighed[0])
