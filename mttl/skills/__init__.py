# ruff: noqa: F401 - for users of the package
"""COMPUTATION: inventories of skills, and their attachment to a backbone."""

from mttl.skills.attach import Attached, Attachment, attach_skills
from mttl.skills.blocks.adapter import AdapterInventory, SparseAdapterInventory
from mttl.skills.blocks.compacter import CompacterInventory
from mttl.skills.blocks.invertible import InvertibleInventory
from mttl.skills.blocks.ladder import LadderInventory
from mttl.skills.inputs.prefix import PrefixInventory
from mttl.skills.inputs.prompt import PromptInventory
from mttl.skills.inventory import Inventory
from mttl.skills.kinds import KINDS, kind_for
from mttl.skills.skilled_layer import SkilledLinear
from mttl.skills.skilled_model import SkilledModel
from mttl.skills.weights.bitfit import BitFitInventory
from mttl.skills.weights.dense import DenseInventory
from mttl.skills.weights.diff_pruning import DiffPruningInventory
from mttl.skills.weights.dora import DoRAInventory
from mttl.skills.weights.head_mask import HeadMaskInventory
from mttl.skills.weights.ia3 import IA3Inventory
from mttl.skills.weights.intrinsic import IntrinsicInventory
from mttl.skills.weights.krona import KronABlockInventory, KronAInventory
from mttl.skills.weights.lora import LoRAInventory
from mttl.skills.weights.norm import NormInventory
from mttl.skills.weights.sparse import SparseInventory
from mttl.skills.weights.supermask import SupermaskInventory
from mttl.skills.weights.vera import VeRAInventory
