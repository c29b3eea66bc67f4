"""The ways to take a behaviour out of weights, each a function of one factor λ."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from mttl.aggregation.arithmetic import add_task_vectors, contrast, task_vector
from mttl.aggregation.elastic import elastic_contrast, elastic_removal, fisher_average

State = Mapping[str, Tensor]


@dataclass(frozen=True)
class Trained:
    """The three models of one seed by name of the tensor, and their Fisher information.

    Attributes:
        base: θ0, trained on rows of which some are planted.
        expert: Tuned from it on rows that are not.
        anti_expert: Tuned from it on the planted ones.
        base_fisher: Of θ0 on its own rows, and so on.
    """

    base: State
    expert: State
    anti_expert: State
    base_fisher: State
    expert_fisher: State
    anti_expert_fisher: State

    def good(self, name: str) -> Tensor:
        """Return the expert's task vector."""
        return task_vector(self.base[name], self.expert[name])

    def bad(self, name: str) -> Tensor:
        """Return the anti-expert's task vector."""
        return task_vector(self.base[name], self.anti_expert[name])


def arithmetic(of: Trained, weight: float, name: str) -> Tensor:
    """Subtract the anti-expert's task vector."""
    return add_task_vectors(of.base[name], [of.bad(name)], [-weight])


def cape(of: Trained, weight: float, name: str) -> Tensor:
    """Add the difference of expert and anti-expert."""
    return contrast(of.base[name], of.good(name), of.bad(name), weight)


def elastic(of: Trained, weight: float, name: str) -> Tensor:
    """Elastic weight removal with an anti-expert."""
    return elastic_removal(
        *(of.base[name], of.base_fisher[name], [of.bad(name)], [of.anti_expert_fisher[name]]),
        [-weight],
    )


def elastic_both(of: Trained, weight: float, name: str) -> Tensor:
    """Elastic weight removal with an expert and an anti-expert."""
    return elastic_removal(
        *(of.base[name], of.base_fisher[name], [of.good(name), of.bad(name)]),
        [of.expert_fisher[name], of.anti_expert_fisher[name]],
        [weight, -weight],
    )


def elastic_cape(of: Trained, weight: float, name: str) -> Tensor:
    """CaPE with Fisher information, of the anti-expert."""
    return elastic_contrast(
        *(of.base[name], of.base_fisher[name], of.good(name), of.bad(name)),
        *(of.anti_expert_fisher[name], weight),
    )


def mirrored_average(of: Trained, weight: float, name: str) -> Tensor:
    """Fisher-weighted average of θ0 and θ0 − τ: elastic weight removal that shrinks nothing."""
    bad = of.bad(name)
    return fisher_average(
        *(of.base[name], [0 * bad, -bad]),
        [of.base_fisher[name], of.anti_expert_fisher[name]],
        [1.0, weight],
    )


FACTORS = (0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
# A share per weight, which no factor carries beyond 1.
WIDE = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0)
METHODS: dict[str, tuple[Callable[[Trained, float, str], Tensor], tuple[float, ...]]] = {
    "task arithmetic": (arithmetic, FACTORS),
    "CaPE": (cape, FACTORS),
    "EWR, anti-expert": (elastic, FACTORS),
    "EWR, expert and anti-expert": (elastic_both, FACTORS),
    "EWR as CaPE": (elastic_cape, FACTORS[:-1]),
    "Fisher average with θ0 − τ": (mirrored_average, WIDE),
}
