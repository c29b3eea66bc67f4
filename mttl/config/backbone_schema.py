"""Sections `backbone` and `heads`: the language model, and the heads of tasks on it."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from mttl.config.section import Section
from mttl.plugins.part_settings import Fraction

Quantisation = Literal["nf4", "int8", "int4"]


class _AnyBackbone(Section):
    asks: ClassVar = {"compiles": "compile", "trains_backbone": "train"}
    lacks: ClassVar = {
        "packs": ("compile", "row positions differ by batch; set backbone.compile: false"),
        "shares_experts": ("compile", "processes exchange tokens; set backbone.compile: false"),
    }
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass to save memory."""
    compile: bool = False
    """Compile the backbone with `torch.compile`."""


class Pretrained(_AnyBackbone):
    """A pretrained language model from the Hugging Face hub or a folder."""

    kind: Literal["pretrained"]
    lacks: ClassVar = {
        "shards": ("quantize and quantize != nf4", "set backbone.quantize: nf4 instead")
    }
    refuses: ClassVar = {
        "quantize and train": "quantize ('{quantize}') needs a frozen backbone; set "
        "backbone.train: false",
        "quantize and gguf_file": "quantize ('{quantize}') cannot be combined with gguf_file, "
        "whose weights are read in floating point; remove one of them",
    }
    name: str
    """Name on the hub, or path of a folder."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    gguf_file: str | None = None
    """GGUF file inside `name` from which weights and tokenizer are read."""
    tokenizer: str | None = None
    """Name or folder of another tokenizer, or `byte`."""
    train: bool | Annotated[list[str], Field(min_length=1)] = False
    """Train the backbone (false: frozen); or a list of patterns of parameter names to train, such
    as `layer_norm.weight` or `decoder.block.1.*`, each matched at the end of a name."""
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = "float32"
    """Data type of the backbone's weights."""
    quantize: Quantisation | None = None
    """Quantise the frozen linear layers: `nf4` by bitsandbytes, `int8` or `int4` (CPU only) by
    torchao. Embeddings and output head are not quantised."""

    @property
    def title(self) -> str:
        """Display name."""
        return self.name


class RandomBackbone(_AnyBackbone):
    """A new language model with random weights."""

    kind: Literal["random"]
    model_type: str
    """Model type of transformers, such as t5 or llama."""
    config: dict[str, Any] = {}
    """Arguments of the model's configuration class."""
    initial_scale: dict[str, PositiveFloat] = {}
    """Factors on the initial weights, by pattern of parameter names."""
    tokenizer: str = "byte"
    """Tokenizer: a name, a folder, or `byte` (one id per UTF-8 byte)."""
    train: bool | Annotated[list[str], Field(min_length=1)] = True
    """Train the backbone; or a list of patterns of parameter names to train, each matched at the
    end of a name."""
    quantize: ClassVar[None] = None

    @property
    def title(self) -> str:
        """Display name."""
        return f"random {self.model_type}"


Backbone = Annotated[Pretrained | RandomBackbone, Field(discriminator="kind")]


class Heads(Section):
    """Heads of tasks of the kinds `tokens`, `label` and `tree`."""

    dropout: Fraction = 0.1
    """Dropout of hidden states."""
    pool: Literal["auto", "first", "mean", "last"] = "auto"
    """State of a text that a label is predicted from: of its `first` or `last` token, or the
    `mean`; `auto`: first for encoders, last for decoder-only models, mean for encoder–decoders."""
    dense: bool = False
    """Put a dense layer with tanh before the labels, as BERT."""
    arc_features: PositiveInt = 500
    """Features of a word as head or dependent in a tree."""
    relation_features: PositiveInt = 100
    """Features of a word for the relation to its head."""
