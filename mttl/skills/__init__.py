"""COMPUTATION: what one skill does, and how skills sit on a backbone."""

from mttl.skills.adapter import AdapterInventory
from mttl.skills.attach import Attached, Attachment, attach_skills
from mttl.skills.bitfit import BitFitInventory
from mttl.skills.dense import DenseInventory
from mttl.skills.ia3 import IA3Inventory
from mttl.skills.inventory import Inventory
from mttl.skills.krona import KronAInventory
from mttl.skills.lora import LoRAInventory
from mttl.skills.skilled_linear import SkilledLinear
from mttl.skills.skilled_model import SkilledModel
from mttl.skills.sparse import SparseInventory
from mttl.skills.supermask import SupermaskInventory

__all__ = [
    "AdapterInventory",
    "Attached",
    "Attachment",
    "BitFitInventory",
    "DenseInventory",
    "IA3Inventory",
    "Inventory",
    "KronAInventory",
    "LoRAInventory",
    "SkilledLinear",
    "SkilledModel",
    "SparseInventory",
    "SupermaskInventory",
    "attach_skills",
]
