"""Where skills sit: which parts of a backbone take a kind, and what takes their place."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from torch import nn

from mttl.skills.blocks.feed_forward import block_places, separate
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

# What T5, BART, Llama, GPT-2, GPT-NeoX and their like call things.
HEAD_SIZES = ("v_head_dim", "head_dim", "key_value_proj_dim", "head_size")
OUTPUTS = ("o", "o_proj", "out_proj", "c_proj", "dense")


def _attention_modules(
    backbone: nn.Module,
) -> Iterator[tuple[str, nn.Module, int, str, tuple[int, int]]]:
    """Give path, module, features of a head, and name and features of the output projection.

    Only of modules that know the size of their heads, and whose projection joins whole ones; state
    spaces have a convolution besides.
    """
    for path, module in backbone.named_modules():
        size = next((v for n in HEAD_SIZES if isinstance(v := getattr(module, n, None), int)), None)
        output = next((name for name in OUTPUTS if name in module._modules), None)
        if size is not None and output is not None and not hasattr(module, "conv1d"):
            features = linear_features(module.get_submodule(output))
            if features is not None and features[0] % size == 0:
                yield path, module, size, output, features


def attention_places(backbone: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return sizes of attention modules, by path: of keys, of values, heads, and of hidden states.

    A hidden state that an attention reads has as many features as its output projection returns.
    """
    found = {}
    for path, module, size, _, (n_joined, n_hidden) in _attention_modules(backbone):
        heads = n_joined // size
        n_values = heads // getattr(module, "num_key_value_groups", 1)
        key_features = n_values * getattr(module, "qk_head_dim", size)
        found[path] = (key_features, n_values * size, heads, n_hidden)
    return found


def head_projections(backbone: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return features in and out, and heads, of the output projections of attention, by path."""
    return {
        f"{path}.{output}" if path else output: (*features, features[0] // size)
        for path, _, size, output, features in _attention_modules(backbone)
    }


@dataclass(frozen=True)
class AttachmentPoint:
    """A kind of place for skills; an inventory names its own in ``attachment_point``."""

    noun: str  # in messages
    layer: type[SkilledLayer]  # takes the place of the module there
    # All such places of a backbone: features in and out, and what else skills need, by path.
    find: Callable[[nn.Module], dict[str, tuple[int, ...]]]
    word: str | None = None  # for these places, if not those of `mttl.skills.targets.members`
    # Returns the module at a path, which it may have to make one.
    take: Callable[[nn.Module, str], nn.Module] = nn.Module.get_submodule
    prepare: Callable[[nn.Module], None] | None = None  # what else the backbone needs then

    def words(self, backbone: nn.Module, paths: Collection[str]) -> Mapping[str, Collection[str]]:
        """Return the words for targets, and which of the paths each stands for."""
        return members(backbone, paths) if self.word is None else {self.word: paths}


# From the inside out: a block whose layers have skills may have skills itself.
ATTACHMENT_POINTS = {
    "linear": AttachmentPoint("linear layer", SkilledLinear, linear_places),
    "norm": AttachmentPoint("norm", SkilledNorm, norm_places, "norms"),
    # These tell the number of heads, too.
    "head": AttachmentPoint("output projection", SkilledLinear, head_projections),
    "attention": AttachmentPoint("attention module", SkilledAttention, attention_places),
    "block": AttachmentPoint("block", SkilledBlock, block_places, take=separate),
    "embedding": AttachmentPoint(
        *("input embedding", SkilledEmbedding, input_embeddings, "input"), prepare=put_prompts
    ),
    "stack": AttachmentPoint("stack", SkilledStack, stack_places, "stack"),
}
