"""TIES against peft's."""

import pytest
import torch

from mttl.aggregation.task_vectors import elect_signs, merge_agreeing, trim

utils = pytest.importorskip("peft.utils.merge_utils")


@pytest.mark.parametrize("election", ["total", "frequency"])
@pytest.mark.parametrize("density", [0.2, 0.55, 0.999])
def test_the_merge_is_peft_s(density: float, election: str) -> None:
    base, *vectors = torch.randn(4, 17, 5).unbind()
    weights = [1.0, 0.5, 2.0]
    expected = base + utils.ties(vectors, torch.tensor(weights), density, election)
    trimmed = [trim(vector, density) for vector in vectors]
    found = merge_agreeing(base, trimmed, weights, election=election)
    torch.testing.assert_close(found, expected)


def test_an_even_vote_is_positive() -> None:
    vectors = [torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 0.0])]
    assert elect_signs(vectors).tolist() == [1, 1]
    found = merge_agreeing(torch.zeros(2), vectors, [1.0, 1.0])
    assert found.tolist() == [1, 0]


def test_an_unknown_election_is_refused() -> None:
    with pytest.raises(ValueError, match=r"election .'most'. must be one of total, frequency"):
        elect_signs([torch.ones(1)], "most")
