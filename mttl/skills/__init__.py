"""COMPUTATION: what one skill does, and how skills sit on a backbone."""

from mttl.skills import kinds
from mttl.skills.attach import Attached, Attachment, attach_skills
from mttl.skills.inventory import Inventory
from mttl.skills.kinds import *  # noqa: F403 - every kind that is entered there is public here
from mttl.skills.skilled_layer import SkilledLinear
from mttl.skills.skilled_model import SkilledModel

__all__ = [
    "Attached",
    "Attachment",
    "Inventory",
    "SkilledLinear",
    "SkilledModel",
    "attach_skills",
]
__all__ += kinds.__all__
