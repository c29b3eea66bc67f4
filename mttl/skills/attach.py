"""Put inventories of skills on the linear layers of a backbone."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn

from mttl.errors import nearest
from mttl.routing.context import RoutingSlot
from mttl.skills.inventory import Inventory
from mttl.skills.skilled_linear import SkilledLinear

GRANULARITIES = ("model", "stack", "block", "layer", "linear")

# Words for the projections of common architectures (T5, BART, Llama, GPT-2, OPT, BERT …).
TARGET_WORDS = {
    "attention": [
        *("SelfAttention.[qkvo]", "EncDecAttention.[qkvo]"),
        *("q_proj", "k_proj", "v_proj", "o_proj", "out_proj", "qkv_proj"),
        *("attn.c_attn", "attn.c_proj", "attention.*.query", "attention.*.key"),
        *("attention.*.value", "attention.output.dense"),
    ],
    "mlp": [
        *("DenseReluDense.wi", "DenseReluDense.wi_?", "DenseReluDense.wo", "fc1", "fc2"),
        *("gate_proj", "up_proj", "down_proj", "gate_up_proj", "mlp.c_fc", "mlp.c_proj"),
    ],
}


@dataclass(frozen=True)
class Attached:
    """One row of the report: a layer that has skills now."""

    path: str
    in_features: int
    out_features: int
    group: str
    n_parameters: int


@dataclass(frozen=True)
class Attachment:
    """What `attach_skills` did.

    Attributes:
        layers: The layers with skills, in the backbone's order.
        groups: Names of the routed groups; a layer's ``group`` is an index into them.
    """

    layers: tuple[Attached, ...]
    groups: tuple[str, ...]

    def summary(self) -> list[tuple[str, int, str, int]]:
        """Return one row per kind of layer: pattern, count, shape, skill parameters."""
        return summarise(
            (layer.path, layer.in_features, layer.out_features, layer.n_parameters)
            for layer in self.layers
        )


def summarise(layers: Iterable[tuple[str, int, int, int]]) -> list[tuple[str, int, str, int]]:
    """Return one row per kind of layer: pattern of paths, count, shape, parameters.

    Args:
        layers: Path, features in and out, and parameters of each.
    """
    rows: dict[tuple[str, str], list[int]] = {}
    for path, in_features, out_features, n_parameters in layers:
        pattern = re.sub(r"\.\d+(?=\.|$)", ".*", path)
        rows.setdefault((pattern, f"{in_features} -> {out_features}"), []).append(n_parameters)
    return [(pattern, len(counts), shape, sum(counts)) for (pattern, shape), counts in rows.items()]


def attach_skills(
    backbone: nn.Module,
    make_inventory: Callable[[int, int], Inventory],
    *,
    targets: Sequence[str],
    slot: RoutingSlot,
    granularity: str = "linear",
) -> Attachment:
    """Replace the targeted linear layers by skilled ones, in place; base weights are not touched.

    Args:
        backbone: Any model.
        make_inventory: Makes the skills of a layer from its ``in_features`` and ``out_features``.
        targets: Which layers: ``"attention"``, ``"mlp"``, ``"all"`` (every linear layer inside a
            block), or patterns with ``*`` and ``?`` that match the end of a layer's dotted path
            (``"q_proj"``, ``"decoder.*.wo"``).
        slot: Where the layers find the routing of a forward pass.
        granularity: Which layers share a routing row: all of the ``"model"``, of a ``"stack"``
            (encoder, decoder), of a ``"block"``, of a ``"layer"`` (attention, feed-forward), or
            none: each ``"linear"`` has its own.

    Returns:
        The layers and the groups.

    Raises:
        ValueError: If a target or the granularity is unknown, or a target matches no layer; the
            message lists near names. If a layer cannot hold the inventory, the message names it.
            If the backbone has skills already. It is then left as it was.
    """
    if granularity not in GRANULARITIES:
        raise ValueError(f"granularity ('{granularity}') must be one of {', '.join(GRANULARITIES)}")
    if any(isinstance(module, SkilledLinear) for module in backbone.modules()):
        raise ValueError("the backbone has skills already; attach all of them in one call")
    # A layer may stand at several paths (tied weights): it gets one inventory, under the first.
    linears = {
        path: features
        for path, module in backbone.named_modules()
        if (features := linear_features(module)) is not None
    }
    blocks = block_paths(backbone)
    groups: dict[str, int] = {}
    layers = []
    skilled: dict[nn.Module, SkilledLinear] = {}
    for path in choose_layers(linears, targets, blocks):
        in_features, out_features = linears[path]
        name = group_name(path, granularity, blocks)
        group = groups.setdefault(name, len(groups))
        try:
            inventory = make_inventory(in_features, out_features)
        except ValueError as error:
            raise ValueError(f"{error} of '{path}'") from error
        base = backbone.get_submodule(path)
        weight: nn.Parameter = base.weight  # type: ignore[assignment]
        inventory.to(weight.device)
        skilled[base] = SkilledLinear(base, inventory, slot, group)
        n_parameters = sum(parameter.numel() for parameter in inventory.parameters())
        layers.append(Attached(path, in_features, out_features, name, n_parameters))
    # Only now is the backbone touched: an error above leaves it as it was.
    for parent in list(backbone.modules()):
        for child, module in list(parent._modules.items()):
            if module in skilled:
                setattr(parent, child, skilled[module])
    return Attachment(tuple(layers), tuple(groups))


def linear_features(module: nn.Module) -> tuple[int, int] | None:
    """Return the features in and out of a linear layer, or None for any other module.

    Args:
        module: Any module.
    """
    if isinstance(module, SkilledLinear):
        module = module.base
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    # GPT-2 keeps its linear layers transposed, in a class of transformers' own.
    if type(module).__name__ == "Conv1D" and getattr(module, "nf", None) is not None:
        weight: nn.Parameter = module.weight  # type: ignore[assignment]
        return weight.shape[0], weight.shape[1]
    return None


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
    linears: dict[str, tuple[int, int]], targets: Sequence[str], blocks: list[str]
) -> list[str]:
    """Return the paths that any target matches, in the order of the backbone."""
    if not targets:
        raise ValueError("targets must name at least one layer, for example ['attention', 'mlp']")
    matched: set[str] = set()
    for target in targets:
        if target == "all":
            # The output head stands outside the blocks and stays as it is.
            found = {path for path in linears if not blocks or inside_block(path, blocks)}
        else:
            patterns = TARGET_WORDS.get(target, [target])
            found = {path for path in linears if any(_matches(path, one) for one in patterns)}
        if not found:
            names = sorted({path.rpartition(".")[2] for path in linears})
            known = [*names, *TARGET_WORDS, "all"]
            raise ValueError(
                f"the target '{target}' matches no linear layer of this backbone."
                f"{nearest(target, known)} Its linear layers end in: {', '.join(names)}"
            )
        matched |= found
    return [path for path in linears if path in matched]


def _matches(path: str, pattern: str) -> bool:
    return fnmatchcase(path, pattern) or fnmatchcase(path, f"*.{pattern}")


def stack_name(path: str) -> str:
    """Return the stack that a module is in: ``"encoder"``, ``"decoder"``, or else ``"model"``."""
    return next((part for part in path.split(".") if part in ("encoder", "decoder")), "model")


def group_name(path: str, granularity: str, blocks: list[str]) -> str:
    """Return the name of the routed group that a layer belongs to."""
    parent = path.rpartition(".")[0]
    if granularity == "model":
        return "model"
    if granularity == "stack":
        return stack_name(path)
    if granularity == "block":
        return inside_block(path, blocks) or parent
    return parent if granularity == "layer" else path
