"""The kinds of skills by name."""

from pkgutil import resolve_name

from mttl.plugins.parts import PARTS
from mttl.skills.blocks.adapter import AdapterInventory
from mttl.skills.blocks.compacter import CompacterInventory
from mttl.skills.blocks.krona_block import KronABlockInventory
from mttl.skills.blocks.ladder import LadderInventory
from mttl.skills.blocks.sparse_adapter import SparseAdapterInventory
from mttl.skills.inputs.prefix import PrefixInventory
from mttl.skills.inputs.prompt import PromptInventory
from mttl.skills.inventory import USES, Inventory
from mttl.skills.weights.bitfit import BitFitInventory
from mttl.skills.weights.dense import DenseInventory
from mttl.skills.weights.diff_pruning import DiffPruningInventory
from mttl.skills.weights.head_mask import HeadMaskInventory
from mttl.skills.weights.ia3 import IA3Inventory
from mttl.skills.weights.intrinsic import IntrinsicInventory
from mttl.skills.weights.krona import KronAInventory
from mttl.skills.weights.lora import LoRAInventory
from mttl.skills.weights.norm import NormInventory
from mttl.skills.weights.sparse import SparseInventory
from mttl.skills.weights.supermask import SupermaskInventory

__all__ = [
    "KINDS",
    "AdapterInventory",
    "BitFitInventory",
    "CompacterInventory",
    "DenseInventory",
    "DiffPruningInventory",
    "HeadMaskInventory",
    "IA3Inventory",
    "IntrinsicInventory",
    "KronABlockInventory",
    "KronAInventory",
    "LadderInventory",
    "LoRAInventory",
    "NormInventory",
    "PrefixInventory",
    "PromptInventory",
    "SparseAdapterInventory",
    "SparseInventory",
    "SupermaskInventory",
    "kind_for",
]

KINDS: dict[str, type[Inventory]] = {
    kind: resolve_name(place) for kind, place in PARTS["skills"].items()
}


def kind_for(use: str, kind: str) -> type[Inventory]:
    """Return the class of a kind of skill that has a use.

    Raises:
        ValueError: If the kind is unknown or does not have the use.
    """
    fit = [name for name, known in KINDS.items() if use in known.uses]
    if kind not in fit:
        raise ValueError(f"kind ('{kind}') cannot be {USES[use]}; choose one of {', '.join(fit)}")
    return KINDS[kind]
