"""The sections `skills` and `aggregation`: what a skill does, and how skills combine."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import Field, PositiveFloat, PositiveInt, field_serializer, model_validator

from mttl.config.plugin_section import PluginKinds
from mttl.config.section import Fraction, NonNegative, Section, Seed
from mttl.plugins.classes import SKILLS

_NO_WEIGHTS: Mapping[str, str] = dict.fromkeys(
    ("merges", "averages"),
    "it does more than change a weight; answer with the run itself (mttl predict, mttl serve)",
)


class _Sizes(Section):
    # The setting by which kinds are brought to the same number of parameters.
    sized_by: ClassVar[str] = "n_skills"
    asks: ClassVar = {"has_heads": "n_heads > 1"}
    n_skills: PositiveInt | Literal["per_task"] = 8
    """How many skills; `per_task` is for the private router, and `per_column` stands for the number
    that the expert router's matrix has. With the c_poly router those that all tasks share."""
    n_heads: PositiveInt = 1
    """Blocks of features that are routed apart; above 1 is multi-head routing."""


class _AnySkills(_Sizes):
    lacks: ClassVar = {
        **{name: ("gate", why) for name, why in _NO_WEIGHTS.items()},
        "exports_inventory": "Poly of PEFT holds low-rank skills alone; --task writes the kinds "
        "that have a format",
    }
    targets: Annotated[list[str], Field(min_length=1)] = ["attention"]
    """Layers or blocks that get skills: attention, mlp, all, or patterns of their names."""
    gate: bool = False
    """A learned gate weakens what skills change, token by token and layer by layer (UniPELT)."""
    identical_init: bool = False
    """Identical initialisation of all skills, so that the mean of trained skills works (AdaMix)."""


class LowRankChange(Section):
    """What all low-rank changes of a layer take, of skills and of experts."""

    rank: PositiveInt = 16
    """Rank of each."""
    scale: PositiveFloat | None = None
    """Factor on the change; alpha / rank by default."""
    alpha: PositiveFloat | None = None
    """That alpha, in the place of scale; 1 by default."""
    rslora: bool = False
    """Divide alpha by the root of the rank (rsLoRA)."""
    dropout: Fraction = 0.0
    """Probability that an entry of the change's input is dropped in training."""
    shared_down: bool = False
    """All of a layer share the factor that reads the input, and differ in the other (HydraLoRA)."""

    @model_validator(mode="after")
    def _scaled_once(self) -> Self:
        given = [f"alpha ({self.alpha})"] if self.alpha is not None else []
        given += ["rslora (true)"] if self.rslora else []
        if self.scale is not None and given:
            raise ValueError(
                f"scale ({self.scale}) and {' and '.join(given)} say the same; remove one: the "
                "factor is scale, or alpha / rank, or alpha / √rank with rslora"
            )
        return self


class LoRA(LowRankChange, _AnySkills):
    """Low-rank skills."""

    sized_by: ClassVar = "rank"
    lacks: ClassVar = {"exports_inventory": ""}
    kind: Literal["lora"]
    init: Literal["zero", "pissa", "orthogonal"] = "zero"
    """What fresh skills are: one factor 0; each at the leading singular directions of the layer's
    weight (PiSSA); or each at directions of its own. None changes anything before it is trained."""
    mix: Literal["factors", "deltas", "outputs"] = "factors"
    """Average the factors, their products, or the outputs."""

    @model_validator(mode="after")
    def _one_start(self) -> Self:
        if self.identical_init and self.init == "orthogonal":
            raise ValueError(
                "identical_init (true) and init ('orthogonal') say opposite things; choose one"
            )
        return self


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
    """Draw each skill's entries, or give all skills those of a file of `mttl sparse`."""
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


class Norm(_AnySkills):
    """Changes of the gains of norms, and of their biases."""

    kind: Literal["norm"]
    targets: Annotated[list[str], Field(min_length=1)] = ["norms"]
    """Norms that get skills: all `norms`, or patterns of their names."""


class KronA(_AnySkills):
    """Weight changes that are one Kronecker product of two small matrices."""

    kind: Literal["krona"]
    shape: Annotated[list[PositiveInt], Field(min_length=2, max_length=2)] | None = None
    """Sizes of the left matrix: divisors of output and input features; by default near the roots"""
    scale: PositiveFloat = 1.0
    """Factor on the change."""
    mix: Literal["factors", "deltas"] = "factors"
    """Average the two matrices, or their products."""


class KronABlock(_AnySkills):
    """One Kronecker product beside a block, and a learned share of the block's input."""

    kind: Literal["krona_block"]
    lacks: ClassVar = _NO_WEIGHTS
    targets: Annotated[list[str], Field(min_length=1)] = ["mlp"]
    """Blocks that get skills: attention, mlp, all, or patterns of their names."""
    shape: Annotated[list[PositiveInt], Field(min_length=2, max_length=2)] | None = None
    """Sizes of the left matrix: divisors of output and input features; by default near the roots"""
    scale: PositiveFloat = 1.0
    """Factor on the product."""
    residual: bool = True
    """Learn the share of the input (KronA-res); else there is the product alone."""


