"""Hierarchical clustering of tasks, and the agreement of clusters with categories."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from mttl.analysis.statistics import PermutationTest, permutation_test


def task_tree(similarity: Float[np.ndarray, "T T"]) -> Float[np.ndarray, "T-1 4"]:
    """Return SciPy's linkage matrix of an agglomerative clustering with average linkage.

    The distance of tasks is 1 minus their similarity. Leaves are ordered so that neighbours are as
    similar as the tree allows.
    """
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    distances = np.clip(1 - similarity, 0, None)
    return linkage(squareform(distances, checks=False), method="average", optimal_ordering=True)


def tree_joints(
    tree: Float[np.ndarray, "T-1 4"],
) -> tuple[list[int], list[tuple[np.ndarray, np.ndarray]]]:
    """Return the leaves in order, and the corners of every merge: positions and distances."""
    from scipy.cluster.hierarchy import dendrogram as layout

    drawn = layout(tree, no_plot=True)
    # SciPy places the leaves at 5, 15, 25 ….
    corners = zip(np.array(drawn["icoord"]), np.array(drawn["dcoord"]), strict=True)
    return drawn["leaves"], [((places - 5) / 10, distances) for places, distances in corners]


def category_agreement(
    similarity: Float[np.ndarray, "T T"], categories: Sequence[str], *, n_permutations: int = 1000
) -> PermutationTest:
    """Return the adjusted mutual information of task clusters and categories, with its baseline.

    The tree of tasks is cut into as many clusters as there are categories. Equal partitions score
    1, and random ones 0 on average; the baseline permutes the categories among the tasks.

    References:
        Vinh, Epps and Bailey, *Information Theoretic Measures for Clusterings Comparison*, JMLR
        2010; normalised by the mean of the two entropies.
    """
    from scipy.cluster.hierarchy import fcluster

    labels = np.unique(list(categories), return_inverse=True)[1]
    clusters = fcluster(task_tree(similarity), int(labels.max()) + 1, criterion="maxclust") - 1
    generator = np.random.default_rng(0)
    permuted = [generator.permutation(labels) for _ in range(n_permutations)]
    scores = adjusted_mutual_information(np.stack([labels, *permuted]), clusters)
    return permutation_test(scores[0], scores[1:])


def adjusted_mutual_information(
    labels: Int[np.ndarray, "N T"], clusters: Int[np.ndarray, "T"]
) -> Float[np.ndarray, "N"]:
    r"""Return the score of each row: :math:`(I - E[I]) / ((H_1 + H_2) / 2 - E[I])`.

    Rows must be permutations of each other, so that only the joint entropy differs between them.
    """
    from scipy.stats import entropy
    from sklearn.metrics.cluster import expected_mutual_information

    n_clusters = int(clusters.max()) + 1
    joint = np.array([entropy(np.bincount(row * n_clusters + clusters)) for row in labels])
    apart = entropy(np.bincount(labels[0])) + entropy(np.bincount(clusters))
    cells = np.bincount(labels[0] * n_clusters + clusters, minlength=n_clusters)
    cells = np.append(cells, np.zeros(-len(cells) % n_clusters, dtype=cells.dtype))
    table = cells.reshape(-1, n_clusters)
    table = table[:, table.any(0)]
    expected = expected_mutual_information(table, labels.shape[1])
    most = apart / 2 - expected
    # If every task has its own category, all partitions have the same score.
    return (apart - joint - expected) / most if most > 1e-9 else np.zeros(len(labels))
