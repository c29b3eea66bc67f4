"""Train the private skills of all tasks at once, each as in a run of its own."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from mttl.config.optim_schema import Optim, TaskOptim
from mttl.io.errors import ConfigError, nearest
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
        """Clip the gradients of each task by their own norm."""
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
