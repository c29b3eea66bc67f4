"""Where skills sit: which parts of a backbone take a kind, and what takes their place."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from torch import nn

from mttl.skills.attention_modules import attention_places, head_projections
from mttl.skills.blocks.feed_forward import block_places, separate
from mttl.skills.blocks.skilled_block import SkilledBlock
from mttl.skills.inputs.skilled_attention import SkilledAttention
from mttl.skills.inputs.skilled_embedding import (
    SkilledEmbedding,
    input_embeddings,
    put_prompts,
)
from mttl.skills.roles import members
from mttl.skills.skilled_layer import SkilledLayer
from mttl.skills.skilled_linear import SkilledLinear
from mttl.skills.skilled_norm import SkilledNorm, norm_places
from mttl.skills.skilled_stack import SkilledStack, stack_places
from mttl.skills.targets import linear_places


@dataclass(frozen=True)
class AttachmentPoint:
    """A kind of place for skills; an inventory names its own in ``attachment_point``.

    Attributes:
        noun: What such a place is called in messages.
        layer: The class that takes the place of the module there.
        find: Finds all such places of a backbone: features in and out, and what else skills need
            to know there, by path.
        word: The one word for these places, if not those of `mttl.skills.roles.members`.
        take: Returns the module at a path, which it may have to make one.
        prepare: What else the backbone needs once such skills are on it.
        apart: Targets by which two kinds at such places do not meet; nothing where there is one.
    """

    noun: str
    layer: type[SkilledLayer]
    find: Callable[[nn.Module], dict[str, tuple[int, ...]]]
    word: str | None = None
    take: Callable[[nn.Module, str], nn.Module] = nn.Module.get_submodule
    prepare: Callable[[nn.Module], None] | None = None
    apart: str = ""

    def words(self, backbone: nn.Module, paths: Collection[str]) -> Mapping[str, Collection[str]]:
        """Return the words for targets, and which of the paths each stands for."""
        return members(backbone, paths) if self.word is None else {self.word: paths}


ATTENTION_OR_MLP = "attention to one and mlp to another"
HALVES = "some layers to one (encoder.*, or *.0.*) and others to another"
# From the inside out: a block whose layers have skills may have skills itself.
ATTACHMENT_POINTS = {
    "linear": AttachmentPoint("linear layer", SkilledLinear, linear_places, apart=ATTENTION_OR_MLP),
    "norm": AttachmentPoint("norm", SkilledNorm, norm_places, "norms", apart=HALVES),
    # These tell the number of heads, too.
    "head": AttachmentPoint(
        *("output projection", SkilledLinear, head_projections),
        apart="the output projections to head masks, and others by patterns (*.q, *.k, *.v)",
    ),
    "attention": AttachmentPoint(
        "attention module", SkilledAttention, attention_places, apart=HALVES
    ),
    "block": AttachmentPoint(
        "block", SkilledBlock, block_places, take=separate, apart=ATTENTION_OR_MLP
    ),
    "embedding": AttachmentPoint(
        *("input embedding", SkilledEmbedding, input_embeddings, "input"), prepare=put_prompts
    ),
    "stack": AttachmentPoint("stack", SkilledStack, stack_places, "stack"),
}
