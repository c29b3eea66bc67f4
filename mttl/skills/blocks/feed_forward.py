"""Attention and feed-forward blocks of a backbone, found by the names of their projections."""

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from mttl.skills.targets import linear_places

# Names of gate, up- and down-projection: T5 (gated or not), models like Llama, models like BART.
FORMS = (
    ("wi_0", "wi_1", "wo"),
    (None, "wi", "wo"),
    ("gate_proj", "up_proj", "down_proj"),
    (None, "fc1", "fc2"),
)

# Names of the first and the last projection: T5; models like Llama; BART and OPT; GPT-2;
# DistilBERT; ModernBERT.
_ATTENTION = (
    ("q", "o"),
    ("q_proj", "o_proj"),
    ("qkv_proj", "o_proj"),
    ("q_proj", "out_proj"),
    ("c_attn", "c_proj"),
    ("q_lin", "out_lin"),
    ("Wqkv", "Wo"),
)
_FEED_FORWARD = (*((up, down) for _, up, down in FORMS), ("gate_up_proj", "down_proj"))
_OTHERS = (("c_fc", "c_proj"), ("lin1", "lin2"), ("Wi", "Wo"))
# In models like BERT, the last projection is in a module with the residual connection and a norm.
_SPLIT = {"self": "output.dense", "intermediate": "output.dense"}
_BLOCKS = (*_ATTENTION, *_FEED_FORWARD, *_OTHERS, *_SPLIT.items())


class InlineFeedForward(nn.Module):
    """The feed-forward computation inside a layer like BART's, as a separate module."""

    def __init__(self, fc1: nn.Module, act: nn.Module, fc2: nn.Module, dropout: float) -> None:
        super().__init__()
        self.fc1, self.act, self.dropout, self.fc2 = fc1, act, nn.Dropout(dropout), fc2

    def forward(self, x: Float[Tensor, "R *positions I"]) -> Float[Tensor, "R *positions O"]:
        return self.fc2(self.dropout(self.act(self.fc1(x))))


class SplitBlock(nn.Module):
    """A block of a model like BERT: its first part, and the projection of the module after it."""

    def __init__(self, inner: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.inner, self.last = inner, last

    def forward(self, *args: Any, **settings: Any) -> Any:
        found = self.inner(*args, **settings)
        if isinstance(found, tuple):
            return self.last(found[0]), *found[1:]
        return self.last(found)


@dataclass(frozen=True)
class FeedForwardBlock:
    r"""The parts of one block: :math:`W_o\,a(W_i x)`, or gated :math:`W_o(a(W_g x) \odot W_i x)`.

    :math:`W_g` is the gate, :math:`W_i` the up-projection, :math:`W_o` the down-projection and a
    the activation; dropout applies to hidden units during training.
    """

    gate: nn.Module | None
    up: nn.Module
    down: nn.Module
    activation: nn.Module
    dropout: float


def block_places(backbone: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the input and output features of all attention and feed-forward blocks, by path.

    A block inside a larger layer, such as BART's or BERT's, has the path of its first part;
    `separate` makes it a module.
    """
    places: dict[str, tuple[int, ...]] = {}
    modules = dict(backbone.named_modules())
    for path, module in modules.items():
        above = f"{path}." if path else ""
        for first, last in _BLOCKS:
            ends = [modules[above + name] for name in (first, last) if above + name in modules]
            if len(ends) == 2:
                inner, outer = (list(linear_places(end).values()) for end in ends)
                if inner and outer:
                    inside = first in _SPLIT or (first == "fc1" and is_inline(module))
                    places[above + first if inside else path] = inner[0][0], outer[0][1]
                break
    return places


def feed_forward_blocks(backbone: nn.Module) -> dict[str, FeedForwardBlock]:
    """Return the feed-forward blocks of a backbone by their path, as in `block_places`."""
    blocks = {}
    for path, module in backbone.named_modules():
        form = _form(module)
        if form is None:
            continue
        gate, up, down = form
        inside = is_inline(module)
        blocks[f"{path}.{up}" if inside else path] = FeedForwardBlock(
            None if gate is None else module.get_submodule(gate),
            module.get_submodule(up),
            module.get_submodule(down),
            _activation(module),
            _dropout(module, inside=inside),
        )
    return blocks


def separate(backbone: nn.Module, path: str) -> nn.Module:
    """Return a block as a module; a part of a larger layer is split off in place."""
    above, _, name = path.rpartition(".")
    layer = backbone.get_submodule(above)
    if name in _SPLIT:
        split = SplitBlock(layer.get_submodule(name), layer.get_submodule(_SPLIT[name]))
        layer.set_submodule(_SPLIT[name], nn.Identity())
        setattr(layer, name, split.train(layer.training))
        return split
    form = _form(layer)
    if form is None or form[1] != name or not is_inline(layer):
        return backbone.get_submodule(path)
    parts = layer.get_submodule(name), _activation(layer), layer.get_submodule("fc2")
    block = InlineFeedForward(*parts, _dropout(layer, inside=True))
    block.train(layer.training)
    # The layer's own steps between the projections are now inside the block.
    setattr(layer, name, block)
    layer.fc2 = nn.Identity()
    layer.activation_fn = nn.Identity()
    layer.activation_dropout = 0.0  # type: ignore[assignment]
    return block


def is_inline(module: nn.Module) -> bool:
    """Return whether the feed-forward block is only a part of the module."""
    others = {name for name, child in module.named_children() if [*child.parameters()]}
    return bool(others - {"fc1", "fc2"}) and "fc1" in others


def _form(module: nn.Module) -> tuple[str | None, str, str] | None:
    if isinstance(module, InlineFeedForward):
        return None
    children = {name for name, _ in module.named_children()}
    return next((form for form in FORMS if {*form} - {None} <= children), None)


def _dropout(module: nn.Module, *, inside: bool) -> float:
    if inside:
        return float(getattr(module, "activation_dropout", 0.0))
    return getattr(getattr(module, "dropout", None), "p", 0.0)


def _activation(module: nn.Module) -> nn.Module:
    for name in ("act", "act_fn", "activation_fn"):
        found = getattr(module, name, None)
        if isinstance(found, nn.Module):
            return found
    raise ValueError(
        f"{type(module).__name__} has no activation module (act, act_fn, activation_fn)"
    )
