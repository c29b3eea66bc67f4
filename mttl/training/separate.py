"""Train the private skills of all tasks at once, and keep each at its best, as in single runs."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from mttl.checkpoints.run_callbacks import SaveBest, check_weights
from mttl.config.optim_schema import Optim, TaskOptim
from mttl.io.errors import ConfigError, nearest
from mttl.io.torch_file import load_torch
from mttl.skills.inventory import Inventory
from mttl.training.loss import task_means
from mttl.training.optim import schedule_factor
from mttl.training.text_to_text import TextToTextModule


def separate_steps(optim: Optim, tasks: Sequence[str], max_steps: int) -> dict[int, int] | None:
    """Return the own steps of tasks by id, or None if tasks are not trained separately.

    Raises a `ConfigError` if a task is unknown, or the longest training is not ``max_steps``.
    """
    if not optim.separate:
        return None
    for name in optim.tasks.keys() - set(tasks):
        raise ConfigError(f"optim.tasks: '{name}' is not a training task.{nearest(name, tasks)}")
    steps = {tasks.index(name): one.steps for name, one in optim.tasks.items() if one.steps}
    longest = max(steps.values(), default=max_steps)
    if longest > max_steps or (len(steps) == len(tasks) and longest < max_steps):
        raise ConfigError(
            f"optim.tasks trains for up to {longest} steps, and trainer.max_steps is {max_steps}; "
            f"set trainer.max_steps={longest}"
        )
    return steps


class SeparateModule(TextToTextModule):
    """Trains one private skill per task with a loss mean, clipping and learning rate by task.

    All parameters are stacks with one slice per task. Gradients and the state of Adam are
    independent by entry, so each slice is trained as in a run of its task alone on the same rows.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        parts = [part for part in self.model.modules() if isinstance(part, Inventory)]
        own = {id(value) for part in parts for value in part.stacks()}
        for name, value in self.model.named_parameters():
            if value.requires_grad and id(value) not in own:
                raise ConfigError(
                    f"optim.separate does not work with '{name}', which has no slice for each task"
                )

    def training_step(self, batch: Mapping[str, Any], batch_idx: int) -> Tensor:
        """Return the sum of the tasks' mean losses, and log their mean."""
        losses, labels, routing = self.training_losses(batch)
        means = task_means(losses, labels, batch["task_ids"], len(self.tasks))
        self._watch(means.detach().sum(), batch)
        shown = means.detach().sum() / len(batch["task_ids"].unique())
        self.log("train/loss", shown, prog_bar=True, batch_size=len(labels), sync_dist=True)
        for name, value in routing.losses.items():
            self.log(f"train/{name}", value, batch_size=len(labels))
        return means.sum() + sum(routing.losses.values())

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        if not gradient_clip_val:
            return
        gradients = [value.grad for value in _stacks(optimizer) if value.grad is not None]
        norms = [torch.linalg.vector_norm(one.flatten(1), dim=1) for one in gradients]
        norm = torch.linalg.vector_norm(torch.stack(norms), dim=0)
        factors = (gradient_clip_val / (norm + 1e-6)).clamp(max=1)  # as PyTorch's clip_grad_norm_
        for one in gradients:
            one.mul_(_by_slice(factors, one))

    def _schedule(self, optimizer: Optimizer, n_steps: int) -> LambdaLR:
        own = [self.optim.tasks.get(task, TaskOptim()) for task in self.tasks]
        rates = [_rate(self.optim, one, n_steps) for one in own]
        schedule = LambdaLR(optimizer, lambda step: max(rate(step) for rate in rates))

        def shares() -> list[float]:
            now = [rate(schedule.last_epoch) for rate in rates]
            return [rate / (max(now) or 1.0) for rate in now]

        if self.optim.tasks:
            _scale_updates(optimizer, shares)
        return schedule


def _rate(optim: Optim, own: TaskOptim, n_steps: int) -> Callable[[int], float]:
    """Return a task's learning rate as a multiple of ``optim.lr``, as a function of the step."""
    steps, ratio = own.steps or n_steps, (own.lr or optim.lr) / optim.lr
    factor = schedule_factor(optim, steps)
    return lambda step: ratio * factor(step) if step < steps else 0.0


def _scale_updates(optimizer: Optimizer, shares: Callable[[], list[float]]) -> None:
    """Multiply the update of each slice by its share of the learning rate, after every step."""
    # The updates of Adam and AdamW, weight decay included, are proportional to the learning rate,
    # and their moments do not depend on it, so this is exactly a learning rate per slice.
    before: list[Tensor] = []

    def remember(*_: Any) -> None:
        before[:] = [value.detach().clone() for value in _stacks(optimizer)]

    @torch.no_grad()
    def scale(*_: Any) -> None:
        for old, value in zip(before, _stacks(optimizer), strict=True):
            share = torch.tensor(shares(), dtype=value.dtype, device=value.device)
            # `lerp` is exact at its ends: nothing changes a task that is done.
            value.copy_(torch.lerp(old, value, _by_slice(share, value)))
        before.clear()

    optimizer.register_step_pre_hook(remember)
    optimizer.register_step_post_hook(scale)


def _stacks(optimizer: Optimizer) -> list[Tensor]:
    return [value for group in optimizer.param_groups for value in group["params"]]


def _by_slice(values: Float[Tensor, "K"], stack: Tensor) -> Tensor:
    return values.view(-1, *[1] * (stack.ndim - 1))


class SaveTaskBest(SaveBest):
    """Saves the slice of each task in the stacked parameters after its best validation so far.

    ``checkpoint`` combines slices of different steps. A task without validation rows keeps its
    last slice.
    """

    def __init__(self, checkpoint: Path, tasks: Sequence[str]) -> None:
        super().__init__(checkpoint)
        self.tasks = tasks
        self.scores = torch.full((len(tasks),), -torch.inf)
        self.steps = torch.zeros(len(tasks), dtype=torch.long)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.n_validations += 1
        names = [f"val/{task}/score" for task in self.tasks]
        found = [float(trainer.callback_metrics.get(name, torch.inf)) for name in names]
        scores = torch.tensor(found).nan_to_num(0.0, posinf=torch.inf)
        better = (scores > self.scores) | scores.isinf()
        if not better.any():
            return
        check_weights(pl_module, trainer.global_step)
        kept = {}
        if self.score is not None and self.checkpoint.is_file():
            advice = "Delete it, and repeat the training command with --resume"
            kept = load_torch(self.checkpoint, advice)["state_dict"]
        self.scores[better], self.steps[better] = scores[better], trainer.global_step
        self.score = float(self.scores.mean())
        trained = {n: value for n, value in pl_module.named_parameters() if value.requires_grad}
        own = {name: value.detach().clone() for name, value in trained.items()}
        with torch.no_grad():
            for name, value in kept.items():
                if name in trained:
                    trained[name][~better] = value[~better].to(trained[name].device)
            trainer.save_checkpoint(self.checkpoint, weights_only=True)
            for name, value in own.items():
                trained[name].copy_(value)

    def kept(self, step: int) -> str:
        pairs = zip(self.tasks, self.steps.tolist(), strict=True)
        steps = ", ".join(f"{task} {own}" for task, own in pairs)
        return f"Kept each task at its best of {self.n_validations} validations, by step: {steps}"

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "scores": self.scores, "steps": self.steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the scores, if their weights still exist."""
        super().load_state_dict(state_dict)
        if self.score is not None:
            self.scores, self.steps = state_dict["scores"].clone(), state_dict["steps"].clone()
