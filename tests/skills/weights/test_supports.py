import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mttl.skills.weights import supports
from mttl.skills.weights.supports import Units, random_indices, random_support, select_support


def ranked(scores, n):
    """Return the n best (tensor, place), by a plain sort; ties in the order of the tensors."""
    entries = [
        (-float(value), order, place)
        for order, score in enumerate(scores.values())
        for place, value in enumerate(score.flatten())
    ]
    names = list(scores)
    return sorted((names[order], place) for _, order, place in sorted(entries)[:n])


def pairs(support):
    return sorted((name, int(place)) for name, places in support.items() for place in places)


@given(seed=st.integers(0, 50), density=st.floats(0.02, 1.0), few=st.booleans())
def test_the_global_support_is_that_of_a_sort_over_all_tensors(seed, density, few):
    generator = torch.Generator().manual_seed(seed)
    scores = {"a": torch.randn(4, 5, generator=generator), "b": torch.randn(7, generator=generator)}
    if few:  # many equal scores
        scores = {name: score.round() for name, score in scores.items()}
    found = select_support(scores, density)
    assert pairs(found) == ranked(scores, max(1, round(density * 27)))
    assert all(torch.equal(places, places.sort().values) for places in found.values())


def test_by_tensor_every_tensor_gets_its_share():
    scores = {"small": torch.randn(4, 5), "large": 100 + torch.randn(40, 5)}
    found = select_support(scores, 0.1, scope="tensor")
    assert {name: len(places) for name, places in found.items()} == {"small": 2, "large": 20}
    for name, places in found.items():
        assert pairs({name: places}) == ranked({name: scores[name]}, len(places))
    assert list(select_support(scores, 0.01)) == ["large"]


def test_rows_are_chosen_by_their_mean():
    scores = torch.zeros(6, 2, 2)
    scores[1], scores[4] = 3.0, torch.tensor([[9.0, 0], [0, 0]])
    scores[0] = 2.5
    found = select_support({"w": scores}, 2 / 6, structure="rows")["w"]
    assert found.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]  # rows 1 (3.0) and 0 (2.5), not 4 (2.25)
    # What does not fit the number of entries is left out; one row is always taken.
    assert len(select_support({"w": scores}, 0.3, structure="rows")["w"]) == 4
    assert len(select_support({"w": scores}, 0.01, structure="rows")["w"]) == 4
    # Entries of a vector are outputs each.
    bias = torch.tensor([0.0, 5, 1, 7])
    assert select_support({"b": bias}, 0.5, structure="rows")["b"].tolist() == [1, 3]


def test_blocks_equal_a_loop_and_are_cut_off_at_the_edges():
    scores = torch.rand(7, 5)
    found = select_support({"w": scores}, 0.3, structure="blocks", block=3)["w"]
    corners = [(row, column) for row in (0, 3, 6) for column in (0, 3)]
    blocks = {
        corner: scores[corner[0] : corner[0] + 3, corner[1] : corner[1] + 3] for corner in corners
    }
    expected, left = set(), round(0.3 * 35)
    for (row, column), block in sorted(blocks.items(), key=lambda item: -float(item[1].mean())):
        if block.numel() > left:
            break
        left -= block.numel()
        high, wide = block.shape
        expected |= {(row + i) * 5 + column + j for i in range(high) for j in range(wide)}
    assert set(found.tolist()) == expected


@pytest.mark.parametrize("structure", ["entries", "rows", "blocks"])
def test_a_random_support_has_whole_units_and_the_asked_for_size(structure):
    support = random_support(
        {"w": (40, 30), "b": (40,)}, 0.25, structure=structure, block=5, generator=None
    )
    places = support["w"]
    assert torch.equal(places, places.unique())
    assert len(places) == 300
    assert len(support["b"]) in (10, 2 * 5)
    changed = torch.zeros(40, 30, dtype=torch.bool)
    changed.view(-1)[places] = True
    if structure == "rows":
        assert bool((changed.any(1) == changed.all(1)).all())
    if structure == "blocks":
        cut = changed.view(8, 5, 6, 5).transpose(1, 2).flatten(2)
        assert bool((cut.any(2) == cut.all(2)).all())


def test_random_places_of_a_tensor_with_more_than_2_to_31_entries():
    size, n = 5 * 2**31 + 3, 2000
    found = random_indices(size, n, torch.Generator().manual_seed(0))
    assert found.dtype == torch.int64
    assert len(found) == len(found.unique()) == n
    assert bool((found.diff() > 0).all())
    assert int(found.max()) < size
    # A mean of n uniform draws lies within five of its standard deviations.
    assert abs(float(found.double().mean()) / size - 0.5) < 5 / math.sqrt(12 * n)


def test_structured_places_beyond_2_to_31_keep_their_rows():
    units = Units((2**17, 2**17), "blocks", 256)
    last = torch.tensor([units.count - 1])
    places = units.entries(last)
    assert len(places) == 256**2
    assert int(places[-1]) == 2**34 - 1
    assert int(places[0]) == (2**17 - 256) * 2**17 + 2**17 - 256
    # On the meta device as many places as there would be are planned, and none are drawn.
    with torch.device("meta"):
        found = random_support({"w": (2**13, 2**13)}, 0.1)["w"]
    assert (found.device.type, found.shape) == ("meta", (round(0.1 * 2**26),))


def test_random_places_by_drawing_again_are_uniform(monkeypatch):
    monkeypatch.setattr(supports, "PERMUTED", 0)
    generator = torch.Generator().manual_seed(0)
    counts = torch.zeros(20)
    for _ in range(2000):
        counts[random_indices(20, 5, generator)] += 1
    # 500 expected each; the standard deviation of a binomial draw is about 19.
    assert float((counts - 500).abs().max()) < 4.5 * 19


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: random_support({"w": (3,)}, 0.0), r"density \(0.0\) must lie in \(0, 1\]"),
        (lambda: select_support({}, 0.1), "scores must contain at least one tensor"),
        (lambda: select_support({"w": torch.tensor([1.0, math.nan])}, 0.5), "the scores of 'w'"),
        (
            lambda: select_support({"w": torch.ones(3)}, 0.5, structure="column"),
            r"structure \('column'\) must be one of entries, rows, blocks",
        ),
    ],
)
def test_what_makes_no_sense_is_an_error(call, message):
    with pytest.raises(ValueError, match=message):
        call()
