"""Members with similar weights are clustered; embeddings are those of scikit-learn."""

import numpy as np
import pytest
import torch

from mttl.library.clusters import (
    best_clusters,
    embedded,
    inner_products,
    k_means,
    silhouette,
    task_shares,
)
from mttl.merging.low_rank_factors import LowRank

decomposition = pytest.importorskip("sklearn.decomposition")

SIZES = {"a.q": (6, 5), "a.v": (6, 4), "b.q": (6, 5)}
TRUTH = [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2]


def members(noise: float = 0.3, rank: int = 2, *, lacking: bool = True) -> list[dict[str, LowRank]]:
    """Twelve members around three, some of which lack a layer."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    centres = [{p: (draw(i, rank), draw(o, rank)) for p, (i, o) in SIZES.items()} for _ in range(3)]
    found = []
    for number, centre in enumerate(TRUTH):
        paths = list(SIZES)[: 2 + number % 2 if lacking else 3]
        parts = {path: centres[centre][path] for path in paths}
        noisy = {}
        for path, (down, up) in parts.items():
            down, up = (factor + noise * draw(*factor.shape) for factor in (down, up))
            noisy[path] = LowRank(down, up)
        found.append(noisy)
    return found


def flat(given: list[dict[str, LowRank]], by: str) -> np.ndarray:
    rows = []
    for member in given:
        row = []
        for path, (i, o) in SIZES.items():
            part = member.get(path, LowRank(torch.zeros(i, 2), torch.zeros(o, 2)))
            whole = (part.up @ part.down.t(),)
            row += [
                factor.flatten() for factor in ((part.down, part.up) if by == "weights" else whole)
            ]
        rows.append(torch.cat(row))
    return torch.stack(rows).double().numpy()


@pytest.mark.parametrize("by", ["weights", "changes"])
@pytest.mark.parametrize("n_components", [2, 5, 64])
def test_the_embedding_is_that_of_a_truncated_svd(by: str, n_components: int) -> None:
    given = members()
    vectors = flat(given, by)
    products = inner_products(given, by=by)
    # Sums of single-precision factors, made in double precision on one side only.
    np.testing.assert_allclose(products, vectors @ vectors.T, rtol=1e-5, atol=1e-4)
    exact = torch.from_numpy(vectors @ vectors.T)
    n_kept = min(n_components, len(given))
    svd = decomposition.TruncatedSVD(n_kept, algorithm="randomized", n_iter=30, random_state=0)
    theirs = svd.fit_transform(vectors)
    theirs /= np.linalg.norm(theirs, axis=1, keepdims=True)
    ours = embedded(exact, n_components).numpy()
    assert ours.shape == theirs.shape
    signs = np.sign((ours * theirs).sum(0))
    np.testing.assert_allclose(ours * signs, theirs, atol=1e-6)


def test_members_around_three_points_are_three_clusters_of_the_best_silhouette() -> None:
    products = inner_products(members(lacking=False))
    points = embedded(products, 8)
    labels = k_means(points, 3)
    assert labels.tolist() == TRUTH  # numbered by their first members
    assert silhouette(points, labels) > 0.5
    points = embedded(products, 64)
    labels, scores = best_clusters(points, 20)
    assert labels.tolist() == TRUTH
    assert scores.keys() == set(range(2, 12))
    assert max(scores, key=lambda k: scores[k]) == 3
    with pytest.raises(ValueError, match="at least 3 members and 2 clusters"):
        best_clusters(points[:2], 4)
    with pytest.raises(ValueError, match=r"n_clusters \(13\) must be 1 to 12"):
        k_means(points, 13)


def test_a_task_of_several_members_has_shares() -> None:
    shares = task_shares(["a", "b", "a", "a", "b"], torch.tensor([0, 1, 1, 1, 1]))
    assert shares == {"a": pytest.approx([1 / 3, 2 / 3]), "b": [0, 1]}
