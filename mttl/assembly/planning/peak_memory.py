"""Count the bytes of live tensors during a computation, and their peak."""

import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PeakMemory(TorchDispatchMode):
    """Mode that counts every tensor created by an operation until it is freed.

    With fake tensors nothing is computed or allocated. If a shape depends on data, experts receive
    equal shares of the tokens, masks keep everything, and conditions are false. ``known`` tensors
    are not counted.
    """

    def __init__(self, known: Sequence[Tensor]) -> None:
        super().__init__()
        self.live: Counter[str] = Counter()  # bytes by kind
        self.at_peak: Counter[str] = Counter()  # bytes by kind at the peak
        self.peak = 0  # largest total
        self._kinds = {id(tensor.untyped_storage()): "" for tensor in known}
        self._held = [tensor.untyped_storage() for tensor in known]  # keeps their ids unique
        self._total = 0
        self._kind = "activations"

    @contextmanager
    def counting(self, kind: str) -> Iterator[None]:
        """Context manager: count new tensors as ``kind``."""
        before, self._kind = self._kind, kind
        try:
            yield
        finally:
            self._kind = before

    def call(self, tensor: Tensor, kind: str) -> None:
        """Count a tensor as ``kind`` from now on."""
        storage = tensor.untyped_storage()
        before = self._kinds.get(id(storage))
        if before:
            self.live[before] -= storage.nbytes()
            self.live[kind] += storage.nbytes()
            self._kinds[id(storage)] = kind

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation and count its new tensors."""
        known = _VALUES.get(func.overloadpacket)
        if known is not None and any(isinstance(leaf, FakeTensor) for leaf in tree_leaves(args)):
            result = known(func, *args, **(kwargs or {}))
        else:
            result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._count(leaf)
        if self._total > self.peak:
            self.peak, self.at_peak = self._total, self.live.copy()
        return result

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, n_bytes = id(storage), storage.nbytes()
        if key in self._kinds:
            return
        self._kinds[key] = self._kind
        self.live[self._kind] += n_bytes
        self._total += n_bytes
        weakref.finalize(storage, self._forget, key, n_bytes)

    def _forget(self, key: int, n_bytes: int) -> None:
        self.live[self._kinds.pop(key)] -= n_bytes
        self._total -= n_bytes


def _even_counts(func: Any, values: Tensor, weights: Any = None, minlength: int = 0) -> Tensor:
    """Return counts as if values were evenly distributed, with the correct sum."""
    return torch.bincount(torch.arange(values.numel()) % max(minlength, 1), minlength=minlength)


def _indexed(func: Any, tensor: Tensor, indices: Any, *rest: Any) -> Any:
    masks = [isinstance(i, Tensor) and i.dtype is torch.bool for i in indices]
    pairs = zip(indices, masks, strict=True)
    return func(tensor, [torch.arange(len(i)) if mask else i for i, mask in pairs], *rest)


_VALUES: dict[Any, Any] = {
    torch.ops.aten.bincount: _even_counts,
    torch.ops.aten.nonzero: lambda func, values: func(torch.ones(values.shape)),
    torch.ops.aten._local_scalar_dense: lambda func, value: value.dtype.is_floating_point * 0.0,
    torch.ops.aten.index: _indexed,
    torch.ops.aten.index_put: _indexed,
    torch.ops.aten.index_put_: _indexed,
    torch.ops.aten._index_put_impl_: _indexed,
}
