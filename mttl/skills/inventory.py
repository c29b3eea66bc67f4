"""The interface of all inventories: K skills of one layer, stacked."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mttl.aggregation.mix import mix_blocks
from mttl.aggregation.products import active_dtype
from mttl.io.errors import require_at_least, require_one_of
from mttl.routing.token.choice import Assignment
from mttl.routing.token.dispatch import combine, sort_by_expert

Merged = tuple[Tensor, ...]
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


class Inventory(nn.Module, ABC):
    """K skills of one layer, stacked in one tensor per parameter.

    A kind of skill is written once, for up to three uses:

    | use | methods |
    |---|---|
    | ``"task"``: an example mixes skills | `merge`, once per batch or generated text; `combine` |
    | ``"token"``: a token chooses skills, its experts | `dispatch` |
    | ``"composed"``: a task adds skills to any parameter | `of_tensor`, `compose` |

    Args:
        in_features: Features I of the layer's input.
        out_features: Features O of the layer's output.
        n_skills: Skills K; experts E where tokens choose.
        n_heads: Heads H: blocks of features that are mixed apart.

    Attributes:
        uses: The uses that the kind has.
        attachment_point: The kind of place that it sits on, one of `mttl.skills.attachment_points`.
        gate_features: Features that a gate around the skills reads at a token: by default I.
        reads: What `dispatch` is given: the ``"input"`` of the layer, or its ``"output"``.
        reads_weight: Whether `combine_linear` needs the base layer's weight itself.
        changes_input: Whether `combine_linear` gives the base layer another input.
        identical_init: Whether all skills begin as the first one: see `make_identical`.
        neutral: Whether new skills of a shipped kind change nothing.
        second_factors: Names of its parameters that LoRA+ has a rate of their own for.
        smallest_ndim: Parameters of fewer axes cannot have skills of this kind.
        undecayed: Names of its biases and scales, which weight decay is not for.

    Raises:
        ValueError: If a size is not positive.
    """

    lacks: ClassVar[Mapping[str, Any]] = {"has_factors": "it has none; set its kind to lora"}
    role = "skills"
    uses: tuple[str, ...] = ("task",)
    attachment_point: ClassVar[str] = "linear"
    reads = "input"
    reads_weight = False
    changes_input = False
    identical_init = False
    neutral = True
    smallest_ndim = 0
    undecayed: tuple[str, ...] = ()
    second_factors: tuple[str, ...] = ()

    def __init__(
        self, in_features: int, out_features: int, n_skills: int, n_heads: int = 1
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.n_skills = n_skills
        self.n_heads = n_heads
        self.gate_features = in_features
        require_at_least(1, in_features=in_features, out_features=out_features)
        require_at_least(1, n_skills=n_skills, n_heads=n_heads)

    @classmethod
    def of_tensor(cls, shape: Sequence[int], n_skills: int, **settings: Any) -> "Inventory":
        """Return skills of a tensor of any shape, seen as a matrix (O, I).

        I collects all axes but the first: those of a convolution's filter, for example. Vectors
        (biases, scales of normalisations) have I = 1, and their skills begin at 0.

        Args:
            shape: Shape of the tensor.
            n_skills: Skills K.
            **settings: What the kind takes.

        Raises:
            ValueError: If the tensor has too few axes.
        """
        if len(shape) < cls.smallest_ndim:
            raise ValueError(
                f"a tensor of shape {tuple(shape)} has too few axes: {cls.__name__} needs at least "
                f"{cls.smallest_ndim}. Leave it without skills"
            )
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
        """Learn the path of the layer that the skills sit on; by default nothing."""

    def init_from_base(self, base: nn.Module) -> None:
        """Start from the layer that the skills sit on, where they do; by default nothing.

        Only fresh skills are asked, not those whose values are going to be loaded.

        Raises:
            ValueError: If the layer does not allow it.
        """

    def tie_to(self, first: "Inventory") -> None:
        """Take over what all layers of a model have in common; by default nothing.

        Args:
            first: The skills of the kind's first layer.
        """

    def require_use(self, use: str) -> None:
        """Refuse a use that the kind does not have.

        Args:
            use: ``"task"``, ``"token"`` or ``"composed"``.

        Raises:
            ValueError: If the kind does not have it.
        """
        if use not in self.uses:
            raise ValueError(
                f"{type(self).__name__} cannot be {USES[use]}, only "
                f"{' or '.join(USES[own] for own in self.uses)}; choose another kind of skill"
            )

    def merge(self, weights: Float[Tensor, "B H K"]) -> Merged:
        """Prepare the skills of each example from its mixing weights."""
        self.require_use("task")
        raise NotImplementedError

    def combine(
        self, x: Float[Tensor, "B L I"], y: Float[Tensor, "B L O"], merged: Merged
    ) -> Float[Tensor, "B L O"]:
        """Apply merged skills to the input ``x`` and the output ``y`` of the base layer."""
        self.require_use("task")
        raise NotImplementedError

    def combine_linear(
        self, x: Float[Tensor, "B L I"], base: nn.Linear, merged: Merged
    ) -> Float[Tensor, "B L O"]:
        """Compute the base layer and apply merged skills; a kind may fuse the two."""
        return self.combine(x, base(x), merged)

    def combine_segments(
        self, x: Float[Tensor, "N I"], base: nn.Module, merged: Merged, segments: Sequence[int]
    ) -> Float[Tensor, "N O"]:
        """Compute the base layer and apply merged skills where examples differ in their tokens.

        Args:
            x: The tokens of all examples, one example after another.
            base: The layer of the backbone.
            merged: As from `merge`: each part has a slice of every example.
            segments: Tokens of each example; their sum is N.
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
        parts = zip(
            x.split(segments),
            y.split(segments),
            zip(*(part.split(1) for part in merged), strict=True),
            strict=True,
        )
        return torch.cat([self.combine(own[None], y[None], one)[0] for own, y, one in parts])

    def forward(
        self,
        x: Float[Tensor, "B L I"],
        y: Float[Tensor, "B L O"],
        weights: Float[Tensor, "B H K"],
    ) -> Float[Tensor, "B L O"]:
        """Return the output of the layer with its skills.

        Args:
            x: Input of the base layer.
            y: Output of the base layer.
            weights: Mixing weights of each example.
        """
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

        Returns:
            What is added to the layer's output.

        Raises:
            ValueError: If tokens cannot choose skills of this kind.
        """
        self.require_use("token")
        work = sort_by_expert(assignment)
        alone = torch.eye(self.n_skills, dtype=next(self.parameters()).dtype, device=x.device)
        merged = zip(*(part.split(1) for part in self.merge(alone[:, None])), strict=True)
        rows = x[work.tokens].to(active_dtype(x)).split(work.counts.tolist())
        changes = [
            self.combine(own[None], own.new_zeros(1, len(own), self.out_features), skill)[0]
            for own, skill in zip(rows, merged, strict=True)
        ]
        return combine(torch.cat(changes), work, len(x))

    def changes(self) -> Float[Tensor, "K O *rest"]:
        """Return what each skill alone adds to the base weight.

        Raises:
            NotImplementedError: If the kind is not a change added to a weight.
        """
        raise NotImplementedError(f"{type(self).__name__} does not add to the base weight")

    def delta(self, weights: Float[Tensor, "T H K"]) -> Float[Tensor, "T O *rest"]:
        """Return the change of the base weight that the mixture of each task amounts to.

        Args:
            weights: Mixing weights of T tasks.

        Raises:
            NotImplementedError: If the kind is not a change added to a weight.
        """
        return mix_blocks(self.changes(), weights)

    def compose(
        self, base: Float[Tensor, "*shape"], weights: Float[Tensor, "T 1 K"]
    ) -> Float[Tensor, "T *shape"]:
        """Return a parameter of each task: the common one and the task's change of it.

        Args:
            base: What the skills change.
            weights: Mixing weights of T tasks.

        Raises:
            NotImplementedError: If the kind is not a change added to a weight.
        """
        # Base and change in one operation: there is no second tensor of this size.
        changes = self.changes().reshape(self.n_skills, -1)
        mixed = torch.addmm(base.flatten(), weights[:, 0], changes)
        return mixed.view(-1, *base.shape)

    def fold(
        self,
        weight: Float[Tensor, "O I"],
        bias: Float[Tensor, "O"] | None,
        weights: Float[Tensor, "H K"],
    ) -> tuple[Float[Tensor, "O I"], Float[Tensor, "O"] | None]:
        """Return weight and bias of a plain linear layer that does what layer and mixture do.

        Args:
            weight: The base layer's weight.
            bias: Its bias, or none.
            weights: Mixing weights of one task.

        Raises:
            NotImplementedError: If no plain layer does.
        """
        return weight + self.delta(weights[None])[0], bias

    def hidden_units(
        self, x: Float[Tensor, "B L I"], y: Float[Tensor, "B L O"]
    ) -> Float[Tensor, "B L K r"]:
        """Return what each skill alone has in front of its last product.

        Args:
            x: Input of the base layer.
            y: Its output.

        Raises:
            NotImplementedError: If the kind's changes do not end in a product.
        """
        raise NotImplementedError(f"{type(self).__name__} do not end in a product")

    def last_product(self) -> Float[Tensor, "K O r"]:
        """Return what makes each skill's change of its `hidden_units`.

        Raises:
            NotImplementedError: As there.
        """
        raise NotImplementedError(f"{type(self).__name__} do not end in a product")

    def factors(self) -> tuple[Float[Tensor, "K I r"], Float[Tensor, "K O r"]]:
        """Return thin matrices A and B of each skill, whose change of the weight is ``B @ Aᵀ``.

        Raises:
            NotImplementedError: If the kind's changes are not such products.
        """
        raise NotImplementedError(f"{type(self).__name__} are not products of two thin matrices")

    def penalties(self) -> dict[str, Tensor]:
        """Return the auxiliary losses of the skills, whatever the input; none by default."""
        return {}

    def facts(self) -> dict[str, Tensor]:
        """Return numbers that tell how training goes, for the log; none by default."""
        return {}

    def extra_repr(self) -> str:
        """Name the sizes in the module's printed form."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"n_skills={self.n_skills}, n_heads={self.n_heads}"
        )


def require_divisible(n_heads: int, **features: int) -> None:
    """Refuse a number of heads that does not divide a number of features.

    Raises:
        ValueError: If one of them is not a multiple of ``n_heads``.
    """
    for name, size in features.items():
        if size % n_heads:
            raise ValueError(f"n_heads ({n_heads}) must divide {name} ({size})")


def draw(tensor: Tensor, init: str, fan_in: int) -> None:
    """Draw a stack of skills in place.

    Args:
        tensor: The stack.
        init: ``"zero"``, or ``"kaiming"``: the uniform distribution in which `nn.Linear` and
            `nn.Conv2d` draw their weights, for networks whose base and skills are trained from
            scratch together.
        fan_in: How many inputs an output sums over.

    Raises:
        ValueError: If ``init`` is unknown.
    """
    require_one_of(("zero", "kaiming"), init=init)
    bound = 1 / math.sqrt(fan_in)
    if init == "zero":
        nn.init.zeros_(tensor)
    else:
        nn.init.uniform_(tensor, -bound, bound)
