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
# Features that are missing for kinds that do more than change a weight.
NO_WEIGHTS: Mapping[str, str] = dict.fromkeys(
    ("merges", "averages"),
    "these skills do more than change a weight; use the run itself (mttl predict, mttl serve)",
)
# Reason why kinds with positions before the text cannot be packed.
ONE_TEXT = (
    "these skills precede a single text, but packing joins several; remove data.packed_length, or "
    "use skills that change layers (lora, ia3, adapter …)"
)
USES = {
    "task": "mixed by task",
    "token": "chosen by token",
    "composed": "composed over all parameters of a module",
}
SIZES = ("in_features", "out_features", "n_skills", "n_heads")


class Inventory(Bounded, nn.Module, ABC):
    """K skills of one layer, stacked in one tensor per parameter.

    A kind of skill has up to three uses:

    | use | methods |
    |---|---|
    | ``"task"``: an example mixes skills | `merge`, once per batch or generated text; `combine` |
    | ``"token"``: a token chooses skills, its experts | `dispatch` |
    | ``"composed"``: a task adds skills to any parameter | `of_tensor`, `compose` |

    A kind that adds to a weight only needs `changes`. Settings are attributes of the same name,
    which ``repr`` shows; annotations declare their bounds.

    Args:
        in_features: Features I of the layer's input.
        out_features: Features O of the layer's output.
        n_skills: Number of skills K, or of experts E that tokens choose.
        n_heads: Heads H: blocks of features with separate routing weights.

    Raises:
        ValueError: If a size is not positive, heads do not divide, or a setting is out of bounds.
    """

    lacks: ClassVar[Mapping[str, Any]] = {
        "has_factors": "it has no factors; set {path}.kind: lora",
        "mixes_by_token": "it mixes by example; set {path}.kind: lora, and {path}.mix: outputs",
    }
    role = "skills"
    uses: tuple[str, ...] = ("task",)
    attachment_point: ClassVar[str] = "linear"  # one of `mttl.skills.attachment_points`
    cut_by_heads: tuple[str, ...] = ("out_features",)  # sizes that H divides
    # Argument of `dispatch`: the "input" of the layer, or its "output"; "block": the input, and the
    # skills replace the layer.
    reads = "input"
    reads_weight = False  # whether `combine_linear` needs the base layer's weight
    changes_input = False  # whether `combine_linear` changes the base layer's input
    identical_init = False  # whether all skills start as the first one: see `make_identical`
    neutral = True  # whether fresh skills change nothing
    smallest_ndim = 0  # smallest number of axes of a parameter that can have such skills
    no_weight = ""  # reason why the kind has no equivalent weight change
    composed_defaults: ClassVar[Mapping[str, Any]] = {}  # settings for the use "composed"
    undecayed: tuple[str, ...] = ()  # biases and scales, which have no weight decay
    common_parameters: tuple[str, ...] = ()  # of all skills together, which adaptation keeps
    adapter_format: ClassVar[str] = "LORA"  # key of `mttl.peft_format.skill_formats.WRITERS`
    second_factors: tuple[str, ...] = ()  # parameters with LoRA+'s higher learning rate

    def __init__(
        self, in_features: int, out_features: int, n_skills: int, n_heads: int = 1
    ) -> None:
        super().__init__()
        self.in_features, self.out_features, self.n_skills = in_features, out_features, n_skills
        self.n_heads = n_heads
        self.gate_features = in_features  # input features of a gate around the skills
        require_at_least(1, **{name: getattr(self, name) for name in SIZES})
        for name in self.cut_by_heads:
            if getattr(self, name) % n_heads:
                raise ValueError(f"n_heads ({n_heads}) must divide {name} ({getattr(self, name)})")

    @classmethod
    def of_tensor(cls, shape: Sequence[int], n_skills: int, **settings: Any) -> "Inventory":
        """Return skills of a tensor of any shape, viewed as a matrix (O, I).

        I is the product of all axes but the first. Vectors (biases, scales of norms) have I = 1,
        and their skills start at 0. Tensors need at least ``smallest_ndim`` axes.
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
        """Re-initialise some skills; the others do not change."""
        before = [(value, value.clone()) for value in self.parameters()]
        stacks = set(map(id, self.stacks()))
        self.reset_all_skills()
        for value, kept in before:
            if id(value) in stacks:
                kept[skills] = value[skills]
            value.copy_(kept)

    @torch.no_grad()
    def make_identical(self) -> None:
        """Set all skills to the first one; supports of sparse skills stay different."""
        self.identical_init = True
        for value in self.stacks():
            value.copy_(value[:1].clone().expand_as(value))

    def stacks(self) -> list[nn.Parameter]:
        """Return the parameters with a slice per skill; the others are common to all skills."""
        named, common = self.named_parameters(), self.common_parameters
        return [v for n, v in named if v.shape[:1] == (self.n_skills,) and n not in common]

    def set_path(self, path: str) -> None:
        """Set the path of the layer that has the skills."""

    def init_from_base(self, base: nn.Module) -> None:
        """Initialise the skills from their layer; ValueError if the layer does not allow it."""

    def tie_to(self, first: Any) -> None:
        """Share the parameters that are common to all layers with the kind's first inventory."""

    def set_support(self, entries: Int[Tensor, "n"], *, masked: bool = False) -> None:
        """Change only these entries of the flattened weight; if ``masked``, the others are 0."""
        raise ValueError(f"{type(self).__name__} has no support; set skills.kind: sparse")

    def require_use(self, use: str) -> None:
        """Raise ValueError unless the kind has a use."""
        if use not in self.uses:
            raise ValueError(
                f"{type(self).__name__} cannot be {USES[use]}, only "
                f"{' or '.join(USES[own] for own in self.uses)}; use another kind of skill"
            )

    def merge(self, weights: Weights) -> Merged:
        """Return the mixture of skills of each example; by default its change of the weight."""
        return (mix_blocks(self.changes(), weights),)

    def combine(self, x: Inputs, y: Outputs, merged: Merged) -> Outputs:
        """Apply merged skills to the input ``x`` and the output ``y`` of the base layer."""
        if self.reads_weight or self.changes_input:
            raise TypeError(f"{type(self).__name__} needs the base layer; call combine_linear")
        dtype = active_dtype(x)
        return torch.baddbmm(y.to(dtype), x.to(dtype), merged[0].to(dtype).transpose(1, 2))

    def combine_linear(self, x: Inputs, base: nn.Linear, merged: Merged) -> Outputs:
        """Compute the base layer and apply merged skills; a kind may fuse the two."""
        return self.combine(x, base(x), merged)

    def combine_segments(
        self, x: Float[Tensor, "N I"], base: nn.Module, merged: Merged, segments: Sequence[int]
    ) -> Float[Tensor, "N O"]:
        """Compute the base layer and apply merged skills to examples of different lengths.

        The tokens of all examples are concatenated; ``segments`` has their numbers, with sum N.
        """
        if self.reads_weight:
            parts = zip(x.split(segments), of_each(merged), strict=True)
            return torch.cat([self.combine_linear(own[None], base, one)[0] for own, one in parts])  # type: ignore[arg-type]
        return self.combine_tokens(x, base(x), merged, segments)

    def combine_tokens(
        self,
        x: Float[Tensor, "N I"],
        y: Float[Tensor, "N O"],
        merged: Merged,
        segments: Sequence[int],
    ) -> Float[Tensor, "N O"]:
        """Apply merged skills as `combine_segments` to a given output of the base layer.

        The default calls `combine` for each example.
        """
        parts = zip(x.split(segments), y.split(segments), of_each(merged), strict=True)
        return torch.cat([self.combine(own[None], y[None], one)[0] for own, y, one in parts])

    def forward(self, x: Inputs, y: Outputs, weights: Weights) -> Outputs:
        """Return the output with skills from input and output of the base layer."""
        return self.combine(x, y, self.merge(weights))

    def dispatch(
        self, x: Float[Tensor, "N features"], assignment: Assignment
    ) -> Float[Tensor, "N O"]:
        """Return for each token the sum of its skills' changes, weighted by their gates.

        The default calls `merge` and `combine` for one skill after another. It is exact for all
        kinds that read the input and add to the output, and slow. ``x`` is the input or output of
        the layer (see ``reads``). A token without skills gets 0. Tokens that cannot choose skills
        of this kind are a ValueError.
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
        """Return the change of the base weight by each skill.

        This, `delta` and `compose` raise NotImplementedError if the kind does not add to a weight,
        and `fold` if no plain layer is equivalent.
        """
        why = self.no_weight or f"{type(self).__name__} does not add to the base weight"
        raise NotImplementedError(why)

    def delta(self, weights: Float[Tensor, "T H K"]) -> Float[Tensor, "T O *rest"]:
        """Return the change of the base weight by each task's mixture."""
        return mix_blocks(self.changes(), weights)

    def compose(
        self, base: Float[Tensor, "*shape"], weights: Float[Tensor, "T 1 K"]
    ) -> Float[Tensor, "T *shape"]:
        """Return a parameter of each task: the base's plus the change by the task's mixture."""
        # One operation, so that there is no second tensor of this size.
        changes = self.changes().reshape(self.n_skills, -1)
        mixed = torch.addmm(base.flatten(), weights[:, 0], changes)
        return mixed.view(-1, *base.shape)

    def fold(
        self, weight: Tensor, bias: Tensor | None, weights: Float[Tensor, "H K"]
    ) -> tuple[Tensor, Tensor | None]:
        """Return weight and bias of a plain layer that is equivalent to layer and mixture."""
        return weight + self.delta(weights[None])[0], bias

    def hidden_units(self, x: Inputs, y: Outputs) -> Float[Tensor, "B L K r"]:
        """Return the input of each skill's last matrix product.

        This and the two methods below raise NotImplementedError if a kind has no such product.
        """
        raise NotImplementedError(f"{type(self).__name__} have no matrix product to fuse")

    def last_product(self) -> Float[Tensor, "K O r"]:
        """Return the matrix that maps each skill's `hidden_units` to its change."""
        raise NotImplementedError(f"{type(self).__name__} have no matrix product to fuse")

    def factors(self) -> tuple[Float[Tensor, "K I r"], Float[Tensor, "K O r"]]:
        """Return low-rank factors A and B of each skill, whose weight change is ``B @ Aᵀ``."""
        raise NotImplementedError(f"{type(self).__name__} has no low-rank factors")

    def penalties(self) -> dict[str, Tensor]:
        """Return auxiliary losses of the skills by name, which do not depend on inputs."""
        return {}

    def facts(self) -> dict[str, Tensor]:
        """Return statistics of the skills for the log, by name."""
        return {}

    def extra_repr(self) -> str:
        return printed(self, SIZES)


