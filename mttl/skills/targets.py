"""Selection of a backbone's layers by word or pattern, and their blocks, stacks and roles."""

import re
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase

from torch import nn

from mttl.aggregation.packed_weights import is_foreign
from mttl.io.errors import nearest
from mttl.skills.skilled_layer import SkilledLinear, innermost

GRANULARITIES = ("model", "stack", "block", "layer", "linear")


def linear_features(module: nn.Module) -> tuple[int, int] | None:
    """Return input and output features of a linear layer, or None for any other module."""
    if isinstance(module, SkilledLinear):
        module = innermost(module)
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    # GPT-2's linear layers have a transposed weight and a class of transformers.
    if type(module).__name__ == "Conv1D" and getattr(module, "nf", None) is not None:
        weight: nn.Parameter = module.weight  # type: ignore[assignment]
        return weight.shape[0], weight.shape[1]
    sizes = getattr(module, "in_features", None), getattr(module, "out_features", None)
    if isinstance(sizes[0], int) and isinstance(sizes[1], int) and is_foreign(module):
        return sizes[0], sizes[1]
    return None


def linear_places(backbone: nn.Module) -> dict[str, tuple[int, int]]:
    """Return input and output features of the outermost linear layers by path."""
    found: dict[str, tuple[int, int]] = {}
    skilled: list[str] = []
    for path, module in backbone.named_modules():
        if any(path.startswith(f"{outer}.") for outer in skilled):
            continue
        if isinstance(module, SkilledLinear):
            skilled.append(path)
        if (features := linear_features(module)) is not None:
            found[path] = features
    return found


def block_paths(backbone: nn.Module) -> list[str]:
    """Return the paths of the outermost blocks: the members of module lists."""
    found: list[str] = []
    for path, module in backbone.named_modules():
        if isinstance(module, nn.ModuleList) and not inside_block(path, found):
            found.extend(f"{path}.{index}" if path else str(index) for index in range(len(module)))
    return found


def inside_block(path: str, blocks: list[str]) -> str | None:
    """Return the block that a module is in, or None."""
    return next((block for block in blocks if f"{path}.".startswith(f"{block}.")), None)


def choose_layers(
    places: Mapping[str, tuple[int, ...]],
    targets: Sequence[str],
    blocks: list[str],
    unknown: Mapping[str, str] | None = None,
    *,
    words: Mapping[str, Collection[str]],
    noun: str = "linear layer",
) -> list[str]:
    """Return the paths that any target matches, in the order of the backbone.

    Targets are those of `mttl.skills.attach_skills`; ``words`` has the paths of each word. A target
    that matches no layer, or an ``unknown`` one whose features cannot be read, is a ValueError.
    """
    unknown = unknown or {}
    if not targets:
        raise ValueError("targets must name at least one layer, for example ['attention', 'mlp']")
    matched: set[str] = set()
    paths = {*places, *unknown}
    for target in targets:
        if target == "all":
            # The output head is outside the blocks and does not change.
            found = {path for path in paths if not blocks or inside_block(path, blocks)}
        elif target in words:
            found = paths & {*words[target]}
        else:
            found = {path for path in paths if path_matches(path, target)}
        for path in sorted(found & unknown.keys()):
            raise ValueError(
                f"the target '{target}' matches '{path}', a {unknown[path]} without in_features "
                "and out_features. Choose other targets, load the backbone in floating point, or "
                "set backbone.quantize"
            )
        if not places:
            raise ValueError(
                f"the target '{target}' matches no {noun}: this backbone has none; use a kind of "
                "skill for linear layers (lora, ia3, krona, bitfit …)"
            )
        if not found:
            names = sorted({path.rpartition(".")[2] for path in places})
            known = [word for word in (*names, *words, "all") if word != target]
            raise ValueError(
                f"the target '{target}' matches no {noun} of this backbone."
                f"{nearest(target, known)} Names of its {noun}s: {', '.join(names)}"
            )
        matched |= found
    return [path for path in places if path in matched]


def path_matches(path: str, pattern: str) -> bool:
    """Return whether a pattern matches the end of a layer's path, at a dot."""
    path = re.sub(r"\.base(?=\.|$)", "", path)  # inside a block with skills
    return fnmatchcase(path, pattern) or fnmatchcase(path, f"*.{pattern}")


def stack_name(path: str) -> str:
    """Return the stack that a module is in: ``"encoder"``, ``"decoder"``, or else ``"model"``."""
    return next((part for part in path.split(".") if part in ("encoder", "decoder")), "model")


def group_name(path: str, granularity: str, blocks: list[str]) -> str:
    """Return the name of the routed group that a layer belongs to."""
    parent = path.rpartition(".")[0] or path
    if granularity == "model":
        return "model"
    if granularity == "stack":
        return stack_name(path)
    if granularity == "block":
        return inside_block(path, blocks) or parent
    return parent if granularity == "layer" else path


# Ends of names of classes and attributes in transformers and similar libraries. Names of linear
# layers differ by model and are not used.
_ROLES = {
    # Norms with linear layers inside, routers, and experts that process chosen tokens only.
    "neither": re.compile(r"(norm|router|gating|gate|indexer|(?<!shared_)experts)$", re.I),
    "attention": re.compile(r"(attention|attn)\d*(block)?$", re.I),
    "mlp": re.compile(r"(mlp|ffn|feed_?forward|moe|experts?|actdense)(block)?$", re.I),
}
CROSS = re.compile(r"cross_?att|encdecatt|encoder_att", re.I)


def roles(backbone: nn.Module) -> dict[str, str]:
    """Return the role of modules by path: ``"attention"``, ``"mlp"`` or ``"neither"``.

    In a block without a module for its feed-forward network, as BART's and BERT's, the siblings of
    attention are ``"mlp"``. Routers, and experts that process chosen tokens only, are
    ``"neither"``. Modules outside the blocks have no role.
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
    """Return the paths of each word for targets."""
    found: dict[str, list[str]] = {}
    known = roles(backbone)
    for path in paths:
        if (role := known.get(path, "neither")) != "neither":
            found.setdefault(role, []).append(path)
        if role == "attention":
            found.setdefault(f"{'cross' if CROSS.search(path) else 'self'}_{role}", []).append(path)
    return found


def _own_role(name: str, module: nn.Module) -> str | None:
    if linear_features(module) is not None:
        return None
    names = name, type(module).__name__
    return next((role for role, end in _ROLES.items() if any(map(end.search, names))), None)
