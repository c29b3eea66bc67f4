"""Training of policies from rewards or demonstrations, and callbacks that report progress."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from rich.console import Console
from torch import Tensor

from mttl.babyai.demonstration_loader import DemonstrationBatch
from mttl.babyai.position_experts import ViewRouting
from mttl.babyai.rl.learning_curve import ROUNDING, EpisodeLog
from mttl.babyai.rl.losses import imitation_loss, ppo_loss
from mttl.babyai.rl.sequences import EpisodeSequences
from mttl.checkpoints.run_callbacks import not_finite
from mttl.config.babyai_schema import Rl
from mttl.config.optim_schema import Optim
from mttl.runtime.progress_bar import SECONDS_BETWEEN_LINES
from mttl.skills.composed.composed_model import ComposedModel
from mttl.training.module import ResumableModule
from mttl.training.token_balance import LOADS, token_loads

ROLLOUTS = 10  # in the mean of a success rate


class PolicyModule(ResumableModule):
    """The policies of all levels, with statistics of their losses that are logged by epoch.

    Subclasses define `losses`.
    """

    model: ComposedModel
    task_ids: Tensor

    def __init__(self, model: ComposedModel, levels: Sequence[str], optim: Optim, rl: Rl) -> None:
        super().__init__(model, optim)
        self.levels, self.rl = tuple(levels), rl
        self.register_buffer("task_ids", torch.arange(len(self.levels)), persistent=False)
        # Sums over the batches of an epoch, since logging every batch is slower than a step.
        self._sums: dict[str, Tensor] = {}
        self._count = 0

    def losses(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a batch, and its statistics without gradients."""
        raise NotImplementedError

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | dict[str, Tensor]:
        """Return the loss of a batch plus the router's prior and the balancing losses of experts.

        Balancing losses are summed over layers, and averaged over levels and parts of the batch.
        With experts, their loads are returned as well.
        """
        layers = self.model.token_layers()
        if not layers:
            return self._total_loss(*self.losses(batch))
        with next(iter(layers.values())).slot.use(ViewRouting()) as routing:
            loss, statistics = self.losses(batch)
        n_passes = len(routing.records) // len(layers)
        balance = {f"balance/{name}": x / n_passes for name, x in routing.losses.items()}
        statistics |= {name: value.detach() for name, value in balance.items()}
        total = self._total_loss(loss, statistics) + sum(balance.values())
        return {"loss": total, LOADS: token_loads(self.model, routing.records)}

    def _total_loss(self, loss: Tensor, statistics: Mapping[str, Tensor]) -> Tensor:
        """Return the loss plus the router's prior, and record the statistics of the batch."""
        # Other processes get it by the shared gradients, at the latest in the next epoch.
        if not torch.isfinite(loss):
            raise not_finite(f"the loss is {loss.item()}", self.global_step)
        prior = self.model.router.prior_loss().to(loss.device)
        noted = {**statistics, "loss": loss.detach()}
        if prior.requires_grad:
            noted["prior"] = prior.detach()
        for name, value in noted.items():
            self._sums[name] = self._sums.get(name, torch.zeros_like(value)) + value
        self._count += 1
        return loss + prior

    def means(self) -> dict[str, Tensor]:
        """Return the means of the statistics over the epoch's finished batches."""
        return {name: value / self._count for name, value in self._sums.items()}

    def on_train_epoch_end(self) -> None:
        values = {f"train/{name}": value for name, value in self.means().items()}
        if values:
            self.log_dict(values, sync_dist=True)
        self._sums, self._count = {}, 0

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        sums = {name: value.cpu() for name, value in self._sums.items()}
        checkpoint["sums"] = sums, self._count

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        sums, self._count = checkpoint["sums"]
        self._sums = {name: value.to(self.device) for name, value in sums.items()}


class PpoModule(PolicyModule):
    """PPO training of the policies of all levels, on minibatches of rollouts."""

    def losses(self, batch: EpisodeSequences) -> tuple[Tensor, dict[str, Tensor]]:
        logits, values, _ = self.model(self.task_ids, *batch.inputs)
        return ppo_loss(
            logits.float(),
            values.float(),
            batch.actions,
            batch.log_probs,
            batch.values,
            batch.advantages,
            batch.returns,
            **self.rl.ppo.model_dump(include={"clip", "value_coef", "entropy_coef"}),
        )


