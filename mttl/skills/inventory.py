"""The interface of all inventories: K skills of one layer, stacked."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mttl.aggregation.mix import active_dtype, mix_blocks
from mttl.io.errors import require_at_least, require_one_of
from mttl.plugins.part_settings import Bounded
from mttl.routing.task.task_router import printed
from mttl.routing.token.choice import Assignment, combine, sort_by_expert

Inputs: TypeAlias = Float[Tensor, "B L I"]
Outputs: TypeAlias = Float[Tensor, "B L O"]
Weights: TypeAlias = Float[Tensor, "B H K"]
Merged: TypeAlias = tuple[Tensor, ...]
# What kinds lack that do more than change a weight.
NO_WEIGHTS: Mapping[str, str] = dict.fromkeys(
    ("merges", "averages"),
    "it does more than change a weight; answer with the run itself (mttl predict, mttl serve)",
)
# What kinds lack packing for that put something before the text.
ONE_TEXT = (
    "it stands in front of one text, and packing puts several behind one another; leave "
    "data.packed_length out, or take skills that change layers (lora, ia3, adapter …)"
)
USES = {
    "task": "mixed by task",
    "token": "chosen by token",
    "composed": "composed over all parameters of a module",
}
SIZES = ("in_features", "out_features", "n_skills", "n_heads")


class Inventory(Bounded, nn.Module, ABC):
    """K skills of one layer, stacked in one tensor per parameter.

    A kind of skill is written once, for up to three uses:

    | use | methods |
    |---|---|
    | ``"task"``: an example mixes skills | `merge`, once per batch or generated text; `combine` |
    | ``"token"``: a token chooses skills, its experts | `dispatch` |
    | ``"composed"``: a task adds skills to any parameter | `of_tensor`, `compose` |

    A kind that adds to a weight needs `changes` alone. One that has settings keeps each as an
    attribute of the same name, for its printed form; their bounds are those of the annotations.

    Args:
        in_features: Features I of the layer's input.
        out_features: Features O of the layer's output.
        n_skills: Skills K; experts E where tokens choose.
        n_heads: Heads H: blocks of features that are mixed apart.

    Raises:
        ValueError: If a size is not positive, heads do not divide, or a setting is out of bounds.
    """

    lacks: ClassVar[Mapping[str, Any]] = {"has_factors": "it has none; set its kind to lora"}
    role = "skills"
    uses: tuple[str, ...] = ("task",)
    attachment_point: ClassVar[str] = "linear"  # one of `mttl.skills.attachment_points`
    cut_by_heads: tuple[str, ...] = ("out_features",)  # sizes that H divides; without, H is 1
    reads = "input"  # what `dispatch` is given: the "input" of the layer, or its "output"
    reads_weight = False  # whether `combine_linear` needs the base layer's weight itself
    changes_input = False  # whether `combine_linear` gives the base layer another input
    identical_init = False  # whether all skills begin as the first one: see `make_identical`
    neutral = True  # whether new skills change nothing
    smallest_ndim = 0  # parameters of fewer axes cannot have skills of this kind
    no_weight = ""  # why no weight does what the kind does, if its name does not tell
    composed_defaults: ClassVar[Mapping[str, Any]] = {}  # settings where parameters are composed
    undecayed: tuple[str, ...] = ()  # biases and scales, which weight decay is not for
    second_factors: tuple[str, ...] = ()  # parameters that LoRA+ has a rate of their own for

    def __init__(
        self, in_features: int, out_features: int, n_skills: int, n_heads: int = 1
    ) -> None:
        super().__init__()
        self.in_features, self.out_features, self.n_skills = in_features, out_features, n_skills
        self.n_heads = n_heads
        self.gate_features = in_features  # what a gate around the skills reads at a token
        require_at_least(1, **{name: getattr(self, name) for name in SIZES})
        if n_heads > 1 and not self.cut_by_heads:
            raise ValueError(
                f"n_heads ({n_heads}) must be 1 for {type(self).__name__}, whose features have no "
                "blocks of their own; low-rank skills (lora) take heads"
            )
        for name in self.cut_by_heads:
            if getattr(self, name) % n_heads:
                raise ValueError(f"n_heads ({n_heads}) must divide {name} ({getattr(self, name)})")

    @classmethod
    def of_tensor(cls, shape: Sequence[int], n_skills: int, **settings: Any) -> "Inventory":
        """Return skills of a tensor of any shape, seen as a matrix (O, I).

        I collects all axes but the first: those of a convolution's filter, for example. Vectors
        (biases, scales of normalisations) have I = 1, and their skills begin at 0.
        The caller leaves out tensors of fewer axes than ``smallest_ndim``.
        """
        settings = {**cls.composed_defaults, **settings}
        if len(shape) < 2:
            settings["init"] = "zero"
        return cls(math.prod(shape[1:]), shape[0] if shape else 1, n_skills, **settings)

    @abstractmethod
    def reset_parameters(self) -> None:
        """Re-initialise the skills."""

    def reset_all_skills(self) -> None:
        """Re-initialise all skills, identically if they were identical at the start."""
        self.reset_parameters()
        if self.identical_init:
            self.make_identical()

    @torch.no_grad()
    def reset_skills(self, skills: Int[Tensor, "N"]) -> None:
        """Re-initialise some skills; the others stay."""
        before = [(value, value.clone()) for value in self.parameters()]
        self.reset_all_skills()
        for value, kept in before:
            if value.shape[:1] == (self.n_skills,):  # else it is common to all skills
                kept[skills] = value[skills]
            value.copy_(kept)

    @torch.no_grad()
    def make_identical(self) -> None:
        """Let all skills begin as the first one; places that a skill draws stay its own."""
        self.identical_init = True
        for value in self.parameters():
            if value.shape[:1] == (self.n_skills,):  # else it is common to all skills
                value.copy_(value[:1].clone().expand_as(value))

    def set_path(self, path: str) -> None:
        """Learn the path of the layer that the skills sit on."""

    def init_from_base(self, base: nn.Module) -> None:
        """Let fresh skills start from the layer they sit on; ValueError if it does not allow it."""

    def tie_to(self, first: Any) -> None:
        """Take over what all layers have in common from the kind's first."""

    def require_use(self, use: str) -> None:
        """Raise ValueError if the kind does not have a use."""
        if use not in self.uses:
            raise ValueError(
                f"{type(self).__name__} cannot be {USES[use]}, only "
                f"{' or '.join(USES[own] for own in self.uses)}; choose another kind of skill"
            )

    def merge(self, weights: Weights) -> Merged:
        """Prepare the skills of each example from its mixing weights: by default, its change."""
        return (mix_blocks(self.changes(), weights),)

    def combine(self, x: Inputs, y: Outputs, merged: Merged) -> Outputs:
        """Apply merged skills to the input ``x`` and the output ``y`` of the base layer.

        Raises:
            TypeError: If the kind does more than change the output: call `combine_linear`.
        """
        if self.reads_weight or self.changes_input:
            raise TypeError(f"{type(self).__name__} needs the layer itself: call combine_linear")
        dtype = active_dtype(x)
        return torch.baddbmm(y.to(dtype), x.to(dtype), merged[0].to(dtype).transpose(1, 2))

    def combine_linear(self, x: Inputs, base: nn.Linear, merged: Merged) -> Outputs:
        """Compute the base layer and apply merged skills; a kind may fuse the two."""
        return self.combine(x, base(x), merged)

    def combine_segments(
        self, x: Float[Tensor, "N I"], base: nn.Module, merged: Merged, segments: Sequence[int]
    ) -> Float[Tensor, "N O"]:
        """Compute the base layer and apply merged skills where examples differ in their tokens.

        Tokens of all examples follow one another; ``segments`` has their numbers, whose sum is N.
        """
        return self.combine_tokens(x, base(x), merged, segments)

    def combine_tokens(
        self,
        x: Float[Tensor, "N I"],
        y: Float[Tensor, "N O"],
        merged: Merged,
        segments: Sequence[int],
    ) -> Float[Tensor, "N O"]:
        """Apply merged skills as `combine_segments`, where the base is computed already.

        The default asks `combine` for one example after another.
        """
        parts = zip(x.split(segments), y.split(segments), of_each(merged), strict=True)
        return torch.cat([self.combine(own[None], y[None], one)[0] for own, y, one in parts])

    def forward(self, x: Inputs, y: Outputs, weights: Weights) -> Outputs:
        """Return the output of the layer with its skills, from its input and output without."""
        return self.combine(x, y, self.merge(weights))

    def dispatch(
        self, x: Float[Tensor, "N features"], assignment: Assignment
    ) -> Float[Tensor, "N O"]:
        """Return, for each token, the sum over its pairs of gate times the skill's change.

        The default asks `merge` and `combine` for the change of each skill alone, one skill after
        another: exact for all kinds that read the input and add, and slow.

        Args:
            x: What the kind ``reads``, one row per token.
            assignment: Which skills process which tokens; a token without any gets 0.

        Raises:
            ValueError: If tokens cannot choose skills of this kind.
        """
        self.require_use("token")
        work = sort_by_expert(assignment)
        alone = torch.eye(self.n_skills, dtype=next(self.parameters()).dtype, device=x.device)
        rows = x[work.tokens].to(active_dtype(x)).split(work.counts.tolist())
        changes = [
            self.combine(own[None], own.new_zeros(1, len(own), self.out_features), skill)[0]
            for own, skill in zip(rows, of_each(self.merge(alone[:, None])), strict=True)
        ]
        return combine(torch.cat(changes), work, len(x))

    def changes(self) -> Float[Tensor, "K O *rest"]:
        """Return what each skill alone adds to the base weight.

        Raises:
            NotImplementedError: If the kind is not a change added to a weight. So do the methods
                below: `delta`, `compose`, and `fold` if no plain layer does what skills do.
        """
        why = self.no_weight or f"{type(self).__name__} does not add to the base weight"
        raise NotImplementedError(why)

    def delta(self, weights: Float[Tensor, "T H K"]) -> Float[Tensor, "T O *rest"]:
        """Return the change of the base weight that the mixture of each task amounts to."""
        return mix_blocks(self.changes(), weights)

    def compose(
        self, base: Float[Tensor, "*shape"], weights: Float[Tensor, "T 1 K"]
    ) -> Float[Tensor, "T *shape"]:
        """Return a parameter of each task: the common one and the task's change of it."""
        # Base and change in one operation: there is no second tensor of this size.
        changes = self.changes().reshape(self.n_skills, -1)
        mixed = torch.addmm(base.flatten(), weights[:, 0], changes)
        return mixed.view(-1, *base.shape)

    def fold(
        self, weight: Tensor, bias: Tensor | None, weights: Float[Tensor, "H K"]
    ) -> tuple[Tensor, Tensor | None]:
        """Return weight and bias of a plain layer that does what layer and mixture do."""
        return weight + self.delta(weights[None])[0], bias

    def hidden_units(self, x: Inputs, y: Outputs) -> Float[Tensor, "B L K r"]:
        """Return what each skill alone has in front of its last product, if there is one.

        Else this and the two methods below raise NotImplementedError.
        """
        raise NotImplementedError(f"{type(self).__name__} do not end in a product")

    def last_product(self) -> Float[Tensor, "K O r"]:
        """Return what makes each skill's change of its `hidden_units`."""
        raise NotImplementedError(f"{type(self).__name__} do not end in a product")

    def factors(self) -> tuple[Float[Tensor, "K I r"], Float[Tensor, "K O r"]]:
        """Return thin matrices A and B of each skill, whose change of the weight is ``B @ Aᵀ``."""
        raise NotImplementedError(f"{type(self).__name__} are not products of two thin matrices")

    def penalties(self) -> dict[str, Tensor]:
        """Return the auxiliary losses of the skills, whatever the input; none by default."""
        return {}

    def facts(self) -> dict[str, Tensor]:
        """Return numbers that tell how training goes, for the log; none by default."""
        return {}

    def extra_repr(self) -> str:
        return printed(self, SIZES)


class ProductInventory(Inventory):
    """Skills whose changes are products of smaller matrices; composed, products are averaged."""

    smallest_ndim = 2
    composed_defaults: ClassVar = {"mix": "deltas"}

    def compose(
        self, base: Float[Tensor, "*shape"], weights: Float[Tensor, "T 1 K"]
    ) -> Float[Tensor, "T *shape"]:
        return base + self.delta(weights).view(-1, *base.shape)


def of_each(merged: Merged) -> list[Merged]:
    """Return the merged skills of each example apart."""
    return list(zip(*(part.split(1) for part in merged), strict=True))


def draw(tensor: Tensor, init: str, fan_in: int) -> None:
    """Set a stack of skills to ``"zero"``, or draw it as `nn.Linear` and `nn.Conv2d` are drawn.

    The latter, ``"kaiming"``, is for networks whose base and skills are trained together from
    scratch; an output sums over ``fan_in`` inputs.
    """
    require_one_of(("zero", "kaiming"), init=init)
    bound = 1 / math.sqrt(fan_in)
    if init == "zero":
        nn.init.zeros_(tensor)
    else:
        nn.init.uniform_(tensor, -bound, bound)
