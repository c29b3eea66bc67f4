"""Task arithmetic, DARE and TIES against peft's; the largest magnitudes against sorting."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mttl.aggregation.task_vectors import (
    Trimmer,
    add_task_vectors,
    drop_and_rescale,
    elect_signs,
    keep_probabilities,
    kept_count,
    mask_generator,
    merge_agreeing,
    trim,
)

utils = pytest.importorskip("peft.utils.merge_utils")


@given(weights=st.lists(st.floats(-2, 2), min_size=1, max_size=4))
def test_the_sum_is_peft_s(weights: list[float]) -> None:
    base, *vectors = torch.randn(1 + len(weights), 4, 3).unbind()
    expected = base + utils.task_arithmetic(vectors, torch.tensor(weights))
    # The order of the additions differs.
    torch.testing.assert_close(add_task_vectors(base, vectors, weights), expected)


@pytest.mark.parametrize("then", ["dare_linear", "dare_ties"])
def test_dare_is_peft_s(then: str) -> None:
    base, *vectors = torch.randn(3, 8, 7).unbind()
    torch.manual_seed(5)
    expected = base + getattr(utils, then)(vectors, torch.tensor([1.0, 0.5]), 0.4)
    # peft draws from the global generator, one vector after another.
    generator = torch.Generator().manual_seed(5)
    dropped = [drop_and_rescale(vector, 0.4, generator) for vector in vectors]
    merge = add_task_vectors if then == "dare_linear" else merge_agreeing
    torch.testing.assert_close(merge(base, dropped, [1.0, 0.5]), expected)


def test_ranges_get_the_mask_of_the_whole() -> None:
    vector = torch.randn(1001)
    whole = drop_and_rescale(vector, 0.3, mask_generator(1, 0, "a"))
    generator = mask_generator(1, 0, "a")
    parts = [drop_and_rescale(part, 0.3, generator) for part in vector.split(37)]
    assert torch.equal(torch.cat(parts), whole)


def test_della_keeps_the_entries_that_mergekit_keeps() -> None:
    """Printed by mergekit 0.1.5 with density 0.5 and epsilon 0.3, without rescaling."""
    vector = torch.tensor([[1.0, -2.0, 0.5], [3.0, 0.25, -1.0]])
    shares = torch.tensor([[0.5, 0.8, 0.2], [0.8, 0.2, 0.5]])  # by rank in each row
    torch.testing.assert_close(keep_probabilities(vector, 0.5, 0.3), shares)
    for seed, kept in enumerate(([[1, -2, 0.5], [3, 0, 0]], [[0, -2, 0], [3, 0.25, 0]])):
        found = drop_and_rescale(vector, 0.5, torch.Generator().manual_seed(seed), 0.3)
        torch.testing.assert_close(found, torch.tensor(kept) / shares)
    assert keep_probabilities(torch.tensor(2.0), 0.5, 0.3).shape == ()


@given(
    size=st.integers(1, 200),
    share=st.floats(0.01, 1),
    pieces=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_the_entries_kept_are_those_of_a_stable_sort(size, share, pieces, seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    # Few different values: ties are common; a factor spreads them over many exponents.
    values = torch.randint(-3, 4, (size,), generator=generator).float()
    values *= 10.0 ** torch.randint(-20, 20, (size,), generator=generator)
    kept = kept_count(size, share)
    trimmer = Trimmer.of(lambda: values.chunk(pieces), kept)
    found = torch.cat([trimmer(part) for part in values.chunk(pieces)])
    order = values.abs().sort(descending=True, stable=True).indices[:kept]
    expected = torch.zeros_like(values)
    expected[order] = values[order]
    assert torch.equal(found, expected)


@pytest.mark.parametrize("election", ["total", "frequency"])
@pytest.mark.parametrize("density", [0.2, 0.55, 0.999])
def test_ties_is_peft_s(density: float, election: str) -> None:
    base, *vectors = torch.randn(4, 17, 5).unbind()
    weights = [1.0, 0.5, 2.0]
    expected = base + utils.ties(vectors, torch.tensor(weights), density, election)
    trimmed = [trim(vector, density) for vector in vectors]
    found = merge_agreeing(base, trimmed, weights, election=election)
    torch.testing.assert_close(found, expected)


def test_an_even_vote_is_positive() -> None:
    vectors = [torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 0.0])]
    assert elect_signs(vectors).tolist() == [1, 1]
    assert merge_agreeing(torch.zeros(2), vectors, [1.0, 1.0]).tolist() == [1, 0]


ONE = torch.ones(1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: add_task_vectors(ONE, [ONE], [1.0, 2.0]), "longer"),
        (lambda: drop_and_rescale(ONE, 0.0, torch.Generator()), r"density .0\.0. must lie in"),
        (lambda: kept_count(10, 1.5), r"density .1\.5. must lie in"),
        (lambda: Trimmer.of(lambda: [torch.tensor([float("nan")])], 1), "not finite"),
        (lambda: elect_signs([ONE], "most"), "election .'most'. must be one of total, frequency"),
    ],
)
def test_mistakes_are_named(call: Callable[[], Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
