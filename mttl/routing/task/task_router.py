"""The interface of task routers, which mix skills by task."""

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mttl.io.errors import require_at_least, require_one_of
from mttl.plugins.classes import arguments
from mttl.plugins.part_settings import Bounded

# Further arguments of `forward`: the mean of the backbone's input embeddings over each prompt, its
# task's description, or a few training rows of the task; and the last hidden state of each token.
PER_PASS = ("prompts", "states")
SEEN = (*PER_PASS, "descriptions", "examples")
STARTS = ("mean", "fresh")
SIZES = ("n_groups", "n_tasks", "n_heads", "n_skills")


@dataclass(frozen=True)
class TaskRows:
    """The axis of tasks of a router's tensor.

    If the last axis is that of skills, ``unused`` is the value of a skill that a task does not use.
    """

    axis: int
    unused: float | None = None


class TaskRouter(Bounded, nn.Module, ABC):
    """Maps tasks to mixing weights over skills, for all routed groups of a model.

    Each argument of the constructor must be an attribute of the same name, for `rebuilt` and
    `extra_repr`. See `mttl.plugins.parts` for the description of a kind.

    Args:
        n_groups: Number of routed groups G, whose layers share routing weights; 0 if only tokens
            are routed.
        n_tasks: Number of tasks T.
        n_heads: Heads H: blocks of features with separate routing weights.
        n_skills: Number of skills K.

    Attributes:
        draws: Whether examples of one task may get different weights in training.
        consistency: Weight in the loss of the divergence of two passes; 0 computes one pass.
        task_rows: Tensors with a row per task, by name; others are common to all tasks.
        seen: Further arguments of `forward`, of `SEEN`.
    """

    lacks: ClassVar[Mapping[str, Any]] = {
        "gives_zeros": "its learned weights are never exactly 0, so that no expert is excluded; "
        "set moe.task_prior: logits, or router.kind: expert or private"
    }
    role = "router"
    draws = True
    consistency = 0.0
    task_rows: ClassVar[Mapping[str, TaskRows]] = {}

    def __init__(self, n_groups: int, n_tasks: int, n_heads: int, n_skills: int) -> None:
        super().__init__()
        require_at_least(0, n_groups=n_groups)
        require_at_least(1, n_tasks=n_tasks, n_heads=n_heads, n_skills=n_skills)
        self.n_groups, self.n_tasks, self.n_heads = n_groups, n_tasks, n_heads
        self.n_skills = n_skills
        self.seen = seen_by(type(self))

    @abstractmethod
    def forward(self, task_ids: Int[Tensor, "B"]) -> Float[Tensor, "G B H K"]:
        """Return the mixing weights of each example, which may be random in training.

        Further arguments are those of `SEEN`, each a tensor (B, D); `matrix` passes None for those
        of `PER_PASS`. If they include ``states``, it is first called with None, for a first pass,
        and then with task id and state of every token of that pass.
        """

    def mix(
        self,
        task_ids: Int[Tensor, "B"],
        prompts: Float[Tensor, "B D"] | None = None,
        states: Float[Tensor, "B D"] | None = None,
    ) -> Float[Tensor, "G B H K"]:
        """Return the result of `forward` with its further arguments."""
        computed = {"prompts": prompts, "states": states}
        given = {
            name: computed[name] if name in computed else getattr(self, f"shown_{name}")[task_ids]
            for name in self.seen
        }
        return self(task_ids, **given)

    @property
    def reads_text(self) -> bool:
        """Whether weights depend on the text of an example, not only on its task."""
        return any(name in PER_PASS for name in self.seen)

    @property
    def weighs_tokens(self) -> bool:
        """Whether weights differ between the tokens of an example; a task has none of its own."""
        return "states" in self.seen

    @classmethod
    def rows_of_tasks(cls) -> dict[str, TaskRows]:
        """Return `task_rows`, and those of the vectors of `show`."""
        shown = {f"shown_{name}": TaskRows(0) for name in seen_by(cls) if name not in PER_PASS}
        return {**cls.task_rows, **shown}

    def show(self, name: str, vectors: Float[Tensor, "T D"]) -> None:
        """Store a vector of every task as an argument of `forward`; it is saved with the router."""
        self.register_buffer(f"shown_{name}", vectors)

    def matrix(self) -> Float[Tensor, "G T H K"]:
        """Return the mixing weights of every task without noise, by default in evaluation mode."""
        training = self.training
        device = next((value.device for value in self.state_dict().values()), None)
        self.eval()
        try:
            return self.mix(torch.arange(self.n_tasks, device=device))
        finally:
            self.train(training)

    def probabilities(self) -> Float[Tensor, "G T H K"]:
        """Return the probability that each task uses each skill, before normalisation."""
        return self.matrix()

    def prior_loss(self) -> Float[Tensor, ""]:
        """Return the term of the router's prior in the loss; zero by default."""
        return torch.zeros(())

    def choice_loss(
        self,
        task_ids: Int[Tensor, "B"],
        weights: Float[Tensor, "G B H K"],
        losses: Float[Tensor, "B"],
    ) -> Float[Tensor, "B"] | None:
        """Return the loss of a router that draws samples without a gradient; None for others.

        ``weights`` are samples of `forward` for a training batch; ``losses`` have no gradient.
        """
        return None

    def for_new_tasks(self, n_tasks: int, *, init: str = "mean") -> "TaskRouter":
        """Return a router of this kind for new tasks.

        The initialisation ``"mean"`` takes the mean weights of the known tasks and copies all other
        parameters; ``"fresh"`` is that of an untrained router. ValueError if `task_rows` lacks a
        tensor with rows of tasks.
        """
        require_one_of(STARTS, init=init)
        router = self.rebuilt(n_tasks=n_tasks)
        new = router.state_dict()
        learned = dict(self.named_parameters())
        with torch.no_grad():
            for name, value in self.state_dict().items():
                if name in self.task_rows and name in learned:
                    scale = getattr(self, "init_scale", None)
                    if init == "mean" or scale is not None:
                        new[name].copy_(initial_rows(value, n_tasks, init, scale or 0.0))
                elif name in new and name not in self.task_rows:
                    if new[name].shape != value.shape:
                        raise ValueError(
                            f"'{name}' of {type(self).__name__} depends on the number of tasks: "
                            "add it to task_rows, or define for_new_tasks"
                        )
                    if init == "mean" or name not in learned:
                        new[name].copy_(value)
        return router

    def rebuilt(self, **changed: Any) -> "TaskRouter":
        """Return an untrained router with some arguments changed, on the same device."""
        router = type(self)(**self._arguments() | changed)
        like = next(iter(self.state_dict().values()), None)
        return router if like is None else router.to(like.device, like.dtype)

    def _arguments(self, kind: type["TaskRouter"] | None = None) -> dict[str, Any]:
        """Return the current arguments of this kind, or of a base class."""
        named = (item.name for _, item in arguments(kind or type(self)))
        found = {name: getattr(self, name) for name in named}
        return {
            k: v.item() if isinstance(v, Tensor) and not v.ndim else v for k, v in found.items()
        }

    def of_tasks(self, task_ids: Int[Tensor, "N"]) -> "TaskRouter":
        """Return a copy for some of the tasks, in order; ValueError without `task_rows`."""
        if not self.task_rows:
            raise ValueError(f"{type(self).__name__} has no task_rows, so tasks cannot be selected")
        router = copy.deepcopy(self)
        router.n_tasks = len(task_ids)
        for name, place in self.rows_of_tasks().items():
            value = getattr(self, name)
            kept = value.detach().index_select(place.axis, task_ids.to(value.device))
            learned = isinstance(value, nn.Parameter)
            setattr(router, name, nn.Parameter(kept) if learned else kept)
        return router

    def extra_repr(self) -> str:
        return printed(self, SIZES)


