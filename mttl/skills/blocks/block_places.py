"""Where whole blocks stand: attention, and feed-forward networks."""

from torch import nn

from mttl.skills.blocks.feed_forward import FORMS, is_inline
from mttl.skills.targets import linear_features

# Names of the first and the last projection: T5; Llama and its like; BART and OPT; GPT-2.
_ATTENTION = (
    ("q", "o"),
    ("q_proj", "o_proj"),
    ("qkv_proj", "o_proj"),
    ("q_proj", "out_proj"),
    ("c_attn", "c_proj"),
)
_FEED_FORWARD = (*((up, down) for _, up, down in FORMS), ("gate_up_proj", "down_proj"))
_FORMS = (*_ATTENTION, *_FEED_FORWARD, ("c_fc", "c_proj"))


def block_places(backbone: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the features in and out of all attention and feed-forward blocks, by path.

    A feed-forward block inside a larger layer, such as BART's, stands under the path of its first
    projection; `mttl.skills.blocks.feed_forward.separate` makes it a module.
    """
    places: dict[str, tuple[int, ...]] = {}
    for path, module in backbone.named_modules():
        children = dict(module.named_children())
        for first, last in _FORMS:
            if first in children and last in children:
                inner, outer = linear_features(children[first]), linear_features(children[last])
                if inner is not None and outer is not None:
                    inside = first == "fc1" and is_inline(module)
                    places[f"{path}.{first}" if inside else path] = inner[0], outer[1]
                break
    return places