class ZeroInventory(Inventory):
    """Skills whose parameters start at 0."""

    def reset_parameters(self) -> None:
        for parameter in self.parameters():
            nn.init.zeros_(parameter)


class ProductInventory(Inventory):
    """Skills whose changes are products of smaller matrices; `compose` averages the products."""

    smallest_ndim = 2
    composed_defaults: ClassVar = {"mix": "deltas"}

    def compose(
        self, base: Float[Tensor, "*shape"], weights: Float[Tensor, "T 1 K"]
    ) -> Float[Tensor, "T *shape"]:
        return base + self.delta(weights).view(-1, *base.shape)


def of_each(merged: Merged) -> list[Merged]:
    """Return the merged skills of each example separately."""
    return list(zip(*(part.split(1) for part in merged), strict=True))


def draw(tensor: Tensor, init: str, fan_in: int) -> None:
    """Initialise a tensor with zeros (``"zero"``), or as `nn.Linear` does (``"kaiming"``).

    ``"kaiming"`` is for networks whose base and skills are trained jointly from scratch; an output
    sums over ``fan_in`` inputs.
    """
    require_one_of(("zero", "kaiming"), init=init)
    bound = 1 / math.sqrt(fan_in)
    if init == "zero":
        nn.init.zeros_(tensor)
    else:
        nn.init.uniform_(tensor, -bound, bound)
