r"""Model-based clustering (MBC) of library members by their weights.

All factors of a member form one vector. Vectors are reduced by a truncated SVD of the matrix of all
members, scaled to length 1, and clustered by k-means. One new skill per cluster is trained on the
tasks of its members.

The released code (microsoft/mttl) first sets the smallest entries of each member to 0, uses a
randomised SVD, clusters the rows of the cosine matrix instead of the vectors, and needs the number
of clusters. Here the SVD is exact, from inner products without the vectors, and the number may be
that of the best silhouette. PEFT's scale is in the second factors.

References:
    Ostapenko et al., *Towards Modular LLMs by Building and Reusing a Library of LoRAs*, ICML 2024,
    arXiv:2405.11157. Rousseeuw, *Silhouettes*, Journal of Computational and Applied Mathematics
    1987.
"""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mttl.io.errors import ConfigError
from mttl.library.stacking import stack_members
from mttl.merging.low_rank_factors import LowRank

STARTS = 10


def inner_products(
    members: Sequence[Mapping[str, LowRank]], *, by: str = "weights"
) -> Float[Tensor, "K K"]:
    """Return the inner products of all members, summed over layers; missing layers count as 0.

    They are those of the factors (``by="weights"``), as in the paper, or of the products B Aᵀ
    (``"changes"``), which do not depend on the factorisation.
    """
    total = torch.zeros(len(members), len(members), dtype=torch.float64)
    for factors in stack_members(members).values():
        down, up = (factor.double() for factor in factors)
        if by == "weights":
            for factor in (down, up):
                total += factor.flatten(1) @ factor.flatten(1).t()
        else:
            inside = torch.einsum("kir,lis->klrs", down, down)
            total += (inside * torch.einsum("kor,los->klrs", up, up)).sum((2, 3))
    return total


def embedded(products: Float[Tensor, "K K"], n_components: int) -> Float[Tensor, "K c"]:
    """Return the truncated SVD of vectors with given inner products, as rows of length 1."""
    values, vectors = torch.linalg.eigh(products)
    kept = slice(max(0, len(values) - n_components), None)
    points = vectors[:, kept] * values[kept].clamp_min(0).sqrt()
    return torch.nn.functional.normalize(points, dim=1).flip(1)


def k_means(points: Float[Tensor, "K c"], n_clusters: int, *, seed: int = 0) -> Int[Tensor, "K"]:
    """Return the cluster of every point, the best of ten runs; numbered by first occurrence."""
    from sklearn.cluster import KMeans

    if not 1 <= n_clusters <= len(points):
        raise ConfigError(f"n_clusters ({n_clusters}) must be 1 to {len(points)}, the members")
    model = KMeans(n_clusters, n_init=STARTS, random_state=seed)  # pyright: ignore[reportArgumentType]
    found = model.fit_predict(points.numpy())
    order = {label: number for number, label in enumerate(dict.fromkeys(found.tolist()))}
    return torch.tensor([order[label] for label in found.tolist()])


def silhouette(points: Float[Tensor, "K c"], labels: Int[Tensor, "K"]) -> float:
    """Return the mean silhouette with the cosine distance: 1 for separate clusters, 0 for mixed."""
    from sklearn.metrics import silhouette_score

    return float(silhouette_score(points.numpy(), labels.numpy(), metric="cosine"))


def best_clusters(
    points: Float[Tensor, "K c"], most: int, *, seed: int = 0
) -> tuple[Int[Tensor, "K"], dict[int, float]]:
    """Return the clusters with the best silhouette, and the silhouettes by number of clusters."""
    if len(points) < 3 or most < 2:
        raise ConfigError(
            f"the number of clusters cannot be selected for {len(points)} members and at most "
            f"{most} clusters; use at least 3 members and 2 clusters, or set the number"
        )
    tried = {k: k_means(points, k, seed=seed) for k in range(2, min(most, len(points) - 1) + 1)}
    scores = {k: silhouette(points, labels) for k, labels in tried.items()}
    return tried[max(scores, key=lambda k: scores[k])], scores


def shuffled(labels: Int[Tensor, "K"], *, seed: int = 0) -> Int[Tensor, "K"]:
    """Return random clusters of the same sizes, as a baseline."""
    return labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))]


def task_shares(tasks: Sequence[str], labels: Int[Tensor, "K"]) -> dict[str, list[float]]:
    """Return the shares of each task's members in the clusters."""
    members = torch.nn.functional.one_hot(labels).double()
    own = {task: torch.tensor([one == task for one in tasks]) for task in dict.fromkeys(tasks)}
    return {task: members[mask].mean(0).tolist() for task, mask in own.items()}
