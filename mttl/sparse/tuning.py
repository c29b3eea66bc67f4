"""Training few entries of a network's tensors: their values alone are parameters.

A backward pass gives the gradient of a whole tensor. As soon as it is there, what belongs to the
support is copied out of it and the rest is dropped: so there is one whole gradient at a time, and
the optimizer sees, and keeps its state for, the entries of the support only. After its step the new
values are written into the tensors. All operations of an optimizer that works entry by entry
(SGD, Adam, AdamW) are those of masked training of the whole tensors.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from mttl.sparse.skill_file import Originals, SparseChange, SparseSkill, digest, put_entries


class SparseTuning:
    """Makes the entries of a support the only parameters of a model.

    After `optimizer.step`, `write` puts the entries into the model.

    Args:
        model: The network; parameters without support are frozen.
        support: Sorted places in the flattened parameters, by name.

    Attributes:
        entries: Values at the support, by name of the tensor: the parameters to optimize.
    """

    def __init__(self, model: nn.Module, support: Mapping[str, Int[Tensor, "n"]]) -> None:
        parameters = dict(model.named_parameters())
        self._tensors = {name: parameters[name] for name in support}
        self.support = {
            name: indices.to(parameters[name].device) for name, indices in support.items()
        }
        self._starts = {
            name: tensor.detach().reshape(-1)[self.support[name]]
            for name, tensor in self._tensors.items()
        }
        self.entries = {name: nn.Parameter(start.clone()) for name, start in self._starts.items()}
        model.requires_grad_(False)
        for name, tensor in self._tensors.items():
            tensor.requires_grad_(True)
            tensor.register_post_accumulate_grad_hook(self._keep(name))

    def parameters(self) -> list[nn.Parameter]:
        """Return what to give to the optimizer."""
        return list(self.entries.values())

    @torch.no_grad()
    def write(self) -> None:
        """Put the values of the entries into the model: after every step of the optimizer."""
        for name, entry in self.entries.items():
            put_entries(self._tensors[name], self.support[name], entry)

    @torch.no_grad()
    def add_l1(self, coefficient: float) -> None:
        r"""Add the gradient of :math:`\lambda \sum \lvert\theta - \theta_0\rvert`."""
        for name, entry in self.entries.items():
            pull = coefficient * (entry - self._starts[name]).sign()
            entry.grad = pull if entry.grad is None else entry.grad + pull

    def skill(
        self,
        about: Mapping[str, Any] | None = None,
        *,
        originals: Originals | None = None,
    ) -> SparseSkill:
        """Return what was learned; arguments as for `SparseSkill.between`."""
        changes = {}
        for name, start in self._starts.items():
            places = self.support[name]
            known = originals(name, places, start) if originals else start
            change, shape = self.entries[name].detach() - start, tuple(self._tensors[name].shape)
            changes[name] = SparseChange(shape, places, change, digest(known))
        return SparseSkill(changes, dict(about or {}))

    def _keep(self, name: str) -> Callable[[Tensor], None]:
        def keep(tensor: Tensor) -> None:
            assert tensor.grad is not None  # that is when the hook is called
            kept = tensor.grad.reshape(-1)[self.support[name]]
            tensor.grad = None
            entry = self.entries[name]
            entry.grad = kept if entry.grad is None else entry.grad + kept

        return keep
