"""Priors of the task-by-skill matrix, as losses."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mttl.plugins.part_settings import NonNegative, Positive


@dataclass(frozen=True)
class IBP:
    """The Indian Buffet Process prior on the matrix of tasks by skills.

    Args:
        alpha: Concentration; larger values favour more skills per task.
        weight: Weight of the negative log-probability in the loss, summed over groups.
    """

    alpha: Positive = 5.0
    weight: Positive = 1.0


@dataclass(frozen=True)
class RoutingPrior:
    """The terms of the loss about the routing matrix; none by default.

    Args:
        ibp: Indian Buffet Process prior.
        sparsity: Weight of the mean probability, which favours fewer skills per task.
        mutual_information: Weight of the negative mutual information of tasks and skills.
        orthogonality: Weight of the mean squared cosine between the skills' columns.
    """

    ibp: IBP | None = None
    sparsity: NonNegative = 0.0
    mutual_information: NonNegative = 0.0
    orthogonality: NonNegative = 0.0

    def __call__(self, probabilities: Float[Tensor, "G T H K"]) -> Float[Tensor, ""]:
        """Return the loss: the IBP is summed over groups and heads, other terms are averaged."""
        # One matrix of tasks by skills per group and head.
        matrices = probabilities.transpose(1, 2).flatten(0, 1)  # (G H, T, K)
        loss = probabilities.new_zeros(())
        if self.ibp is not None:
            terms = [negative_log_ibp(matrix, self.ibp.alpha) for matrix in matrices]
            loss = loss + self.ibp.weight * torch.stack(terms).sum()
        if self.sparsity:
            loss = loss + self.sparsity * matrices.mean()
        if self.mutual_information:
            loss = loss - self.mutual_information * mutual_information(matrices).mean()
        if self.orthogonality:
            loss = loss + self.orthogonality * column_similarity(matrices).mean()
        return loss


NO_PRIOR = RoutingPrior()


def negative_log_ibp(probabilities: Float[Tensor, "T K"], alpha: float) -> Float[Tensor, ""]:
    r"""Return the negative log-probability of a feature matrix under the Indian Buffet Process.

    For a binary matrix of T rows whose K non-empty columns have sums :math:`m_j`, and whose
    distinct columns h occur :math:`K_h` times,

    .. math::
        \log p(Z \mid \alpha) = K \log\alpha - \sum_h \log K_h! - \alpha H_T
            + \sum_j \log \frac{(T - m_j)!\,(m_j - 1)!}{T!},
        \qquad H_T = \sum_{t \le T} 1/t.

    Probabilities are rounded to a binary matrix with a straight-through gradient, so gradients
    come from the column sums only. (The preprint of Ponti et al. prints the harmonic term with a
    sum over tasks; the process has :math:`\alpha H_T`.)

    References:
        Griffiths and Ghahramani, *The Indian Buffet Process: An Introduction and Review*, JMLR 12,
        2011, equation 14. Ponti, Sordoni, Bengio and Reddy, *Combining Modular Skills in Multitask
        Learning*, 2022, arXiv:2202.13914, equation 4.
    """
    n_tasks = probabilities.shape[0]
    binary = straight_through(probabilities)
    sums = binary.sum(dim=0)
    used = sums.detach() > 0
    sums = torch.where(used, sums, 1.0)  # an empty column adds nothing
    columns_of = binary.detach().T
    equal = (columns_of[:, None] == columns_of).all(dim=-1)
    occurrence = torch.where(used, equal.tril().sum(dim=-1), 1)  # product over K_h equal: K_h!
    log_histories = occurrence.to(probabilities.dtype).log().sum()
    harmonic = sum(1.0 / task for task in range(1, n_tasks + 1))
    all_orders = torch.lgamma(sums.new_tensor(n_tasks + 1.0))
    columns = torch.lgamma(n_tasks - sums + 1) + torch.lgamma(sums) - all_orders
    log_alpha = sums.new_tensor(alpha).log()
    log_probability = (
        used.sum() * log_alpha
        - log_histories
        - sums.new_tensor(alpha) * harmonic
        + torch.where(used, columns, 0.0).sum()
    )
    return -log_probability


def mutual_information(probabilities: Float[Tensor, "M T K"]) -> Float[Tensor, "M"]:
    """Return the mutual information of tasks and skills, ``H(skill) - H(skill | task)``, in nats.

    Rows are normalised to distributions over skills, and tasks have equal probabilities. It is 0 if
    all tasks use the same skills, and ``log K`` for an even partition of tasks into K skills.
    """
    rows = probabilities / (probabilities.sum(-1, keepdim=True) + 1e-12)
    return torch.special.entr(rows.mean(1)).sum(-1) - torch.special.entr(rows).sum(-1).mean(1)


def column_similarity(probabilities: Float[Tensor, "M T K"]) -> Float[Tensor, "M"]:
    """Return the mean squared cosine between the columns of different skills.

    It is 0 if no task uses two skills, 1 if all skills have the same tasks, and 0 for a single
    skill.
    """
    n_skills = probabilities.shape[-1]
    if n_skills == 1:
        return probabilities.new_zeros(probabilities.shape[0])
    columns = torch.nn.functional.normalize(probabilities, dim=1)
    cosines = columns.transpose(1, 2) @ columns  # (M, K, K)
    off_diagonal = cosines.square().sum((1, 2)) - cosines.diagonal(dim1=1, dim2=2).square().sum(1)
    return off_diagonal / (n_skills * (n_skills - 1))


def straight_through(soft: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return ``soft > 0.5`` as numbers; the gradient with respect to ``soft`` is 1.

    References:
        Bengio, Léonard and Courville, *Estimating or Propagating Gradients Through Stochastic
        Neurons for Conditional Computation*, 2013, arXiv:1308.3432.
    """
    hard = (soft > 0.5).to(soft.dtype)
    # The brackets make the sum exact, so that equal columns stay equal.
    return hard + (soft - soft.detach())
