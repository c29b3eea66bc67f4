"""The Lightning module for text-to-text tasks, trained by meta-learning."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mttl.training.loss import global_mean
from mttl.training.meta.meta_gradients import (
    Loss,
    maml_gradients,
    reptile_gradients,
    with_gradients,
)
from mttl.training.text_to_text import TextToTextModule


class MetaModule(TextToTextModule):
    """Learns skills and router from which a few steps on a task lead far.

    A batch holds rows of one task; batches that are accumulated into a step are its tasks. MAML's
    steps see one half of a batch and its gradients are of the other; Reptile's steps see a part
    each. The steps move all that is trained, by plain gradient descent.
    """

    def training_step(self, batch: Mapping[str, Any], batch_idx: int) -> Tensor:
        """Return the loss after the steps on a task; its gradients are those of meta-learning."""
        meta = self.optim.meta
        assert meta is not None
        parameters = [value for value in self.model.parameters() if value.requires_grad]
        if meta.kind == "maml":
            support, query = self._part_losses(batch, 2)
            found, loss = maml_gradients(
                parameters, support, query, n_steps=meta.inner_steps, rate=meta.inner_lr
            )
        else:
            losses = self._part_losses(batch, meta.inner_steps)
            found, loss = reptile_gradients(parameters, losses, rate=meta.inner_lr)
        self._watch(loss, batch)
        self.log("train/loss", loss, prog_bar=True, batch_size=len(batch["labels"]), sync_dist=True)
        return self._mean_over_step(with_gradients(loss, parameters, found), batch)

    def _part_losses(self, batch: Mapping[str, Any], n_parts: int) -> list[Loss]:
        """Return the losses of the parts of a batch."""
        rows = torch.arange(len(batch["labels"]), device=batch["labels"].device)
        # The losses are means of one task, whatever the other batches of the step hold.
        own_fields = {name: batch[name] for name in batch if not name.startswith("step_")}
        parts = [
            {name: value[own] for name, value in own_fields.items()} for own in rows.chunk(n_parts)
        ]
        return [lambda own=own: self._objective(own) for own in parts]

    def _objective(self, batch: Mapping[str, Any]) -> Tensor:
        losses, labels, routing = self.training_losses(batch)
        prior = self.model.router.prior_loss().to(losses.device)
        return global_mean(losses, labels) + prior + sum(routing.losses.values())
