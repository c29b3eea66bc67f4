"""The interface of all routers that choose skills by task."""

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

# What `forward` may ask for besides the task ids: a vector per example, the mean of the backbone's
# input embeddings over the tokens of its prompt, its task's description, or a few training rows.
SEEN = ("prompts", "descriptions", "examples")
STARTS = ("mean", "fresh")
SIZES = ("n_groups", "n_tasks", "n_heads", "n_skills")


@dataclass(frozen=True)
class TaskRows:
    """Which axis of a router's tensor has a row per task.

    If the last axis is that of the skills, ``unused`` stands for one that a task does not use.
    """

    axis: int
    unused: float | None = None


class TaskRouter(Bounded, nn.Module, ABC):
    """Maps tasks to mixing weights over skills, for all routed groups of a model at once.

    A router keeps each argument of its constructor as an attribute of the same name: `rebuilt` and
    `extra_repr` read them there. See `mttl.plugins.parts` for how a kind describes itself.

    Args:
        n_groups: Routed groups G: layers of a group share a row. None where only tokens are routed.
        n_tasks: Tasks T.
        n_heads: Heads H: blocks of features that are routed apart.
        n_skills: Skills K.

    Attributes:
        draws: Whether examples of one task may get different weights while training.
        consistency: Weight in the training loss of how far two passes differ; 0 for one pass.
        task_rows: The tensors with a row per task, by name; the others are common to all tasks.
        seen: What `forward` asks for besides the task ids, of `SEEN`; its signature says it.
    """

    lacks: ClassVar[Mapping[str, Any]] = {
        "gives_zeros": "its rows are learned and have none; set moe.task_prior: logits, or take "
        "the router expert or private"
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
        """Return the mixing weights of each example; random while training, if the kind is.

        A kind that sees more names it after the ids (`SEEN`), each a tensor (B, D); ``prompts`` is
        None where `matrix` asks.
        """

    def mix(
        self, task_ids: Int[Tensor, "B"], prompts: Float[Tensor, "B D"] | None = None
    ) -> Float[Tensor, "G B H K"]:
        """Return what `forward` does, given all that it asks for."""
        given: dict[str, Tensor | None] = {
            name: getattr(self, f"shown_{name}").index_select(0, task_ids)
            for name in self.seen
            if name != "prompts"
        }
        if "prompts" in self.seen:
            given["prompts"] = prompts
        return self(task_ids, **given)

    @classmethod
    def rows_of_tasks(cls) -> dict[str, TaskRows]:
        """Return `task_rows`, and those of what the router is shown of every task."""
        shown = {f"shown_{name}": TaskRows(0) for name in seen_by(cls) if name != "prompts"}
        return {**cls.task_rows, **shown}

    def show(self, name: str, vectors: Float[Tensor, "T D"]) -> None:
        """Keep what the router sees of every task (`SEEN`); it is saved with the router."""
        self.register_buffer(f"shown_{name}", vectors)

    def matrix(self) -> Float[Tensor, "G T H K"]:
        """Return the mixing weights of every task, without noise: by default, in evaluation."""
        training = self.training
        device = next((value.device for value in self.state_dict().values()), None)
        self.eval()
        try:
            return self.mix(torch.arange(self.n_tasks, device=device))
        finally:
            self.train(training)

    def probabilities(self) -> Float[Tensor, "G T H K"]:
        """Return how likely each task is to use each skill, before any normalisation."""
        return self.matrix()

    def prior_loss(self) -> Float[Tensor, ""]:
        """Return what the router's prior adds to the loss; zero unless a kind says otherwise."""
        return torch.zeros(())

    def choice_loss(
        self,
        task_ids: Int[Tensor, "B"],
        weights: Float[Tensor, "G B H K"],
        losses: Float[Tensor, "B"],
    ) -> Float[Tensor, "B"] | None:
        """Return what a kind whose draws have no gradient learns from; none for all others.

        The weights are what `forward` drew for a training batch; its losses have no gradient.
        """
        return None

    def for_new_tasks(self, n_tasks: int, *, init: str = "mean") -> "TaskRouter":
        """Return a new router of this kind for tasks it has never seen.

        Args:
            n_tasks: How many tasks the new router serves.
            init: ``"mean"`` starts every row at the mean of the known rows and copies all else that
                was learned; ``"fresh"`` starts as an untrained router does.

        Raises:
            ValueError: If ``init`` is neither, or a tensor with rows of tasks is not named.
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
                            f"'{name}' of {type(self).__name__} has rows of tasks: name it in "
                            "task_rows, or define for_new_tasks"
                        )
                    if init == "mean" or name not in learned:
                        new[name].copy_(value)
        return router

    def rebuilt(self, **changed: Any) -> "TaskRouter":
        """Return an untrained router with the same arguments but for some, on the same device."""
        router = type(self)(**self._arguments() | changed)
        like = next(iter(self.state_dict().values()), None)
        return router if like is None else router.to(like.device, like.dtype)

    def _arguments(self, kind: type["TaskRouter"] | None = None) -> dict[str, Any]:
        """Return the arguments of this kind, or of a base of it, as the router has them now."""
        named = (item.name for _, item in arguments(kind or type(self)))
        found = {name: getattr(self, name) for name in named}
        return {
            k: v.item() if isinstance(v, Tensor) and not v.ndim else v for k, v in found.items()
        }

    def of_tasks(self, task_ids: Int[Tensor, "N"]) -> "TaskRouter":
        """Return a copy that knows some of the tasks only, in a new order.

        Raises:
            ValueError: If this kind names no rows of tasks.
        """
        if not self.task_rows:
            raise ValueError(f"a {type(self).__name__} keeps no rows of tasks")
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
    """A task router whose weights may be negative."""

    asks: ClassVar = {"takes_signed_weights": "kind"}
    lacks: ClassVar = {
        "exports_inventory": "its weights may be negative, and those of Poly sum to 1; export "
        "tasks one by one (--task)"
    }


def printed(module: nn.Module, sizes: Sequence[str]) -> str:
    """Return sizes and settings that are kept under their names, for a module's printed form."""
    names = dict.fromkeys([*sizes, *(item.name for _, item in arguments(type(module)))])
    values = {name: getattr(module, name, None) for name in names}
    plain = bool | int | float | str
    return ", ".join(f"{k}={v}" for k, v in values.items() if isinstance(v, plain))


def seen_by(kind: type[TaskRouter]) -> tuple[str, ...]:
    """Return what ``forward`` of a kind of router asks for besides the task ids, of `SEEN`."""
    asked = list(inspect.signature(kind.forward).parameters.values())[2:]
    for item in asked:
        if item.name not in SEEN and item.default is item.empty:
            raise ValueError(
                f"forward of {kind.__name__} asks for '{item.name}'; besides task_ids there are "
                f"{', '.join(SEEN)}"
            )
    return tuple(item.name for item in asked if item.name in SEEN)


def initial_rows(
    rows: Float[Tensor, "G T ..."], n_tasks: int, init: str, scale: float
) -> Float[Tensor, "G N ..."]:
    """Return rows for new tasks: the mean row, or fresh ones of U(-scale, scale); detached."""
    require_one_of(STARTS, init=init)
    shape = (rows.shape[0], n_tasks, *rows.shape[2:])
    if init == "mean":
        return rows.detach().mean(dim=1, keepdim=True).expand(shape).clone()
    return torch.empty(shape, dtype=rows.dtype, device=rows.device).uniform_(-scale, scale)
