"""Known factors of tasks in what routing learned."""

from itertools import combinations, product

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression
from sklearn.metrics import adjusted_mutual_info_score, roc_auc_score
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.preprocessing import OneHotEncoder

from mttl.analysis.factor_recovery import _match, _ranks, factor_recovery

LANGUAGES, OPERATIONS = "abcde", "vwxyz"
TASKS = [pair for pair in product(LANGUAGES, OPERATIONS) if pair not in {("a", "v"), ("c", "z")}]
FACTORS = {
    "language": [language for language, _ in TASKS],
    "operation": [operation for _, operation in TASKS],
}
ORACLE = np.array(
    [[float(value in task) for value in LANGUAGES + OPERATIONS] for task in TASKS]
)  # (T, K)


def test_the_oracle_is_recovered_whatever_its_order_and_scale() -> None:
    generator = np.random.default_rng(0)
    groups = np.stack(
        [ORACLE[:, generator.permutation(10)] * generator.uniform(0.2, 1, 10) for _ in range(3)]
    )
    found = factor_recovery(groups, FACTORS, n_permutations=50)
    assert list(found) == ["language", "operation"]
    for factor in found.values():
        # Pairs that share an operation are none of those that languages are asked for.
        assert [score.value for score in factor] == pytest.approx([1, 1, 1])
        assert factor.agreement.percentile_95 < 0.5
        assert factor.matching.percentile_95 < 0.85
        assert factor.pairs.percentile_95 < 0.7
        assert {score.p_value for score in factor} == {1 / 51}


def test_noise_is_recovered_as_chance_is() -> None:
    p_values, above = [], []
    for seed in range(6):
        noise = np.random.default_rng(seed).random((2, len(TASKS), 10))
        for factor in factor_recovery(noise, FACTORS, n_permutations=40).values():
            for score in factor:
                p_values.append(score.p_value)
                above.append(score.value - score.mean)
    assert 0.3 < np.mean(p_values) < 0.7
    assert abs(np.mean(above)) < 0.02


def test_a_factor_is_seen_behind_a_stronger_one() -> None:
    """A skill for each operation, and a tenth of one of the same skills for each language."""
    both = ORACLE[:, 5:] + 0.1 * ORACLE[:, :5]
    found = factor_recovery(both[None], FACTORS, n_permutations=100)
    assert found["operation"].agreement.value == pytest.approx(1)
    # Clusters are those of operations, and every skill is an operation's.
    assert found["language"].agreement.value < 0.2
    assert found["language"].pairs.value > 0.99
    assert found["language"].pairs.p_value == 1 / 101


def test_values_without_a_skill_count_as_untold() -> None:
    """Three skills for five languages: two values score one half."""
    found = factor_recovery(ORACLE[None, :, :3], {"language": FACTORS["language"]})["language"]
    assert found.matching.value == pytest.approx((3 * 1 + 2 * 0.5) / 5)
    clusters = [language if language in "abc" else "-" for language in FACTORS["language"]]
    expected = adjusted_mutual_info_score(FACTORS["language"], clusters)
    assert found.agreement.value == pytest.approx(expected)


def test_areas_are_those_of_scikit_learn_and_the_best_in_all() -> None:
    """Ties included; of all pairs of skills for two values, the matching has the largest sum."""
    generator = np.random.default_rng(1)
    use = generator.integers(0, 4, (12, 3)).astype(float)
    members = np.array([generator.permutation(12) < 4 for _ in range(2)])
    areas = np.array([[roc_auc_score(row, use[:, skill]) for skill in range(3)] for row in members])
    skills, scores = _match(_ranks(use[None])[0], members)
    for value, (skill, score) in enumerate(zip(skills, scores, strict=True)):
        assert score == pytest.approx(areas[value, skill] if skill >= 0 else 0.5)
    best = max(
        max(areas[0, i], 0.5) + max(areas[1, j], 0.5)
        for i, j in product(range(3), repeat=2)
        if i != j
    )
    assert scores.sum() == pytest.approx(best)


def test_pairs_are_told_as_scikit_learn_says() -> None:
    """Of three factors: all pairs that differ in the two others count."""
    generator = np.random.default_rng(2)
    factors = {name: generator.choice(list("pqr"), 20).tolist() for name in "xyz"}
    use = generator.random((2, 20, 4))
    found = factor_recovery(use, factors, n_permutations=1)
    rows = np.concatenate(list(use), axis=1)
    for name, values in factors.items():
        others = [row for other, row in factors.items() if other != name]
        effects = OneHotEncoder().fit_transform(np.transpose(others))
        likeness = cosine_similarity(rows - LinearRegression().fit(effects, rows).predict(effects))
        pairs = [
            (values[one] == values[two], likeness[one, two])
            for one, two in combinations(range(20), 2)
            if all(row[one] != row[two] for row in others)
        ]
        assert found[name].pairs.value == pytest.approx(roc_auc_score(*zip(*pairs, strict=True)))


def test_a_factor_that_others_determine_cannot_be_told_from_them() -> None:
    """A family of operations, another name of each language, and three factors of single tasks."""
    family = ["vw" if operation in "vw" else "xyz" for operation in FACTORS["operation"]]
    found = factor_recovery(ORACLE[None], FACTORS | {"family": family}, n_permutations=5)
    assert found["family"] is None
    assert found["operation"] is not None  # the families leave it open
    again = {"language": FACTORS["language"], "code": FACTORS["language"]}
    assert set(factor_recovery(ORACLE[None], again, n_permutations=5).values()) == {None}
    single = {"one": list("ppqq"), "two": list("xyxy"), "three": list("vwwv")}
    assert set(factor_recovery(ORACLE[None, :4], single, n_permutations=5).values()) == {None}


def test_all_skills_alike_tell_nothing() -> None:
    equal = np.full((2, len(TASKS), 10), 0.1)
    for factor in factor_recovery(equal, FACTORS, n_permutations=10).values():
        assert [score.value for score in factor] == [0, 0.5, 0.5]
        assert {score.p_value for score in factor} == {1}
