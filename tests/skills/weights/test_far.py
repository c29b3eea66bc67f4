"""FAR: the formula by rows, rows by their L1 change, and the memory of training."""

import pytest
import torch
from torch import nn

from helpers.compare import assert_same
from helpers.skills import filled, mixing
from mttl.skills import KINDS
from mttl.skills.weights.supports import select_support

B, L, I, O, K = 2, 3, 6, 10, 3  # noqa: E741


def test_only_the_rows_change() -> None:
    skills = filled(KINDS["far"](I, O, K, sparsity=0.7)).double()
    rows = skills.indices.tolist()
    assert len(set(rows)) == 3
    base, x = nn.Linear(I, O).double(), torch.randn(B, L, I).double().requires_grad_()
    weights = mixing(B, 1, K).double().requires_grad_()
    expected = []
    for b in range(B):
        weight = [base.weight[o] for o in range(O)]
        for place, row in enumerate(rows):
            weight[row] = weight[row] + sum(
                weights[b, 0, k] * skills.values[k, place] for k in range(K)
            )
        expected.append(x[b] @ torch.stack(weight).t() + base.bias)
    found = skills.combine_linear(x, base, skills.merge(weights))
    assert_same(found, torch.stack(expected), [x, weights, *skills.parameters()])


def test_the_rows_with_the_largest_l1_change_are_trained() -> None:
    """Two layers of one width, as the first phase of mttl sparse chooses among them."""
    changes = {name: torch.randn(O, I) for name in ("a.weight", "b.weight")}
    support = select_support({n: c.abs() for n, c in changes.items()}, 0.25, structure="rows")
    totals = [(sum(abs(v) for v in r), n, o) for n, c in changes.items() for o, r in enumerate(c)]
    best = {(name, row) for _, name, row in sorted(totals, reverse=True)[: 2 * O // 4]}
    found = set()
    for name, entries in support.items():
        skills = KINDS["far"](I, O, K)
        skills.set_support(entries)
        found |= {(name, row) for row in skills.indices.tolist()}
        assert skills.values.shape == (K, len(skills.indices), I)
    assert found == best


def test_training_stores_dense_rows_and_no_entry_indices() -> None:
    """The bytes of parameters, gradients, Adam's moments and indices, beside `sparse`."""
    rows = torch.tensor([1, 4, 7])
    entries = (rows[:, None] * I + torch.arange(I)).flatten()
    sizes = {}
    for kind in ("far", "sparse"):
        skills = KINDS[kind](I, O, K)
        skills.set_support(entries)
        x = torch.randn(B, L, I)
        skills(x, torch.zeros(B, L, O), mixing(B, 1, K)).sum().backward()
        optimizer = torch.optim.AdamW(skills.parameters())
        optimizer.step()
        moments = sum(v.numel() for s in optimizer.state.values() for v in s.values() if v.ndim)
        trained = sum(value.numel() for value in skills.parameters())
        assert moments == 2 * trained
        assert trained == K * len(rows) * I  # of K · O · I
        sizes[kind] = skills.indices.nbytes
        if kind == "far":
            assert skills.merge(mixing(B, 1, K))[0].shape == (B, len(rows), I)
    assert sizes == {"far": 8 * len(rows), "sparse": 8 * K * len(rows) * I}


def test_a_support_without_whole_rows_is_refused() -> None:
    skills = KINDS["far"](I, O, K)
    for entries, masked in ((torch.arange(I + 1), False), (torch.arange(I), True)):
        with pytest.raises(ValueError, match="must have whole rows; use --structure rows"):
            skills.set_support(entries, masked=masked)
    with pytest.raises(ValueError, match=r"must be in \[0, 10\)"):
        skills.set_support(torch.arange(I) + I * O)
    skills.set_support(torch.empty(0, dtype=torch.int64))
    y = torch.randn(B, L, O)
    assert torch.equal(skills(torch.randn(B, L, I), y, mixing(B, 1, K)), y)
