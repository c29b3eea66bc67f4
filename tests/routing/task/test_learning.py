"""The router finds out which tasks belong together."""

import pytest
import torch
from torch import nn

from mttl.routing import PolytroponRouter, RoutingSlot, TaskMoERouter
from mttl.skills import LoRAInventory, SkilledModel, attach_skills

N_TASKS, WIDTH = 6, 8
# Even tasks need one linear map, odd ones another.
CAMP = torch.arange(N_TASKS) % 2


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(WIDTH, WIDTH, bias=False)])

    def forward(self, x):
        return self.blocks[0](x)


def train(make_router, n_steps=250):
    """Return the losses and the learned matrix (T, K)."""
    torch.manual_seed(0)
    backbone = Regressor().requires_grad_(False)
    nn.init.zeros_(backbone.blocks[0].weight)
    slot = RoutingSlot()
    attach_skills(backbone, lambda i, o: LoRAInventory(i, o, 2, rank=2), targets=["all"], slot=slot)
    model = SkilledModel(backbone, make_router(1, N_TASKS, 1, 2), slot).train()
    # Targets that two skills of rank 2 can reach.
    maps = torch.randn(2, WIDTH, 2) @ torch.randn(2, 2, WIDTH)
    # Two speeds: the router learns faster than the skills.
    optimizer = torch.optim.Adam(
        [
            {"params": model.router.parameters(), "lr": 0.1},
            {"params": [p for p in backbone.parameters() if p.requires_grad], "lr": 0.02},
        ]
    )
    losses = []
    for _ in range(n_steps):
        task_ids = torch.randint(0, N_TASKS, (32,))
        x = torch.randn(32, 4, WIDTH)
        loss = (model(task_ids, x=x) - x @ maps[CAMP[task_ids]]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.router.eval().matrix()[0, :, 0].detach()


@pytest.mark.parametrize(
    "make_router",
    [PolytroponRouter, lambda g, t, h, k: TaskMoERouter(g, t, h, k, top_k=2)],
    ids=["polytropon", "task_moe"],
)
def test_the_loss_falls_and_the_matrix_separates_the_two_groups(make_router):
    losses, matrix = train(make_router)
    assert sum(losses[-10:]) < 0.2 * sum(losses[:10])
    preferred = matrix.argmax(dim=1)
    assert len({int(skill) for skill in preferred[CAMP == 0]}) == 1
    assert len({int(skill) for skill in preferred[CAMP == 1]}) == 1
    assert preferred[0] != preferred[1]
    assert matrix.max(dim=1).values.min() > 0.7