Activation = Literal["relu", "gelu", "gelu_new", "silu"]


class _Bottleneck(_AnySkills):
    sized_by: ClassVar = "hidden_features"
    lacks: ClassVar = {
        **_NO_WEIGHTS,
        "takes_signed_weights": (
            "stages",
            "skills of a stage take its share of a row, and rows of that router may be negative; "
            "use another router",
        ),
    }
    hidden_features: PositiveInt = 64
    """Width of the bottleneck."""
    activation: Activation = "relu"
    """Between the two projections."""
    parallel: bool = False
    """Read the input of the block, in parallel; otherwise its output, in sequence."""
    scale: PositiveFloat = 1.0
    """Factor on the change."""
    layer_norm: bool = False
    """Normalise what the adapter reads."""
    mix: Literal["factors", "outputs"] = "factors"
    """Average the parameters, or the outputs."""
    stages: Annotated[list[PositiveInt], Field(min_length=2)] | None = None
    """Skills of each stage, which sum to n_skills: the first change the block's output, the next
    read that and change it, as a task's adapter on top of a language's (MAD-X)."""


class Adapter(_Bottleneck):
    """Bottleneck adapters behind or beside attention and feed-forward blocks."""

    kind: Literal["adapter"]


class Compacter(_Bottleneck):
    """Adapters whose projections are sums of Kronecker products with shared factors."""

    sized_by: ClassVar = "rank"
    kind: Literal["compacter"]
    lacks: ClassVar = {
        "shards": ("shared", "what all layers share is in no block; set it to false")
    }
    hidden_features: PositiveInt = 32
    """Width of the bottleneck."""
    activation: Activation = "gelu_new"
    """Between the two projections."""
    n_products: PositiveInt = 4
    """Kronecker products in a projection's sum; must divide all sizes."""
    rank: PositiveInt | None = 1
    """Rank of the factors of a layer's own; none keeps them whole (PHM)."""
    shared: bool = True
    """All layers share the small factors."""


class SparseAdapter(_Bottleneck):
    """Wide adapters of which most entries are pruned before training."""

    kind: Literal["sparse_adapter"]
    hidden_features: PositiveInt = 256
    """Width of the bottleneck."""
    sparsity: Fraction = 0.75
    """Fraction of the entries of both projections that stay 0."""


class Ladder(_AnySkills):
    """Small networks beside the stack that read its states: no gradient through the backbone."""

    sized_by: ClassVar = "side_features"
    kind: Literal["ladder"]
    lacks: ClassVar = {
        **_NO_WEIGHTS,
        "compiles": "it takes the states between the blocks from hooks; set backbone.compile: "
        "false, or take skills that change layers (lora, adapter …)",
    }
    targets: Annotated[list[str], Field(min_length=1)] = ["stack"]
    """The stack whose output becomes logits: `stack`."""
    side_features: PositiveInt = 32
    """Width of a ladder."""
    activation: Activation = "relu"
    """In its rungs."""


class HeadMask(_AnySkills):
    """Gates of heads of attention."""

    kind: Literal["head_mask"]
    hard: bool = True
    """Keep a head or switch it off; else weaken or strengthen it."""
    start: PositiveFloat = 1.0
    """Logit of a fresh gate: how far it is from shut."""


_ONE_TEXT = (
    "it stands in front of one text, and packing puts several behind one another; leave "
    "data.packed_length out, or take skills that change layers (lora, ia3, adapter …)"
)


class PrefixTuning(_AnySkills):
    """Keys and values in front of the text."""

    sized_by: ClassVar = "length"
    kind: Literal["prefix"]
    lacks: ClassVar = {**_NO_WEIGHTS, "packs": _ONE_TEXT}
    length: PositiveInt = 10
    """Keys of a prefix."""
    gated: bool = True
    """A softmax of its own, and gates that start at 0; else one softmax with the text, which takes
    no `gate`."""
    bottleneck: PositiveInt | None = None
    """Hidden features of a network that computes the prefix; by default it is kept plain."""


class Prompt(_AnySkills):
    """Vectors in front of the embedded text."""

    sized_by: ClassVar = "length"
    kind: Literal["prompt"]
    lacks: ClassVar = {
        **_NO_WEIGHTS,
        "packs": _ONE_TEXT,
        "routes_tokens": "it adds positions that token routers do not expect; remove the section "
        "moe, or take skills that change layers (lora, ia3, adapter …)",
    }
    targets: Annotated[list[str], Field(min_length=1)] = ["input"]
    """Embeddings that get skills: input, those of the stack that reads the text."""
    length: PositiveInt = 20
    """Vectors of a prompt."""
    spread: PositiveFloat = 0.5
    """Largest entry of a fresh prompt; near those of the embeddings is good."""


