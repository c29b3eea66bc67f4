"""The k largest magnitudes by counting bits, against sorting."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mttl.aggregation.task_vectors import Trimmer, kept_count


@given(
    size=st.integers(1, 200),
    share=st.floats(0.01, 1),
    pieces=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_the_entries_kept_are_those_of_a_stable_sort(
    size: int, share: float, pieces: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    # Few different values: ties are common; a factor spreads them over many exponents.
    values = torch.randint(-3, 4, (size,), generator=generator).float()
    values *= 10.0 ** torch.randint(-20, 20, (size,), generator=generator)
    kept = kept_count(size, share)
    trimmer = Trimmer.of(values.chunk(pieces), kept)
    found = torch.cat([trimmer(part) for part in values.chunk(pieces)])
    order = values.abs().sort(descending=True, stable=True).indices[:kept]
    expected = torch.zeros_like(values)
    expected[order] = values[order]
    assert torch.equal(found, expected)


def test_what_is_not_finite_or_keeps_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="not finite"):
        Trimmer.of([torch.tensor([float("nan")])], 1)
    for density in (0.0, 1.5):
        with pytest.raises(ValueError, match=f"density .{density}. must lie in"):
            kept_count(10, density)
