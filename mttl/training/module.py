"""The Lightning module that text and policies share: optimizer, checkpoints and random states."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.optim import Optimizer

from mttl.aggregation.packed_weights import packed_layers
from mttl.checkpoints.whole_tensors import load_whole
from mttl.config.optim_schema import Optim
from mttl.io.errors import CheckpointError, ConfigError
from mttl.io.torch_file import load_torch
from mttl.moe.parallel import (
    clip_gradients,
    gather_checkpoint,
    shard_checkpoint,
    shared_parameters,
)
from mttl.runtime.processes import gathered
from mttl.training.optim import ROLES, build_optimizer, build_schedule, parameter_groups


class ResumableModule(pl.LightningModule):
    """Optimizes a model by role; a run that is resumed from its checkpoints is bit-identical.

    A checkpoint holds trained parameters, buffers and the random states, and no frozen weights:
    whoever resumes builds the same model again. Where experts are shared out among processes, the
    checkpoints and norms of gradients are those of all of them together.
    """

    def __init__(self, model: nn.Module, optim: Optim) -> None:
        super().__init__()
        self.model = model
        self.optim = optim
        # Every process loads the same packed weights, which DDP cannot send.
        self._ddp_params_and_buffers_to_ignore = [f"{path}.weight" for path in packed_layers(self)]
        # Random states of every process of the saved run.
        self._random_states: list[Mapping[str, Tensor]] = []
        # `on_load_checkpoint` checks all but the frozen weights.
        self.strict_loading = False

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Return the optimizer with one group per role, and its schedule by step."""
        mixed = str(self.trainer.precision).endswith("mixed")
        optimizer = build_optimizer(self.optim, self.model, fused=not mixed)
        n_steps = self.trainer.estimated_stepping_batches
        if math.isinf(n_steps):
            raise ConfigError(
                "max_time alone does not say how many steps there will be, which the learning "
                "rates' schedule needs; set max_steps or max_epochs too"
            )
        schedule = build_schedule(self.optim, optimizer, int(n_steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def load_weights(self, checkpoint: Path) -> int:
        """Take the trained weights of a checkpoint, and nothing else of it; return its step."""
        state = load_torch(checkpoint, "Repeat the training command with --resume")
        self.on_load_checkpoint(state)
        load_whole(self, state["state_dict"])
        self._random_states = []
        return int(state["global_step"])

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Leave the frozen weights out, and keep the random states of all processes."""
        kept = self._kept(checkpoint["state_dict"])
        checkpoint["state_dict"] = {name: checkpoint["state_dict"][name] for name in kept}
        state = {"random_state": torch.get_rng_state()}
        if self.device.type == "cuda":
            state["device_random_state"] = torch.cuda.get_rng_state(self.device)
        checkpoint["random_states"] = gathered(state)
        gather_checkpoint(self, checkpoint, self._in_order())

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check that nothing that training changes is missing, and remember the random states.

        Raises:
            CheckpointError: If a trained tensor is missing.
        """
        shard_checkpoint(self, checkpoint, self._in_order())
        missing = sorted(set(self._kept(self.state_dict())) - set(checkpoint["state_dict"]))
        if missing:
            raise CheckpointError(
                f"the checkpoint lacks {len(missing)} trained tensors, first {missing[0]}; it was "
                "made by a run with other settings"
            )
        self._random_states = checkpoint["random_states"]

    def on_train_start(self) -> None:
        """After a resume, continue the streams of random numbers where they stopped.

        Each process gets a stream of its own, or all would draw the same noise for different rows.
        A run that is resumed with another number of processes goes on in new streams.
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
        """Clip by the norm over all processes, or they would scale common gradients apart."""
        if gradient_clip_val and (parameters := self._in_order()):
            clip_gradients(parameters, self, float(gradient_clip_val))
        else:
            super().configure_gradient_clipping(
                optimizer, gradient_clip_val, gradient_clip_algorithm
            )

    def _in_order(self) -> list[nn.Parameter]:
        """Return the parameters as the optimizer numbers them, if experts are shared out."""
        if not shared_parameters(self):
            return []
        groups = parameter_groups(self.model, lr=dict.fromkeys(ROLES, 0.0), weight_decay=0.0)
        return [parameter for group in groups for parameter in group["params"]]

    def _kept(self, state: dict[str, Tensor]) -> list[str]:
        """Return the names of what training may change: all but frozen parameters."""
        # Tied weights have several names.
        parameters = self.named_parameters(remove_duplicate=False)
        frozen = {name for name, value in parameters if not value.requires_grad}
        # Beside packed weights stand scales, under names of their own.
        packed = tuple(f"{path}." for path in packed_layers(self))
        return [name for name in state if name not in frozen and not name.startswith(packed)]