class Intrinsic(_AnySkills):
    """Short vectors, which fixed random projections turn into weight changes."""

    sized_by: ClassVar = "dimension"
    kind: Literal["intrinsic"]
    lacks: ClassVar = {
        "shards": (
            "vector != layer",
            "one block is put together at a time; set it to layer",
        )
    }
    dimension: PositiveInt = 1000
    """Numbers of a vector."""
    vector: Literal["said", "model", "layer"] = "said"
    """One vector of the model with a scale per layer (SAID), one alone, or one of each layer."""
    projection: Literal["fastfood", "dense"] = "fastfood"
    """By fast Walsh–Hadamard transforms, or by a Gaussian matrix, for small layers."""
    seed: Seed = 0
    """Another seed draws other projections."""


class DiffPruning(_AnySkills):
    """Dense changes under learned masks, with a penalty on each entry that changes."""

    kind: Literal["diff_pruning"]
    penalty: NonNegative = 1e-6
    """Weight in the loss of an entry that changes."""
    temperature: PositiveFloat = 1.0
    """Of the draws in training: the lower, the more masks are 0 or 1."""
    stretch: Annotated[list[float], Field(min_length=2, max_length=2)] = [-1.5, 1.5]
    """Limits to which masks are stretched before they are cut to [0, 1]."""
    start: float = 5.0
    """Logit of a fresh mask."""
    rate: PositiveFloat = 1.0
    """How many times as fast as changes the logits of masks move, under Adam."""
    groups: Literal["none", "rows", "layer"] = "none"
    """What shares a further mask: rows of the weight, or the whole layer."""
    keep: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Fraction of the entries of each layer that a skill may change in evaluation."""


_Kinds: TypeAlias = (
    LoRA
    | IA3
    | Dense
    | Sparse
    | Supermask
    | BitFit
    | Norm
    | KronA
    | KronABlock
    | HeadMask
    | PrefixTuning
    | Prompt
    | Adapter
    | Compacter
    | SparseAdapter
    | Ladder
    | Intrinsic
    | DiffPruning
)
OneKind = Annotated[_Kinds, Field(discriminator="kind"), PluginKinds(SKILLS, _AnySkills)]


class Several(_Sizes):
    """Several kinds side by side, each with targets of its own."""

    kind: Literal["several"]
    kinds: Annotated[list[OneKind], Field(min_length=2)]
    """What would stand in the section for each kind alone; sizes are those of the section."""

    @model_validator(mode="before")
    @classmethod
    def _of_one_size(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not isinstance(given.get("kinds"), list):
            return given
        sizes = {name: given[name] for name in _Sizes.model_fields if name in given}
        kinds = [sizes | one if isinstance(one, dict) else one for one in given["kinds"]]
        return given | {"kinds": kinds}

    @model_validator(mode="after")
    def _checked(self) -> Self:
        for number, one in enumerate(self.kinds):
            for name in _Sizes.model_fields:
                own, common = getattr(one, name), getattr(self, name)
                if own != common:
                    raise ValueError(
                        f"kinds.{number}.{name} ({own}) must be the section's {name} ({common}): "
                        "one router mixes all kinds. Leave it out there"
                    )
            if getattr(one, "support", "random") != "random":
                raise ValueError(
                    f"kinds.{number}.support must be random: the entries of a file are for a run "
                    "of sparse skills alone (skills.kind: sparse)"
                )
        return self

    @field_serializer("kinds", mode="wrap")
    def _without_sizes(self, kinds: list[Any], dump: Any) -> list[dict[str, Any]]:
        return [
            {name: value for name, value in one.items() if name not in _Sizes.model_fields}
            for one in dump(kinds)
        ]


class NoSkills(Section):
    """No skills that tasks choose: tokens choose experts, see the section `moe`."""

    lacks: ClassVar = {
        "ablates": "there are no skills that tasks mix, only experts that tokens choose; give a "
        "run whose section skills has a kind"
    }
    kind: Literal["none"]


Skills = Annotated[
    _Kinds | Several | NoSkills, Field(discriminator="kind"), PluginKinds(SKILLS, _AnySkills)
]


def kinds_of(skills: Any) -> list[Any]:
    """Return the sections of the kinds in a section `skills`: several, one, or none."""
    if isinstance(skills, NoSkills):
        return []
    return skills.kinds if isinstance(skills, Several) else [skills]


class Mixture(Section):
    """The router's weights mix the skills, as `skills.mix` says."""

    kind: Literal["mixture"] = "mixture"


class Fusion(Section):
    """Attention by token over the frozen skills of an earlier run: a second stage of training."""

    kind: Literal["fusion"]
    lacks: ClassVar = {
        "starts": "it takes the skills of aggregation.source; leave run.start out",
        **dict.fromkeys(
            ("merges", "averages", "exports_lora", "exports_inventory", "ablates"),
            "every token mixes skills by attention, and no weights of a task stand for that; give "
            "the run whose skills it fuses",
        ),
    }
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
