"""MTL-LoRA: the formula, what new tasks start from and train, and its factors."""

from functools import partial

import pytest
import torch
from torch import nn

from helpers.backbones import tiny_t5
from helpers.compare import assert_same
from helpers.modes import adapted
from helpers.skills import filled, mixing, skilled
from mttl.adaptation.modes import count_trained
from mttl.merging.low_rank_factors import mixture
from mttl.routing.task.fixed import PrivateRouter
from mttl.skills import KINDS, Inventory
from mttl.skills.gated import GatedInventory

B, L, I, O, K, N, R = 5, 2, 8, 12, 3, 2, 4  # noqa: E741
MTLLoRA = KINDS["mtl_lora"]


def change(skills, t):
    """Return the change of the weight by the skill of task t, term by term."""
    total = sum((skills.logits[t, i] / 0.5).exp() for i in range(N))
    return sum(
        0.75 * (skills.logits[t, i] / 0.5).exp() / total * up @ skills.transforms[t] @ down.T
        for i, up in enumerate(skills.up)
        for down in skills.down
    )


@pytest.mark.parametrize("n_heads", [1, 2])
@pytest.mark.parametrize("private", [True, False])
def test_equals_a_loop_over_rows_and_tasks(private: bool, n_heads: int) -> None:
    """With heads, the paper's model has equal weights in all of them."""
    settings = {"n_up": N, "temperature": 0.5, "rank": R, "alpha": 3.0, "n_heads": n_heads}
    skills, base = filled(MTLLoRA(I, O, K, **settings)).double(), nn.Linear(I, O).double()
    weights = mixing(B, 1, K).double()
    weights = torch.eye(K).double()[torch.arange(B) % K, None] if private else weights
    x = torch.randn(B, L, I, dtype=torch.double, requires_grad=True)
    found = skills.combine_linear(x, base, skills.merge(weights.expand(-1, n_heads, -1)))
    expected = [
        base(x[b]) + sum(weights[b, 0, t] * x[b] @ change(skills, t).T for t in range(K))
        for b in range(B)
    ]
    assert_same(found, torch.stack(expected), [x, *skills.parameters(), *base.parameters()])
    for row in weights.expand(-1, n_heads, -1):
        mixed = sum(row[0, t] * change(skills, t) for t in range(K))
        torch.testing.assert_close(skills.delta(row[None])[0], mixed)
        factors = mixture(skills, row)  # those of an exported adapter
        assert factors.rank == R
        torch.testing.assert_close(factors.up @ factors.down.T, mixed)


class Gated(GatedInventory):
    """Skills behind a gate, which has parameters of its own."""

    def __init__(self, *sizes: int, **settings: int) -> None:
        super().__init__(MTLLoRA(*sizes, **settings))


@pytest.mark.parametrize("kind", [MTLLoRA, Gated])
def test_a_new_task_starts_at_the_identity_and_trains_its_skill(kind: type[Inventory]) -> None:
    """There are as many up-projections as skills, which are no stack for that."""
    make = partial(kind, n_up=K, rank=R)
    model = skilled(tiny_t5(), inventory=make, router=PrivateRouter, targets=["mlp"])
    every = [layer.inventory for layer in model.skilled_layers().values()]
    skills = getattr(every[0], "skills", every[0])
    before = {name: value.clone() for name, value in skills.named_parameters()}
    with adapted(model, "skills_only", init="private_skill"):
        for name, value in skills.named_parameters():
            assert value.requires_grad == (name in ("transforms", "logits")), name
            assert torch.equal(value, before[name]) != value.requires_grad, name
        assert torch.equal(skills.transforms[0], torch.eye(R))
        if kind is MTLLoRA:
            assert count_trained(model) == len(every) * (R * R + K)
    for name, value in skills.named_parameters():
        assert torch.equal(value, before[name]), name
