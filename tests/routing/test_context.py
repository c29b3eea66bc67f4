"""What only the slot itself can show; `tests/skills/test_skilled_model.py` has it at work."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from mttl.routing import Routing, RoutingSlot
from mttl.skills import LoRAInventory, SkilledLinear


def test_reentrant_checkpointing_is_refused_with_the_reason():
    slot = RoutingSlot()
    layer = SkilledLinear(nn.Linear(4, 4), LoRAInventory(4, 4, 2), slot, 0)
    x = torch.randn(3, 5, 4, requires_grad=True)
    with slot.use(Routing(torch.arange(3), torch.ones(1, 3, 1, 2))):
        y = checkpoint(layer, x, use_reentrant=True)
    with pytest.raises(RuntimeError, match="reentrant activation checkpointing"):
        y.sum().backward()
