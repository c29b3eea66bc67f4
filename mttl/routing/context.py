"""The routing of one forward pass, and the slot through which layers read it.

A model and all of its skilled layers share one `RoutingSlot`, which the model fills for a forward
pass. Uses may be nested, and activation checkpointing recomputes with the same routing.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mttl.io.errors import ConfigError
from mttl.routing.token.choice import Tokens
from mttl.routing.token.masks import TokenMasks, TokenRecord, check_fit

Kept = TypeVar("Kept")


class Routing:
    """The skills that each example uses in one forward pass.

    The input of a layer has ``n_rows`` rows R of ``n_positions`` positions L, which must fit the
    examples.

    Args:
        task_ids: Task of each example.
        mixing: Weight of each skill in each routed group.
        expansion: Rows of a layer per row of the batch, which beam search repeats.
        rows_per_example: Neighbouring rows of the batch that share one example and its weights.
        reuse_merged: Whether to cache merged skills until this routing ends; only for repeated
            calls without gradients, such as generation.
        masks: Positions that are tokens; by default all.
        segments: Number of tokens of each example if rows are packed.
        weigh: Mixing weights of tokens from their tasks and ``states``. If given, ``mixing`` is for
            a first pass, which computes these states.
    """

    def __init__(
        self,
        task_ids: Int[Tensor, "B"],
        mixing: Float[Tensor, "G B H K"],
        *,
        expansion: int = 1,
        rows_per_example: int = 1,
        reuse_merged: bool = False,
        masks: TokenMasks | None = None,
        segments: Sequence[int] = (),
        weigh: Callable[..., Float[Tensor, "G N H K"]] | None = None,
    ) -> None:
        self.segments = tuple(segments)
        self.weigh = weigh
        self.task_ids = task_ids
        self.mixing = mixing
        self.n_rows = mixing.shape[1] * rows_per_example
        self.expansion = expansion
        self.masks = masks or TokenMasks({})
        self.losses: dict[str, Tensor] = {}  # auxiliary ones by name, summed over layers
        self.records: list[TokenRecord] = []  # of each layer
        self.ids: dict[str, Tensor] = {}  # entries (R, L) that each stack reads, if recorded
        # One slice per group, so that layers of a group share its autograd node.
        self.weights = mixing.unbind(0)
        self._merged: dict[int, object] | None = {} if reuse_merged else None

    def merged(self, key: int, merge: Callable[[], Kept]) -> Kept:
        """Return ``merge()``, cached per key with ``reuse_merged``."""
        if self._merged is None:
            return merge()
        if key not in self._merged:
            self._merged[key] = merge()
        return self._merged[key]  # type: ignore[return-value]

    def of_tokens(self, states: Float[Tensor, "*rows D"]) -> "Routing":
        """Return the routing of a second pass, whose examples are the tokens."""
        assert self.weigh is not None
        states = states.flatten(0, -2)
        counts = self.segments or [len(states) // max(len(self.task_ids), 1)] * len(self.task_ids)
        lengths = self.task_ids.new_tensor(counts)
        task_ids = self.task_ids.repeat_interleave(lengths, output_size=len(states))
        routing = _OfTokens(task_ids, self.weigh(task_ids, states=states))
        routing.losses = self.losses
        return routing

    def add_losses(self, losses: Mapping[str, Tensor]) -> None:
        """Add the auxiliary losses of a layer by name, coefficients included."""
        for name, loss in losses.items():
            self.losses[name] = self.losses[name] + loss if name in self.losses else loss

    def layer_tokens(
        self, x: Float[Tensor, "R *positions I"], stack: str, group: int | None, *, ids: bool
    ) -> Tokens:
        """Return the tokens that a layer of a stack reads, row by row.

        Their prior is the mixing weights of a routed group, of the first head. Vocabulary entries
        are included if ``ids`` is set and they are recorded.
        """
        n_rows, n_positions = self.rows_and_positions(x)
        self._check_rows(n_rows)
        mask = self.masks.of(stack, n_rows, n_positions)
        known = self.ids.get(stack) if ids else None
        if known is not None:
            check_fit(stack, known, n_rows, n_positions)
            known = known.repeat_interleave(n_rows // known.shape[0], dim=0).reshape(-1)
        n_examples = self.mixing.shape[1]
        examples = torch.arange(n_examples, device=self.mixing.device)
        examples = examples.repeat_interleave(n_rows // max(n_examples, 1) * n_positions)
        return Tokens(
            x.flatten(0, -2),
            None if mask is None else mask.reshape(-1),
            None if group is None else self.weights[group][:, 0].index_select(0, examples),
            examples,
            known,
        )

    def rows_and_positions(self, x: Tensor) -> tuple[int, int]:
        """Return rows R and positions L of a layer's input, which may be flattened (OPT)."""
        for ids in self.ids.values():
            if x.ndim == 2 and len(x) == ids.numel():
                return ids.shape[0], ids.shape[1]
        return x.shape[0], math.prod(x.shape[1:-1])

    def examples(self, x: Tensor) -> Tensor:
        """View a layer's input (R, …, I) as (B, rows of an example × positions, I)."""
        n_rows = self.rows_and_positions(x)[0]
        if x.ndim == 2 and n_rows > self.n_rows * self.expansion:
            raise ConfigError(
                f"a layer with skills received {n_rows} rows for {self.n_rows} examples: this "
                "backbone flattens the tokens of all examples there. Set skills.targets to layers "
                "with separate examples, such as [attention], or use another backbone"
            )
        self._check_rows(n_rows)
        return x.reshape(self.mixing.shape[1], -1, x.shape[-1])

    def tokens(self, x: Tensor) -> Tensor:
        """View a layer's input (R, …, I) as tokens in the order of the segments."""
        tokens = x.flatten(0, -2)
        if len(tokens) != sum(self.segments):
            raise ValueError(
                "this backbone changes the number of tokens, which cannot be packed; remove "
                "data.packed_length"
            )
        return tokens

    def repeat(self, values: Float[Tensor, "B *rest"], n_rows: int) -> Float[Tensor, "R *rest"]:
        """Return the values of each example, repeated for its rows."""
        self._check_rows(n_rows)
        return values.repeat_interleave(n_rows // max(len(values), 1), dim=0)

    def _check_rows(self, n_rows: int) -> None:
        if n_rows != self.n_rows and n_rows != self.n_rows * self.expansion:
            raise ValueError(
                f"a layer with skills received {n_rows} rows for {self.n_rows} task ids (or "
                f"{self.n_rows * self.expansion} rows with {self.expansion} beams). Pass one task "
                "id per example, generate through SkilledModel.generate, and choose other targets "
                "for DeBERTa, whose keys and queries also read positions"
            )


class RoutingSlot:
    """A stack of the routings in use, which a model shares with its layers.

    It is not thread-local, since the backward pass recomputes activations in other threads.
    """

    def __init__(self) -> None:
        self._stack: list[Routing] = []

    @property
    def in_use(self) -> bool:
        """Whether there is a routing; there is none if the backbone is called directly."""
        return bool(self._stack)

    @property
    def current(self) -> Routing:
        """The innermost routing in use; RuntimeError if there is none."""
        if not self._stack:
            raise RuntimeError(
                "a layer with skills was called without a routing; call the SkilledModel with "
                "task_ids, or wrap the call in `with slot.use(routing):`. In a backward pass the "
                "cause is reentrant activation checkpointing, which loses the routing: use "
                "SkilledModel.enable_gradient_checkpointing"
            )
        return self._stack[-1]

    @contextmanager
    def use(self, routing: Routing) -> Iterator[Routing]:
        """Make ``routing`` the current one inside the ``with`` block."""
        self._stack.append(routing)
        try:
            yield routing
        finally:
            self._stack.pop()

    def checkpoint_contexts(
        self,
    ) -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
        """Return the contexts of activation checkpointing: forward pass and recomputation.

        Pass it as ``context_fn`` to `torch.utils.checkpoint.checkpoint` (non-reentrant).
        """
        replay = copy.copy(self.current)
        replay.losses, replay.records = {}, []  # those of the recomputation are discarded
        return nullcontext(), self.use(replay)


class ConstantSlot(nn.Module):
    """A slot whose routing is one mixture of skills for all rows; it moves with a model.

    Args:
        mixing: Weights of the mixture.
    """

    in_use = True
    mixing: Tensor

    def __init__(self, mixing: Float[Tensor, "G 1 H K"]) -> None:
        super().__init__()
        self.register_buffer("mixing", mixing, persistent=False)

    @property
    def current(self) -> Routing:
        """A routing for inputs with any number of rows and positions."""
        return _Constant(torch.zeros(1, dtype=torch.long), self.mixing)


class _OfTokens(Routing):
    def examples(self, x: Tensor) -> Tensor:
        self._check_rows(x.shape[:-1].numel())
        return x.reshape(self.n_rows, 1, x.shape[-1])


class _Constant(Routing):
    def examples(self, x: Tensor) -> Tensor:
        return x.reshape(1, -1, x.shape[-1])

    def repeat(self, values: Float[Tensor, "1 *rest"], n_rows: int) -> Float[Tensor, "R *rest"]:
        return values.expand(n_rows, *values.shape[1:])


def check_task_ids(task_ids: Int[Tensor, "B"], n_tasks: int) -> None:
    """Raise ValueError unless all ids are at least 0 and below ``n_tasks``.

    It reads the ids, so they should be on the CPU.
    """
    wrong = task_ids[(task_ids < 0) | (task_ids >= n_tasks)]
    if wrong.numel():
        raise ValueError(f"task id {int(wrong[0])} is out of range: ids are 0 to {n_tasks - 1}")
