"""Training of values alone against masked training of whole tensors."""

import pytest
import torch
from torch import nn

from mttl.skills.weights.supports import random_support
from mttl.sparse.composition import SparseComposition
from mttl.sparse.skill_file import SparseSkill
from mttl.sparse.tuning import SparseTuning


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(7, 33), nn.Tanh(), nn.Linear(33, 5))


def supports(model: nn.Module, density: float = 0.2) -> dict[str, torch.Tensor]:
    return random_support({name: p.shape for name, p in model.named_parameters()}, density)


def loss(model: nn.Module, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(20, 7, generator=generator), torch.randn(20, 5, generator=generator)
    return (model(x) - y).square().mean()


OPTIMIZERS = {
    "adamw": lambda values: torch.optim.AdamW(values, lr=1e-2, weight_decay=0.0),
    "adam": lambda values: torch.optim.Adam(values, lr=1e-2),
    "sgd": lambda values: torch.optim.SGD(values, lr=0.1, momentum=0.9),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("l1", [0.0, 1e-3])
@pytest.mark.parametrize("n_parts", [1, 2])
def test_every_step_is_that_of_masked_gradients_bit_for_bit(kind, l1, n_parts):
    """The operations on an entry are the same ones, so there is no tolerance."""
    model, dense, start = network(), network(), network()
    support = supports(model)
    masks = {
        name: torch.zeros(p.numel()).index_fill(0, support[name], 1).view_as(p)
        for name, p in dense.named_parameters()
    }
    tuning = SparseTuning(model, support)
    ours, theirs = OPTIMIZERS[kind](tuning.entries.values()), OPTIMIZERS[kind](dense.parameters())
    for step in range(10):
        for part in range(n_parts):  # gradients of several batches add up
            loss(model, 10 * step + part).backward()
            loss(dense, 10 * step + part).backward()
        assert all(p.grad is None for p in model.parameters())
        if l1:
            tuning.add_l1(l1)
        ours.step()
        tuning.write()
        ours.zero_grad()
        for (name, value), begin in zip(dense.named_parameters(), start.parameters(), strict=True):
            if l1:
                value.grad += l1 * (value.detach() - begin.detach()).sign()
            value.grad *= masks[name]
        theirs.step()
        theirs.zero_grad()
        for one, other in zip(model.parameters(), dense.parameters(), strict=True):
            assert torch.equal(one, other)
    # The optimizer holds states of entries alone.
    states = [v for state in ours.state.values() for v in state.values() if v.ndim]
    n_entries = sum(len(places) for places in support.values())
    assert sum(value.numel() for value in states) == (1 if kind == "sgd" else 2) * n_entries


def test_a_skill_learned_on_top_of_another_belongs_to_the_network_below():
    model = network()
    start = {name: value.detach().clone() for name, value in model.named_parameters()}
    composition = SparseComposition(model)
    below = random_support({name: value.shape for name, value in start.items()}, 0.5)
    changed = {name: value + 0.1 for name, value in start.items()}
    composition.apply("below", SparseSkill.between(start, changed, below))
    tuning = SparseTuning(model, supports(model, 0.5))  # some of the entries are those below
    loss(model, 0).backward()
    OPTIMIZERS["sgd"](tuning.entries.values()).step()
    tuning.write()
    skill = tuning.skill({"what": "a test"}, originals=composition.originals)
    assert skill.about == {"what": "a test"}
    tuned = {name: value.detach().clone() for name, value in model.named_parameters()}
    fresh = network()
    again = SparseComposition(fresh)
    again.apply("above", skill)
    again.apply("below", SparseSkill.between(start, changed, below))
    for name, value in fresh.named_parameters():
        torch.testing.assert_close(value.detach(), tuned[name])  # sums of rounded differences
    again.clear()
    assert all(torch.equal(value, start[name]) for name, value in fresh.named_parameters())


def test_tensors_that_are_not_contiguous():
    model = nn.Linear(4, 3)
    model.weight = nn.Parameter(torch.randn(4, 3).t())
    assert not model.weight.is_contiguous()
    before = model.weight.detach().clone()
    tuning = SparseTuning(model, {"weight": torch.tensor([5])})  # row 1, column 1
    assert not model.bias.requires_grad  # it has no support
    model(torch.ones(1, 4)).sum().backward()
    OPTIMIZERS["sgd"](tuning.entries.values()).step()
    tuning.write()
    changed = (model.weight != before).nonzero().tolist()
    assert changed == [[1, 1]]
