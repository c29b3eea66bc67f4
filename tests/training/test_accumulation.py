"""Batches accumulated into one step: the loss and its gradient are those of one large batch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_lightning.callbacks import Callback
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset

from helpers.backbones import BACKBONES
from helpers.skills import skilled
from helpers.trainer import quiet_trainer
from mttl.config.optim_schema import AdamW
from mttl.data.collate import PackedCollator, TrainCollator
from mttl.data.loader import ResumableLoader
from mttl.data.samplers import TaskBatchSampler
from mttl.data.token_sampler import TokenBatchSampler
from mttl.io.errors import DivergedError
from mttl.routing import PolytroponRouter, ScoreFunctionRouter
from mttl.routing.task.priors import RoutingPrior
from mttl.skills import SkilledModel
from mttl.training.loss import global_mean, token_losses
from mttl.training.text_to_text import TextToTextModule
from training.test_text_to_text import tokenizer


class Rows(Dataset):
    """Twelve rows whose answers have 1 to 12 tokens."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {
            "input_ids": [3 + row, 4],
            "labels": [3 + (row + i) % 9 for i in range(row + 1)],
            "task_id": row % 3,
        }


SIZES = np.array([[3 + row] for row in range(12)])


def module_of(model: SkilledModel, **optim: Any) -> TextToTextModule:
    return TextToTextModule(
        model, tokenizer(), dict.fromkeys("abc", "EM"), AdamW(kind="adamw", **optim)
    )


@pytest.mark.parametrize(
    ("family", "kind"),
    [("t5", "rows"), ("llama", "rows"), ("llama", "budget"), ("llama", "packed")],
)
def test_the_gradient_is_that_of_one_large_batch(family: str, kind: str) -> None:
    """The last step has fewer batches; the prior keeps its weight."""
    torch.manual_seed(0)
    decoder_only = family == "llama"
    model = skilled(BACKBONES[family]())
    prior = RoutingPrior(sparsity=0.5)
    model.router = PolytroponRouter(model.router.n_groups, 3, 1, 3, relaxed=False, prior=prior)
    module = module_of(model, lr=1e-12)
    parameters = [value for value in model.parameters() if value.requires_grad]
    collate: TrainCollator = TrainCollator(0, decoder_only)
    sampler = TaskBatchSampler([0] * 12, batch_size=2)
    if kind != "rows":
        packed = 16 if kind == "packed" else None
        budget = {"sizes": SIZES, "token_budget": 32, "packed_length": packed}
        sampler = TokenBatchSampler([0] * 12, batch_size=8, **budget)
        collate = collate if packed is None else PackedCollator(0, True, packed)
    steps = [list(sampler)[i : i + 4] for i in range(0, len(sampler), 4)]
    assert len(steps[-1]) not in (0, 4)
    wanted = []
    for step in steps:
        batch = TrainCollator(0, decoder_only)([Rows()[row] for rows in step for row in rows])
        total = module.eval().training_step(batch, 0)
        wanted.append(torch.autograd.grad(total, parameters, materialize_grads=True))
    found: list[list[Tensor]] = []

    class Gradients(Callback):
        def on_before_optimizer_step(self, *_: Any) -> None:
            found.append([p.grad.clone() for p in parameters if p.grad is not None])

    options: dict[str, Any] = {"collate_fn": collate, "n_targets": collate.n_targets, "n_parts": 4}
    trainer = quiet_trainer(max_epochs=1, accumulate_grad_batches=4, callbacks=[Gradients()])
    trainer.fit(module, ResumableLoader(Rows(), sampler, **options))
    assert len(found) == len(steps)
    for ours, theirs in zip(found, wanted, strict=True):
        # Single precision, summed in another order; unweighted batches are off by over 5 %.
        torch.testing.assert_close(ours, [*theirs], rtol=1e-4, atol=1e-6)


def test_a_router_that_learns_from_its_draws_weighs_rows_alike() -> None:
    """Batches of 1 to 6 rows and one that does not count; in evaluation draws are fixed."""
    torch.manual_seed(0)
    model = skilled(BACKBONES["t5"]())
    model.router = ScoreFunctionRouter(model.router.n_groups, 3, 1, 3, entropy=0.5)
    fixed = torch.randn(12, 3)
    model.router._baselines = lambda task_ids, losses: fixed[task_ids, 0]  # the same in any batch
    module = module_of(model).eval()
    collate = TrainCollator(0, False)
    whole = collate([Rows()[row] for row in range(12)])
    wanted = module.training_losses(whole)[2].losses["choice"]
    parts = [collate([Rows()[row] for row in rows]) for rows in ([0], [1, 2, 3], range(4, 12), [5])]
    parts[-1]["labels"].fill_(-100)
    found = [
        module.training_losses({**part, "step_rows": torch.tensor(12 / 4)})[2].losses["choice"]
        for part in parts
    ]
    torch.testing.assert_close(sum(found) / 4, wanted)


@pytest.mark.parametrize("name", ["last.ckpt", "best.ckpt"])
def test_a_last_step_to_huge_weights_is_not_saved(tmp_path: Path, name: str) -> None:
    """The weights are finite, and no loss with them is."""
    collate = TrainCollator(0, False)
    module = module_of(skilled(BACKBONES["t5"]()), lr=1e30, schedule="constant", warmup=0)
    trainer = quiet_trainer(max_steps=1)
    sampler = TaskBatchSampler([0] * 12, batch_size=2)
    trainer.fit(module, ResumableLoader(Rows(), sampler, collate_fn=collate))
    assert all(value.isfinite().all() for value in module.parameters())
    with pytest.raises(DivergedError, match="the loss after the step is not finite at step 1"):
        trainer.save_checkpoint(tmp_path / name, weights_only=name == "best.ckpt")
    assert not list(tmp_path.iterdir())


def test_the_loss_is_cross_entropy_and_shares_of_a_step_add_up_to_it():
    logits, labels = torch.randn(3, 4, 7), torch.randint(0, 7, (3, 4))
    labels[0, 2:] = labels[2, 1:] = -100
    for smoothing in (0.0, 0.1):
        whole = functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), label_smoothing=smoothing
        )
        losses = token_losses(logits, labels, smoothing)
        torch.testing.assert_close(global_mean(losses, labels), whole)
        tokens = (labels != -100).sum() / 3  # three batches of one row each
        shares = [global_mean(losses[[i]], labels[[i]], tokens) for i in range(3)]
        torch.testing.assert_close(sum(shares) / 3, whole)
    nothing = torch.full_like(labels, -100)
    assert global_mean(token_losses(logits, nothing), nothing) == 0
