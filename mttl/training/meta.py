"""First-order meta-learning: MAML and Reptile.

Inner steps are not differentiated.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import grad

from mttl.training.text_to_text import TextToTextModule

Loss = Callable[[], Tensor]


class MetaModule(TextToTextModule):
    """Learns skills and router as a good initialisation for a few steps on a task.

    A batch has rows of one task; the batches accumulated into a step are its tasks. MAML's inner
    steps use one half of a batch and its gradients the other; each of Reptile's steps uses a part.
    Inner steps update all trained parameters by plain gradient descent.
    """

    def training_step(self, batch: Mapping[str, Any], batch_idx: int) -> Tensor:
        """Return the loss after the inner steps, with meta-learning gradients."""
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
        """Return the losses of the parts of a batch as functions."""
        rows = torch.arange(len(batch["labels"]), device=batch["labels"].device)
        # Losses are means over one task, independent of the step's other batches.
        own_fields = {name: batch[name] for name in batch if not name.startswith("step_")}
        parts = [
            {name: value[own] for name, value in own_fields.items()} for own in rows.chunk(n_parts)
        ]

        return [lambda own=own: self.whole_loss(own)[0] for own in parts]


def maml_gradients(
    parameters: Sequence[Tensor], support: Loss, query: Loss, *, n_steps: int, rate: float
) -> tuple[list[Tensor], Tensor]:
    r"""Return first-order MAML's gradients, and the loss after the inner steps.

    From :math:`\theta`, ``n_steps`` steps :math:`\theta' \leftarrow \theta' - \alpha \nabla
    L_{support}(\theta')` are taken with α = ``rate``; the gradient is :math:`\nabla
    L_{query}(\theta')` on other rows of the task. The parameters are restored.

    References:
        Finn, Abbeel and Levine, *Model-Agnostic Meta-Learning*, ICML 2017, arXiv:1703.03400,
        section 5.2. All steps use the same rows, as in the released code of CrossFit (Ye, Lin and
        Ren, arXiv:2104.08835), whose query rows are a task's development rows.
    """
    with _put_back(parameters):
        for _ in range(n_steps):
            _descend(parameters, support(), rate)
        loss = query()
        return [*grad(loss, parameters, materialize_grads=True)], loss.detach()


def reptile_gradients(
    parameters: Sequence[Tensor], losses: Iterable[Loss], *, rate: float
) -> tuple[list[Tensor], Tensor]:
    r"""Return Reptile's gradients :math:`\theta - \theta'`, and the loss of the last step.

    Each step has the loss of other rows of a task; the parameters are restored.

    References:
        Nichol, Achiam and Schulman, *On First-Order Meta-Learning Algorithms*, 2018,
        arXiv:1803.02999; the difference as a gradient, as in section 2.
    """
    last = torch.zeros(())
    with _put_back(parameters) as before:
        for loss in losses:
            last = loss()
            _descend(parameters, last, rate)
        return [a - b.detach() for a, b in zip(before, parameters, strict=True)], last.detach()


def with_gradients(
    loss: Tensor, parameters: Sequence[Tensor], gradients: Sequence[Tensor]
) -> Tensor:
    """Return a loss value whose backward pass produces the given gradients.

    Accumulation, clipping and data-parallel training then work as usual.
    """
    product = torch.stack(
        [(value * own).sum() for value, own in zip(parameters, gradients, strict=True)]
    ).sum()
    return loss.detach() + (product - product.detach())


@contextmanager
def _put_back(parameters: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Context manager that yields copies of parameters, and restores them afterwards."""
    before = [value.detach().clone() for value in parameters]
    try:
        yield before
    finally:
        with torch.no_grad():
            for value, kept in zip(parameters, before, strict=True):
                value.copy_(kept)
        torch.clear_autocast_cache()


def _descend(parameters: Sequence[Tensor], loss: Tensor, rate: float) -> None:
    found = grad(loss, parameters, materialize_grads=True)
    with torch.no_grad():
        for value, own in zip(parameters, found, strict=True):
            value.sub_(own, alpha=rate)
    torch.clear_autocast_cache()  # it has casts of the old weights
