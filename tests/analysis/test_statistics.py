import math

import pytest
import torch
from scipy.stats import entropy

from mttl.analysis import active_cells, discreteness, effective_skills, usage


def test_discreteness_of_binary_and_undecided():
    binary = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).view(1, 2, 1, 2)
    assert discreteness(binary) == 1
    assert discreteness(torch.full((2, 3, 1, 4), 0.5)) == pytest.approx(0)


def test_discreteness_is_one_minus_the_mean_entropy_in_bits():
    p = torch.tensor([0.1, 0.7, 0.9]).view(1, 1, 1, 3)
    expected = 1 - sum(entropy([x, 1 - x], base=2) for x in (0.1, 0.7, 0.9)) / 3
    # float32 probabilities
    assert discreteness(p) == pytest.approx(expected, abs=1e-6)


def test_active_cells_counts_active_cells():
    p = torch.tensor([0.1, 0.5, 0.51, 0.9]).view(1, 2, 1, 2)
    assert active_cells(p) == 0.5


def test_usage():
    even = torch.eye(3).view(1, 3, 1, 3)
    assert usage(even) == pytest.approx(1)
    one = torch.tensor([[1.0, 0.0], [1.0, 0.0]]).view(1, 2, 1, 2)
    assert usage(one) == 0
    assert usage(torch.ones(1, 4, 1, 1)) == 1
    mixed = torch.tensor([[3.0, 1.0]]).view(1, 1, 1, 2)
    assert usage(mixed) == pytest.approx(entropy([0.75, 0.25]) / math.log(2))


def test_effective_skills_count_skills_used_alike():
    rows = torch.tensor([[0.5, 0.5, 0, 0], [3, 0, 0, 0], [0.2, 0.2, 0.2, 0.2], [0, 0, 0, 0]])
    found = effective_skills(rows.view(1, 4, 1, 4))
    assert found.tolist() == pytest.approx([2, 1, 4, 0])


def test_effective_skills_are_the_exponential_of_the_entropy_averaged_over_groups_and_heads():
    use = torch.rand(2, 3, 2, 5)
    expected = [
        sum(math.exp(entropy(use[g, task, h])) for g in range(2) for h in range(2)) / 4
        for task in range(3)
    ]
    # float32 input
    assert effective_skills(use).tolist() == pytest.approx(expected, abs=1e-6)


def test_effective_skills_do_not_change_with_normalisation():
    use = torch.rand(1, 3, 1, 5)
    same = effective_skills(use / use.sum(-1, keepdim=True))
    torch.testing.assert_close(effective_skills(use), same)