class ImitationModule(PolicyModule):
    """Behaviour cloning of the policies of all levels.

    The memory runs through each demonstration from beginning to end, with gradients over a limited
    number of steps. All levels have equal weight. The critic is not trained. Balancing losses of
    experts also count the steps that pad demonstrations.
    """

    def losses(self, batch: DemonstrationBatch) -> tuple[Tensor, dict[str, Tensor]]:
        logits, values = self._follow(batch)
        of_levels = zip(logits, batch.actions, batch.mask, strict=True)
        weight = self.rl.imitation.entropy_coef
        found = (imitation_loss(*own, entropy_coef=weight) for own in of_levels)
        losses, statistics = zip(*found, strict=True)
        noted = {name: torch.stack([own[name] for own in statistics]) for name in statistics[0]}
        means = {name: values_of.mean() for name, values_of in noted.items()}
        own = {f"accuracy/{level}": noted["accuracy"][n] for n, level in enumerate(self.levels)}
        # Zero gradients for the critic, since DDP fails for parameters without gradients.
        return torch.stack(losses).mean() + 0.0 * values.sum(), means | own

    def _follow(self, batch: DemonstrationBatch) -> tuple[Tensor, Tensor]:
        """Return logits (T, S, N, A) and values (T, S, N) of whole demonstrations."""
        n_tasks, n_steps, n_episodes = batch.actions.shape
        index = torch.arange(n_episodes, device=self.device).expand(n_tasks, n_steps, n_episodes)
        begins = torch.zeros_like(batch.mask)  # the initial memory is empty
        memory_size: Any = self.model.base.memory_size
        memory = torch.zeros(n_tasks, n_episodes, 2 * memory_size, device=self.device)
        parameters = self.model.task_parameters(self.task_ids)
        logits, values = [], []
        recurrence = self.rl.ppo.recurrence
        frames = (x.split(recurrence, dim=1) for x in (batch.images, index, begins))
        for images, own, none in zip(*frames, strict=True):
            out, value, memory = self.model.run(
                parameters, images, batch.missions, own, memory.detach(), none
            )
            logits.append(out.float())
            values.append(value.float())
        return torch.cat(logits, dim=1), torch.cat(values, dim=1)


class LineMonitor(Callback):
    """A callback that prints a line after the last epoch, and regularly after other epochs."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._last_line = 0.0

    def print_if_due(self, trainer: pl.Trainer, line: str) -> bool:
        """Print a line if one is due, and return whether it was printed."""
        last = trainer.should_stop or trainer.current_epoch + 1 == trainer.max_epochs
        due = time.monotonic() - self._last_line >= SECONDS_BETWEEN_LINES
        if not trainer.is_global_zero or not (due or last):
            return False
        self._last_line = time.monotonic()
        self.console.print(line, highlight=False, soft_wrap=True)
        return True


class ImitationMonitor(LineMonitor):
    """A callback that prints the rates of actions that agree with demonstrations."""

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, ImitationModule)
        means = pl_module.means()
        rates = {level: float(means[f"accuracy/{level}"]) for level in pl_module.levels}
        line = f"pass {trainer.current_epoch + 1}; actions as demonstrated (%): "
        self.print_if_due(trainer, line + percentages(rates))


class EpisodeMonitor(LineMonitor):
    """A callback that logs counts and success rates, and ends training with ``stop_when_solved``.

    A level is solved if the mean over `ROLLOUTS` rollouts reaches the success rate.
    """

    def __init__(self, log: EpisodeLog, rl: Rl, console: Console) -> None:
        super().__init__(console)
        self.counts, self.rl = log, rl
        self._rates: list[list[float]] = []

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        row = self.row(trainer)
        known = {name: value for name, value in row.items() if not math.isnan(value)}
        for logger in trainer.loggers:
            logger.log_metrics(known, trainer.global_step)
        rates = {level: row[f"success/{level}"] for level in self.counts.levels}
        self._rates = [*self._rates, [*rates.values()]][-ROLLOUTS:]
        lately = np.array(self._rates).mean(0)
        solved = len(self._rates) == ROLLOUTS and all(lately >= self.rl.success_rate - ROUNDING)
        trainer.should_stop |= self.rl.stop_when_solved and solved
        counts = f"{row['frames']:,.0f} frames, {row['episodes']:,.0f} episodes"
        printed = self.print_if_due(trainer, f"{counts}; success: {percentages(rates)}")
        if printed and trainer.should_stop and solved:
            self.console.print(
                f"The success rate of every level is {self.rl.success_rate:.0%} or more over "
                f"{self.counts.window} episodes: training ends."
            )

    def row(self, trainer: pl.Trainer) -> dict[str, float]:
        """Return the row of all processes, with sums of counts and means of rates."""
        row = self.counts.row()
        if trainer.world_size > 1:
            strategy = trainer.strategy
            values = torch.tensor(list(row.values()), dtype=torch.float64)
            values = strategy.reduce(values.to(strategy.root_device), reduce_op="mean")
            row = dict(zip(row, torch.as_tensor(values).tolist(), strict=True))
            for count in ("episodes", "frames"):
                row[count] *= trainer.world_size
        return row

    def state_dict(self) -> dict[str, Any]:
        return {"rates": self._rates}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._rates = state_dict["rates"]


def percentages(rates: Mapping[str, float]) -> str:
    """Return rates in one line, with a dash for levels with too few finished episodes."""
    shown = {level: "–" if math.isnan(x) else f"{100 * x:.0f}" for level, x in rates.items()}
    return "  ".join(f"{level} {rate}" for level, rate in shown.items())
