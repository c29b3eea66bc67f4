"""Attachment points: the parts of a backbone that take skills, and the layers that replace them."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from torch import nn

from mttl.skills.blocks.feed_forward import block_places, separate
from mttl.skills.blocks.invertible import InvertibleEmbedding, put_inverse
from mttl.skills.blocks.ladder import SkilledStack, stack_places
from mttl.skills.inputs.prefix import SkilledAttention
from mttl.skills.inputs.prompt import SkilledEmbedding, input_embeddings, put_prompts
from mttl.skills.skilled_layer import (
    SkilledBlock,
    SkilledLayer,
    SkilledLinear,
    SkilledNorm,
    norm_places,
)
from mttl.skills.targets import linear_features, linear_places, members

# Attribute names in T5, BART, Llama, GPT-2, GPT-NeoX and similar models.
HEAD_SIZES = ("v_head_dim", "head_dim", "key_value_proj_dim", "head_size", "attention_head_size")
OUTPUTS = ("o", "o_proj", "out_proj", "c_proj", "dense", "out_lin", "Wo")


def _attention_modules(
    backbone: nn.Module,
) -> Iterator[tuple[str, nn.Module, int, str, tuple[int, int]]]:
    """Yield path, module, features of a head, and path and features of the output projection."""
    modules = dict(backbone.named_modules())
    for path, module in modules.items():
        size = next((v for n in HEAD_SIZES if isinstance(v := getattr(module, n, None), int)), None)
        outputs = [f"{path}.{name}".lstrip(".") for name in OUTPUTS]
        outputs.append(f"{path.rpartition('.')[0]}.output.dense")  # models like BERT
        output = next((output for output in outputs if output in modules), None)
        # State-space modules have a convolution.
        if size is not None and output is not None and not hasattr(module, "conv1d"):
            features = linear_features(modules[output])
            if features is not None and features[0] % size == 0:
                yield path, module, size, output, features


def attention_places(backbone: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return features of keys, of values, heads, and features of hidden states, by path.

    The features of hidden states are the output features of the output projection.
    """
    found = {}
    for path, module, size, _, (n_joined, n_hidden) in _attention_modules(backbone):
        heads = n_joined // size
        n_values = heads // getattr(module, "num_key_value_groups", 1)
        key_features = n_values * getattr(module, "qk_head_dim", size)
        found[path] = (key_features, n_values * size, heads, n_hidden)
    return found


def head_projections(backbone: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return input and output features, and heads, of attention's output projections, by path."""
    return {
        output: (*features, features[0] // size)
        for _, _, size, output, features in _attention_modules(backbone)
    }


@dataclass(frozen=True)
class AttachmentPoint:
    """A type of module that skills attach to; a kind names it in ``attachment_point``."""

    noun: str  # in messages
    layer: type[SkilledLayer]  # replaces the module
    # Returns the modules of a backbone by path: input and output features, and further sizes.
    find: Callable[[nn.Module], dict[str, tuple[int, ...]]]
    word: str | None = None  # the only word for targets, instead of those of `members`
    # Returns the module at a path; it may create one from parts of a layer.
    take: Callable[[nn.Module, str], nn.Module] = nn.Module.get_submodule
    prepare: Callable[[nn.Module], None] | None = None  # changes the backbone afterwards

    def words(self, backbone: nn.Module, paths: Collection[str]) -> Mapping[str, Collection[str]]:
        """Return the words for targets, and the paths that each word selects."""
        return members(backbone, paths) if self.word is None else {self.word: paths}


# From the inside out, since a block with skilled layers may have skills itself.
ATTACHMENT_POINTS = {
    "linear": AttachmentPoint("linear layer", SkilledLinear, linear_places),
    "norm": AttachmentPoint("norm", SkilledNorm, norm_places, "norms"),
    # These also give the number of heads.
    "head": AttachmentPoint("output projection", SkilledLinear, head_projections),
    "attention": AttachmentPoint("attention module", SkilledAttention, attention_places),
    "block": AttachmentPoint("block", SkilledBlock, block_places, take=separate),
    "embedded": AttachmentPoint(
        *("input embedding", InvertibleEmbedding, input_embeddings, "input"), prepare=put_inverse
    ),
    "embedding": AttachmentPoint(
        *("input embedding", SkilledEmbedding, input_embeddings, "input"), prepare=put_prompts
    ),
    "stack": AttachmentPoint("stack", SkilledStack, stack_places, "stack"),
}
