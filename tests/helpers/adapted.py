"""Models before and after adaptation: what is trained, by its place, and what changed."""

import torch
from torch import Tensor

from mttl.config.optim_schema import AdamW
from mttl.routing import Routing
from mttl.skills import SkilledModel
from mttl.training.optim import build_optimizer

BATCH = {
    "input_ids": torch.arange(10).view(2, 5) + 2,
    "attention_mask": torch.ones(2, 5).long(),
    "labels": torch.arange(6).view(2, 3) + 2,
    "task_ids": torch.tensor([0, 0]),
}


def role_of(name: str) -> str:
    """Return the role by the place of a tensor, independently of `module.role`."""
    if name.startswith("router."):
        return "router"
    return "skills" if ".inventory." in name else "backbone"


def snapshot(model: SkilledModel) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def changed(model: SkilledModel, before: dict[str, Tensor]) -> set[str]:
    """Return the names of the tensors that are new or others than in a snapshot."""
    return {
        name
        for name, now in model.state_dict().items()
        if name not in before or not torch.equal(now, before[name])
    }


def train(
    model: SkilledModel,
    task_ids: Tensor,
    inputs: dict[str, Tensor],
    *,
    n_steps: int = 1,
    weight_decay: float = 0.0,
) -> None:
    """Train a little; weight decay would move what has no gradient, too."""
    settings = AdamW(kind="adamw", lr=0.01, router_lr=0.1, weight_decay=weight_decay)
    optimizer = build_optimizer(settings, model)
    model.train()
    for _ in range(n_steps):
        optimizer.zero_grad()
        model(task_ids, **inputs).loss.backward()
        optimizer.step()


def mixed_by(model: SkilledModel, row: Tensor, inputs: dict[str, Tensor]) -> Tensor:
    """Return the logits of a model whose tasks all mix by one row, of each group or of all."""
    n_rows = len(inputs["input_ids"])
    weights = row.expand(model.router.n_groups, n_rows, model.router.n_heads, -1)
    with model.slot.use(Routing(torch.zeros(n_rows, dtype=torch.long), weights)):
        return model.backbone(**inputs).logits