class SignedRouter(TaskRouter):
    """A base of task routers whose weights may be negative."""

    asks: ClassVar = {"takes_signed_weights": "kind"}
    lacks: ClassVar = {
        "exports_inventory": "its weights can be negative, but PEFT's Poly needs weights with the "
        "sum 1; export single tasks (--task)"
    }


def printed(module: nn.Module, sizes: Sequence[str]) -> str:
    """Return the attributes with the names of sizes and settings, for a module's ``repr``."""
    names = dict.fromkeys([*sizes, *(item.name for _, item in arguments(type(module)))])
    values = {name: getattr(module, name, None) for name in names}
    plain = bool | int | float | str
    return ", ".join(f"{k}={v}" for k, v in values.items() if isinstance(v, plain))


def seen_by(kind: type[TaskRouter]) -> tuple[str, ...]:
    """Return the further arguments of a router's ``forward``, of `SEEN`."""
    asked = list(inspect.signature(kind.forward).parameters.values())[2:]
    for item in asked:
        if item.name not in SEEN and item.default is item.empty:
            raise ValueError(
                f"forward of {kind.__name__} has the argument '{item.name}'; allowed after "
                f"task_ids are {', '.join(SEEN)}"
            )
    return tuple(item.name for item in asked if item.name in SEEN)


def uniform(bound: float, *shape: int) -> nn.Parameter:
    """Return a parameter whose entries start in U(-bound, bound)."""
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))


def initial_rows(
    rows: Float[Tensor, "G T ..."], n_tasks: int, init: str, scale: float
) -> Float[Tensor, "G N ..."]:
    """Return rows for new tasks: the mean row, or fresh rows of U(-scale, scale); detached."""
    require_one_of(STARTS, init=init)
    shape = (rows.shape[0], n_tasks, *rows.shape[2:])
    if init == "mean":
        return rows.detach().mean(dim=1, keepdim=True).expand(shape).clone()
    return torch.empty(shape, dtype=rows.dtype, device=rows.device).uniform_(-scale, scale)
