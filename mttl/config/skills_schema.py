"""The sections `skills` and `aggregation`: what a skill does, and how skills combine."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from mttl.config.own_parts import OwnKinds
from mttl.config.section import Fraction, NonNegative, Section
from mttl.own_classes import SKILLS


class _AnySkills(Section):
    # The setting by which kinds are brought to the same number of parameters.
    sized_by: ClassVar[str] = "n_skills"
    n_skills: PositiveInt | Literal["per_task"] = 8
    """How many skills; `per_task` is for the private router."""
    n_heads: PositiveInt = 1
    """Blocks of features that are routed apart; above 1 is multi-head routing."""
    targets: Annotated[list[str], Field(min_length=1)] = ["attention"]
    """Layers or blocks that get skills: attention, mlp, all, or patterns of their names."""


class LoRA(_AnySkills):
    """Low-rank skills."""

    sized_by: ClassVar = "rank"
    kind: Literal["lora"]
    rank: PositiveInt = 16
    """Rank of each skill."""
    scale: PositiveFloat | None = None
    """Factor on the change; 1 / rank by default."""
    mix: Literal["factors", "deltas", "outputs"] = "factors"
    """Average the factors, their products, or the outputs."""


class IA3(_AnySkills):
    """Skills that rescale a layer's output."""

    kind: Literal["ia3"]


class Dense(_AnySkills):
    """Full weight changes."""

    kind: Literal["dense"]
    mix: Literal["deltas", "outputs"] = "deltas"
    """Average the changes, or the outputs."""


class Sparse(_AnySkills):
    """Changes of few entries, fixed before training."""

    sized_by: ClassVar = "sparsity"
    kind: Literal["sparse"]
    sparsity: Fraction = 0.9
    """Fraction of entries that a skill leaves alone."""
    structure: Literal["entries", "rows", "blocks"] = "entries"
    """What is drawn as a whole: entries, all weights into an output, or square blocks."""
    block: PositiveInt = 16
    """Side of a block."""
    support: str = "random"
    """Draw each skill's entries, or give all skills those of a file of sparse_finetune.py."""
    mix: Literal["auto", "deltas", "outputs"] = "auto"
    """Dense changes per example, sparse products, or what is faster."""

    @model_validator(mode="after")
    def _checked(self) -> Self:
        drawn = ("sparsity", "structure", "block")
        fields = type(self).model_fields
        given = [name for name in drawn if getattr(self, name) != fields[name].default]
        if self.support != "random" and given:
            raise ValueError(
                f"{', '.join(given)} must stay out where support names a file: it says which "
                "entries change"
            )
        return self


class Supermask(_AnySkills):
    """Masks that keep some weights of the layer and switch off the others."""

    kind: Literal["supermask"]
    threshold: float = 5e-3
    """A weight is kept where its score reaches this; scores start at 0.01."""


class BitFit(_AnySkills):
    """Changes of the layer's bias."""

    kind: Literal["bitfit"]


class KronA(_AnySkills):
    """Weight changes that are one Kronecker product of two small matrices."""

    kind: Literal["krona"]
    shape: tuple[PositiveInt, PositiveInt] | None = None
    """Sizes of the left matrix: divisors of output and input features; by default near the roots"""
    scale: PositiveFloat = 1.0
    """Factor on the change."""
    mix: Literal["factors", "deltas"] = "factors"
    """Average the two matrices, or their products."""


class Adapter(_AnySkills):
    """Bottleneck adapters behind or beside attention and feed-forward blocks."""

    sized_by: ClassVar = "hidden_features"
    kind: Literal["adapter"]
    hidden_features: PositiveInt = 64
    """Width of the bottleneck."""
    activation: Literal["relu", "gelu", "gelu_new", "silu"] = "relu"
    """Between the two projections."""
    parallel: bool = False
    """Read the block's input, beside it; otherwise its output, behind it."""
    scale: PositiveFloat = 1.0
    """Factor on the change."""
    layer_norm: bool = False
    """Normalise what the adapter reads."""
    mix: Literal["factors", "outputs"] = "factors"
    """Average the parameters, or the outputs."""


class HeadMask(_AnySkills):
    """Gates of heads of attention."""

    kind: Literal["head_mask"]
    hard: bool = True
    """Keep a head or switch it off; else weaken or strengthen it."""
    start: PositiveFloat = 1.0
    """Logit of a fresh gate: how far it is from shut."""


class Prefix(_AnySkills):
    """Keys and values in front of the text."""

    sized_by: ClassVar = "length"
    kind: Literal["prefix"]
    length: PositiveInt = 10
    """Keys of a prefix."""
    gated: bool = True
    """A softmax of its own, and gates that start at 0; else one softmax with the text."""
    bottleneck: PositiveInt | None = None
    """Hidden features of a network that computes the prefix; by default it is kept plain."""


class Prompt(_AnySkills):
    """Vectors in front of the embedded text."""

    sized_by: ClassVar = "length"
    kind: Literal["prompt"]
    targets: Annotated[list[str], Field(min_length=1)] = ["input"]
    """Embeddings that get skills: input, those of the stack that reads the text."""
    length: PositiveInt = 20
    """Vectors of a prompt."""
    spread: PositiveFloat = 0.5
    """Largest entry of a fresh prompt; near those of the embeddings is good."""


class NoSkills(Section):
    """No skills that tasks choose: tokens choose experts, see the section `moe`."""

    kind: Literal["none"]


Skills = Annotated[
    LoRA
    | IA3
    | Dense
    | Sparse
    | Supermask
    | BitFit
    | KronA
    | HeadMask
    | Prefix
    | Prompt
    | Adapter
    | NoSkills,
    Field(discriminator="kind"),
    OwnKinds(SKILLS, _AnySkills),
]


class Mixture(Section):
    """The router's weights mix the skills, as `skills.mix` says."""

    kind: Literal["mixture"] = "mixture"


class Fusion(Section):
    """Attention by token over the frozen skills of an earlier run: a second stage of training."""

    kind: Literal["fusion"]
    source: str
    """Folder of the run whose skills are fused."""
    query: Literal["output", "input"] = "output"
    """What a token asks with: what the base layer made of it, or its input."""
    key_size: PositiveInt | None = None
    """Size of queries and keys; the layer's output features by default."""
    value: bool = True
    """Transform the mixture by a matrix that starts as the identity."""
    value_penalty: NonNegative = 0.01
    """Weight in the loss of that matrix's squared distance from the identity."""


Aggregation = Annotated[Mixture | Fusion, Field(discriminator="kind")]
