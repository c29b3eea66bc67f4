"""Which experts can be shared out; that it works is tested where processes train together."""

import pytest
import torch
from torch import nn

from mttl.moe.parallel import check_shardable, make_whole, shared_names, shared_parameters
from mttl.skills import AdapterInventory, IA3Inventory, LoRAInventory


def test_experts_that_cannot_be_taken_apart_are_refused() -> None:
    experts = LoRAInventory(6, 6, 4)
    for kind in (experts, IA3Inventory(6, 6, 4), AdapterInventory(6, 6, 4, hidden_features=3)):
        check_shardable(kind)
    experts.register_buffer("common", torch.zeros(6, 4))
    with pytest.raises(ValueError, match=r"'common' of LoRAInventory has the shape \(6, 4\), and"):
        check_shardable(experts)


def test_a_model_that_shares_nothing_is_left_alone() -> None:
    model = nn.Linear(2, 2)
    make_whole(model)
    assert not shared_names(model)
    assert not shared_parameters(model)
