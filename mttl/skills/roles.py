"""What the modules of a backbone are for, by their position: attention, or feed-forward network."""

import re
from collections.abc import Collection

from torch import nn

from mttl.skills.targets import block_paths, inside_block, linear_features

# Ends of names of classes and attributes, as transformers and those like it call modules. Those of
# linear layers differ by model, and are not looked at.
_ROLES = {
    # Norms with linear layers inside; what chooses, or sees chosen tokens only.
    "neither": re.compile(r"(norm|router|gating|gate|indexer|(?<!shared_)experts)$", re.I),
    "attention": re.compile(r"(attention|attn)\d*(block)?$", re.I),
    "mlp": re.compile(r"(mlp|ffn|feed_?forward|moe|experts?|actdense)(block)?$", re.I),
}
_CROSS = re.compile(r"cross_?att|encdecatt|encoder_att", re.I)


def roles(backbone: nn.Module) -> dict[str, str]:
    """Return by path which of ``"attention"`` and ``"mlp"`` modules are in, or ``"neither"``.

    In a block with attention and no module for its feed-forward network, as BART's and BERT's, this
    is what stands beside attention. Routers, and experts that see chosen tokens only, are neither.
    What is outside the blocks has no role.
    """
    blocks = block_paths(backbone)
    found: dict[str, str] = {}
    for path, module in backbone.named_modules():  # from the outside in
        above, _, name = path.rpartition(".")
        if not path or (blocks and inside_block(path, blocks) is None):
            continue
        parent, inherited = backbone.get_submodule(above), found.get(above)
        role = _own_role(name, module) or inherited
        if role is None and above and path not in blocks and not isinstance(parent, nn.ModuleList):
            beside = {_own_role(*child) for child in parent.named_children()}
            role = "mlp" if "attention" in beside and "mlp" not in beside else None
        # The gates of experts are linear layers next to them.
        is_gate = role == "mlp" and linear_features(module) is not None
        if inherited == "neither" or (is_gate and any("expert" in n for n in parent._modules)):
            role = "neither"
        if role is not None:
            found[path] = role
    return found


def members(backbone: nn.Module, paths: Collection[str]) -> dict[str, list[str]]:
    """Return what each word for targets stands for."""
    found: dict[str, list[str]] = {}
    known = roles(backbone)
    for path in paths:
        if (role := known.get(path, "neither")) != "neither":
            found.setdefault(role, []).append(path)
        if role == "attention":
            found.setdefault(f"{'cross' if is_cross(path) else 'self'}_{role}", []).append(path)
    return found


def is_cross(path: str) -> bool:
    """Return whether attention at a path reads the states of an encoder."""
    return _CROSS.search(path) is not None


def _own_role(name: str, module: nn.Module) -> str | None:
    if linear_features(module) is not None:
        return None
    names = name, type(module).__name__
    return next((role for role, end in _ROLES.items() if any(map(end.search, names))), None)
