"""Base Lightning module of text and policies: optimizer, checkpoints and random states."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from mttl.aggregation.packed_weights import packed_layers
from mttl.checkpoints.whole_tensors import load_whole
from mttl.config.optim_schema import Optim
from mttl.io.errors import CheckpointError, ConfigError
from mttl.io.torch_file import load_torch
from mttl.moe.parallel import clip_gradients, gather_checkpoint, shard_checkpoint, shared_parameters
from mttl.runtime.processes import gathered
from mttl.training.optim import ROLES, build_optimizer, parameter_groups, schedule_factor


class ResumableModule(pl.LightningModule):
    """Optimizes a model by role; a resumed run is bit-identical to an uninterrupted one.

    A checkpoint has trained parameters, buffers and random states, but no frozen weights, which are
    rebuilt on resuming. With distributed experts, checkpoints and gradient norms include all
    processes.
    """

    def __init__(self, model: nn.Module, optim: Optim) -> None:
        super().__init__()
        self.model = model
        self.optim = optim
        # Every process loads the same packed weights, which DDP cannot broadcast.
        self._ddp_params_and_buffers_to_ignore = [f"{path}.weight" for path in packed_layers(self)]
        # Random states of all processes of the saved run.
        self._random_states: list[Mapping[str, Tensor]] = []
        # `on_load_checkpoint` checks all except frozen weights.
        self.strict_loading = False

    def setup(self, stage: str) -> None:
        # Lightning restores weights before this conversion, which would round them.
        if self.trainer.precision == "64-true":
            self.double()

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Return the optimizer with one group per role, and its schedule by step."""
        mixed = str(self.trainer.precision).endswith("mixed")
        optimizer = build_optimizer(self.optim, self.model, fused=not mixed)
        n_steps = self.trainer.estimated_stepping_batches
        if math.isinf(n_steps):
            raise ConfigError(
                "trainer.max_time does not define the number of steps that the learning-rate "
                "schedule needs; also set trainer.max_steps or trainer.max_epochs"
            )
        schedule = self._schedule(optimizer, int(n_steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _schedule(self, optimizer: Optimizer, n_steps: int) -> LRScheduler:
        return LambdaLR(optimizer, schedule_factor(self.optim, n_steps))

    def load_weights(self, checkpoint: Path) -> int:
        """Load only the trained weights of a checkpoint; return its step."""
        state = load_torch(checkpoint, "Repeat the training command with --resume")
        self.on_load_checkpoint(state)
        load_whole(self, state["state_dict"])
        self._random_states = []
        return int(state["global_step"])

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Remove frozen weights, and add the random states of all processes."""
        kept = self._kept(checkpoint["state_dict"])
        checkpoint["state_dict"] = {name: checkpoint["state_dict"][name] for name in kept}
        state = {"random_state": torch.get_rng_state()}
        if self.device.type == "cuda":
            state["device_random_state"] = torch.cuda.get_rng_state(self.device)
        checkpoint["random_states"] = gathered(state)
        gather_checkpoint(self, checkpoint, self._in_order())

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check that all trained tensors exist, and keep the random states for the start.

        Raises a `CheckpointError` if a trained tensor is missing.
        """
        shard_checkpoint(self, checkpoint, self._in_order())
        missing = sorted(set(self._kept(self.state_dict())) - set(checkpoint["state_dict"]))
        if missing:
            raise CheckpointError(
                f"the checkpoint lacks {len(missing)} trained tensors, first {missing[0]}; it "
                "belongs to a run with other settings"
            )
        self._random_states = checkpoint["random_states"]

    def on_train_start(self) -> None:
        """Restore the random states of a resumed run.

        Each process has its own random stream, so that noise differs between rows. With another
        number of processes, new streams are started.
        """
        n_processes, states = self.trainer.world_size, self._random_states
        if len(states) == n_processes:
            state = states[self.global_rank]
            torch.set_rng_state(state["random_state"].cpu())
            if "device_random_state" in state and self.device.type == "cuda":
                torch.cuda.set_rng_state(state["device_random_state"].cpu(), self.device)
        elif n_processes > 1 or states:
            past = n_processes * self.trainer.global_step
            torch.manual_seed(torch.initial_seed() + past + self.global_rank)
        self._random_states = []

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip gradients by their norm over all processes, if experts are distributed."""
        if gradient_clip_val and (parameters := self._in_order()):
            clip_gradients(parameters, self, float(gradient_clip_val))
        else:
            super().configure_gradient_clipping(
                optimizer, gradient_clip_val, gradient_clip_algorithm
            )

    def _in_order(self) -> list[nn.Parameter]:
        """Return the parameters in the optimizer's order if experts are distributed, else none."""
        if not shared_parameters(self):
            return []
        groups = parameter_groups(self.model, lr=dict.fromkeys(ROLES, 0.0), weight_decay=0.0)
        return [parameter for group in groups for parameter in group["params"]]

    def _kept(self, state: dict[str, Tensor]) -> list[str]:
        """Return the names of tensors that training may change, without frozen parameters."""
        # Tied weights have several names.
        parameters = self.named_parameters(remove_duplicate=False)
        frozen = {name for name, value in parameters if not value.requires_grad}
        # Packed weights have additional tensors with scales.
        packed = tuple(f"{path}." for path in packed_layers(self))
        return [name for name in state if name not in frozen and not name.startswith(packed)]
