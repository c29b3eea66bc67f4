"""The section `backbone`: the language model."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveFloat

from mttl.config.section import Section

Quantisation = Literal["nf4", "int8", "int4"]


class _AnyBackbone(Section):
    asks: ClassVar = {"compiles": "compile"}
    lacks: ClassVar = {
        "packs": ("compile", "rows begin at other places in every batch"),
        "shares_experts": ("compile", "tokens travel between processes inside the model"),
    }
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass, to save memory."""
    compile: bool = False
    """Compile the backbone with `torch.compile`."""


class Pretrained(_AnyBackbone):
    """A language model from the hub or a folder."""

    kind: Literal["pretrained"]
    lacks: ClassVar = {
        "shards": ("quantize and quantize != nf4", "torchao cannot split its weights; use nf4")
    }
    refuses: ClassVar = {
        "quantize and train": "quantize ('{quantize}') is for a frozen backbone: set train: false",
        "quantize and gguf_file": "quantize ('{quantize}') cannot be with gguf_file, which is read "
        "in floating point",
    }
    name: str
    """Name on the hub, or a folder."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    gguf_file: str | None = None
    """GGUF file inside `name` to read weights and tokenizer from."""
    tokenizer: str | None = None
    """Another tokenizer than the model's own: a name, a folder, or `byte`."""
    train: bool | Annotated[list[str], Field(min_length=1)] = False
    """Train the backbone too, instead of freezing it; or those of its parameters whose names end
    as a pattern says, such as `layer_norm.weight` or `decoder.block.1.*`."""
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = "float32"
    """Of the backbone's weights."""
    quantize: Quantisation | None = None
    """Keep the weights of its linear layers in fewer bits, frozen: `nf4` by bitsandbytes, `int8`
    and `int4` (on processors) by torchao. Embeddings and the head stay as they are."""

    @property
    def title(self) -> str:
        """What to call it."""
        return self.name


class RandomBackbone(_AnyBackbone):
    """A new language model with random weights."""

    kind: Literal["random"]
    model_type: str
    """A model type of transformers, such as t5 or llama."""
    config: dict[str, Any] = {}
    """Arguments of its configuration class."""
    initial_scale: dict[str, PositiveFloat] = {}
    """Factors on the initial weights, by pattern of parameter names."""
    tokenizer: str = "byte"
    """A name, a folder, or `byte`: one id per UTF-8 byte."""
    train: bool | Annotated[list[str], Field(min_length=1)] = True
    """Train it jointly with the skills; or those of its parameters whose names end as a pattern
    says."""
    quantize: ClassVar[None] = None

    @property
    def title(self) -> str:
        """What to call it."""
        return f"random {self.model_type}"


Backbone = Annotated[Pretrained | RandomBackbone, Field(discriminator="kind")]
