"""A tree of tasks from their similarity."""

import numpy as np
from jaxtyping import Float, Int


def task_tree(similarity: Float[np.ndarray, "T T"]) -> Float[np.ndarray, "T-1 4"]:
    """Join the most similar tasks, then the most similar clusters, until one is left.

    The distance is 1 minus the similarity, that of clusters the mean over their pairs (average
    linkage); neighbouring leaves are as similar as the tree allows (optimal leaf ordering).

    Returns:
        SciPy's linkage matrix: the two clusters of each merge, their distance, the tasks joined.
    """
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    distances = np.clip(1 - similarity, 0, None)
    return linkage(squareform(distances, checks=False), method="average", optimal_ordering=True)


def task_order(tree: Float[np.ndarray, "T-1 4"]) -> Int[np.ndarray, "T"]:
    """Return the tasks in the order of the tree's leaves."""
    from scipy.cluster.hierarchy import leaves_list

    return leaves_list(tree)


def tree_joints(
    tree: Float[np.ndarray, "T-1 4"],
) -> tuple[list[int], list[tuple[np.ndarray, np.ndarray]]]:
    """Return the leaves in order, and the corners of every merge: places of leaves, distances."""
    from scipy.cluster.hierarchy import dendrogram as layout

    drawn = layout(tree, no_plot=True)
    # SciPy puts the leaves at 5, 15, 25 ….
    corners = zip(np.array(drawn["icoord"]), np.array(drawn["dcoord"]), strict=True)
    return drawn["leaves"], [((places - 5) / 10, distances) for places, distances in corners]


def task_clusters(tree: Float[np.ndarray, "T-1 4"], n_clusters: int) -> Int[np.ndarray, "T"]:
    """Return the cluster of every task; merges at equal distances are cut together."""
    from scipy.cluster.hierarchy import fcluster

    return fcluster(tree, n_clusters, criterion="maxclust")
