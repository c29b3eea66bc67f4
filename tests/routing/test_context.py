"""The slot under everything that breaks other ways of passing task ids to layers."""

import copy
import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import T5Config, T5ForConditionalGeneration

from mttl.routing import PolytroponRouter, Routing, RoutingSlot, check_task_ids
from mttl.skills import LoRAInventory, SkilledLinear, SkilledModel, attach_skills


def skilled_t5(n_heads=2, relaxed=True):
    backbone = T5ForConditionalGeneration(
        T5Config(
            vocab_size=64,
            d_model=16,
            d_kv=4,
            num_heads=4,
            d_ff=24,
            num_layers=2,
            dropout_rate=0.0,
            decoder_start_token_id=0,
        )
    ).requires_grad_(False)
    slot = RoutingSlot()
    attachment = attach_skills(
        backbone,
        lambda i, o: LoRAInventory(i, o, 4, rank=2, n_heads=n_heads),
        targets=["attention", "mlp"],
        slot=slot,
        granularity="layer",
    )
    router = PolytroponRouter(len(attachment.groups), 5, n_heads, 4, relaxed=relaxed)
    model = SkilledModel(backbone, router, slot)
    for layer in model.skilled_layers().values():
        nn.init.normal_(layer.inventory.up)
    nn.init.normal_(router.logits)
    return model


TASK_IDS = torch.tensor([0, 3, 1])
OTHER_IDS = torch.tensor([2, 2, 4])


def batch():
    generator = torch.Generator().manual_seed(1)
    return {
        "input_ids": torch.randint(2, 64, (3, 7), generator=generator),
        "labels": torch.randint(2, 64, (3, 5), generator=generator),
    }


def gradients(model):
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name in first:
        # The same operations in the same order, up to how sums of gradients are ordered.
        torch.testing.assert_close(first[name], second[name], rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("n_beams", [1, 3])
def test_generation_of_a_mixed_batch_equals_one_by_one(n_beams):
    model = skilled_t5().eval()
    ids = batch()["input_ids"]
    settings = {"num_beams": n_beams, "max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    together = model.generate(TASK_IDS, input_ids=ids, **settings)
    for row in range(3):
        alone = model.generate(TASK_IDS[row : row + 1], input_ids=ids[row : row + 1], **settings)
        assert torch.equal(together[row : row + 1], alone)
    # Tasks matter: otherwise the test above could not fail.
    assert not torch.equal(together, model.generate(OTHER_IDS, input_ids=ids, **settings))


def test_generation_merges_once_per_call(monkeypatch):
    model = skilled_t5().eval()
    calls = []
    merge = LoRAInventory.merge
    monkeypatch.setattr(LoRAInventory, "merge", lambda *a: calls.append(1) or merge(*a))
    model.generate(TASK_IDS, input_ids=batch()["input_ids"], max_new_tokens=5, min_new_tokens=5)
    assert len(calls) == len(model.skilled_layers())


def test_checkpointing_gives_the_same_gradients_with_random_routing():
    model = skilled_t5().train()
    torch.manual_seed(5)
    model(TASK_IDS, **batch()).loss.backward()
    expected = gradients(model)
    model.enable_gradient_checkpointing()
    torch.manual_seed(5)
    model(TASK_IDS, **batch()).loss.backward()  # the backward pass recomputes after the call
    assert_same(gradients(model), expected)


def test_reentrant_checkpointing_is_refused_with_the_reason():
    model = skilled_t5()
    layer = next(iter(model.skilled_layers().values()))
    x = torch.randn(3, 4, 16, requires_grad=True)
    with model.slot.use(model.route(TASK_IDS)):
        y = checkpoint(layer, x, use_reentrant=True)
    with pytest.raises(RuntimeError, match="reentrant activation checkpointing"):
        y.sum().backward()


def test_two_forwards_before_one_backward():
    model = skilled_t5(relaxed=False)
    (model(TASK_IDS, **batch()).loss + 2 * model(OTHER_IDS, **batch()).loss).backward()
    together = gradients(model)
    model(TASK_IDS, **batch()).loss.backward()
    (2 * model(OTHER_IDS, **batch()).loss).backward()
    assert_same(together, gradients(model))


def test_two_forwards_before_one_backward_under_checkpointing():
    model = skilled_t5(relaxed=False).train()
    (model(TASK_IDS, **batch()).loss + model(OTHER_IDS, **batch()).loss).backward()
    expected = gradients(model)
    model.enable_gradient_checkpointing()
    (model(TASK_IDS, **batch()).loss + model(OTHER_IDS, **batch()).loss).backward()
    assert_same(gradients(model), expected)


def test_backward_on_another_thread():
    model = skilled_t5(relaxed=False).train()
    model(TASK_IDS, **batch()).loss.backward()
    expected = gradients(model)
    model.enable_gradient_checkpointing()
    loss = model(TASK_IDS, **batch()).loss
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    assert_same(gradients(model), expected)


def test_nested_use():
    model = skilled_t5(relaxed=False).eval()
    outer = model.route(TASK_IDS)
    alone = model(OTHER_IDS, **batch()).loss
    with model.slot.use(outer):
        assert torch.equal(model(OTHER_IDS, **batch()).loss, alone)
        assert model.slot.current is outer


def test_the_slot_is_empty_after_an_error():
    model = skilled_t5()
    with pytest.raises(ValueError, match="input_ids"):
        model(TASK_IDS)  # the backbone's own complaint
    with pytest.raises(RuntimeError, match="without a routing"):
        _ = model.slot.current


def test_a_copy_is_independent():
    model = skilled_t5(relaxed=False).eval()
    twin = copy.deepcopy(model)
    before = model(TASK_IDS, **batch()).loss
    assert torch.equal(twin(TASK_IDS, **batch()).loss, before)
    with torch.no_grad():
        for layer in twin.skilled_layers().values():
            layer.inventory.up.zero_()
    assert twin.slot is not model.slot
    assert all(layer.slot is twin.slot for layer in twin.skilled_layers().values())
    assert torch.equal(model(TASK_IDS, **batch()).loss, before)
    assert not torch.equal(twin(TASK_IDS, **batch()).loss, before)


def test_a_skilled_layer_compiles_to_one_graph():
    # In a process of its own: the shape checks of this test suite are not for the compiler.
    import subprocess
    import sys

    program = """
import torch
from torch import nn
from mttl.routing import Routing, RoutingSlot
from mttl.skills import LoRAInventory, SkilledLinear
torch.manual_seed(0)
slot, inventory = RoutingSlot(), LoRAInventory(8, 8, 4, rank=2, n_heads=2)
nn.init.normal_(inventory.up)
layer = SkilledLinear(nn.Linear(8, 8).requires_grad_(False), inventory, slot, 0)
compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
for seed in (1, 2):
    torch.manual_seed(seed)
    mixing = torch.rand(1, 3, 2, 4, requires_grad=True)
    x = torch.randn(3, 5, 8, requires_grad=True)
    results = []
    for module in (layer, compiled):
        with slot.use(Routing(torch.arange(3), mixing)):
            y = module(x)
        wanted = (x, mixing, inventory.down, inventory.up)
        results.append([y, *torch.autograd.grad(y.square().sum(), wanted)])
    for expected, found in zip(*results):
        torch.testing.assert_close(found, expected)
print("same")
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert ended.stdout.strip() == "same", ended.stderr


def test_wrong_number_of_rows():
    slot = RoutingSlot()
    layer = SkilledLinear(nn.Linear(4, 4), LoRAInventory(4, 4, 2), slot, 0)
    routing = Routing(torch.arange(2), torch.ones(1, 2, 1, 2), expansion=3)
    with slot.use(routing):
        assert layer(torch.randn(6, 5, 4)).shape == (6, 5, 4)
        with pytest.raises(ValueError, match="received 4 rows for 2 examples with expansion 3"):
            layer(torch.randn(4, 5, 4))


def test_rows_of_an_example_are_neighbours():
    slot, inventory = RoutingSlot(), LoRAInventory(4, 4, 2)
    nn.init.normal_(inventory.up)
    layer = SkilledLinear(nn.Linear(4, 4), inventory, slot, 0)
    mixing = torch.eye(2)[None, :, None]
    x = torch.randn(6, 5, 4)
    with slot.use(Routing(torch.arange(2), mixing, expansion=3)):
        found = layer(x)
    with slot.use(Routing(torch.arange(6) // 3, mixing.repeat_interleave(3, dim=1))):
        torch.testing.assert_close(found, layer(x))


@pytest.mark.parametrize("wrong", [-1, 5])
def test_task_ids_out_of_range(wrong):
    with pytest.raises(ValueError, match=rf"task id {wrong} is out of range: the router knows 5"):
        check_task_ids(torch.tensor([0, wrong]), 5)
    with pytest.raises(ValueError, match="out of range"):
        skilled_t5()(torch.tensor([0, wrong, 1]), **batch())


def test_model_refuses_parts_that_do_not_fit():
    model = skilled_t5()
    backbone, router, slot = model.backbone, model.router, model.slot
    with pytest.raises(ValueError, match="no skilled layer; call attach_skills first"):
        SkilledModel(nn.Linear(2, 2), router, slot)
    with pytest.raises(ValueError, match="reads another routing slot"):
        SkilledModel(backbone, router, RoutingSlot())
    with pytest.raises(ValueError, match="reads group 1, but the router has 1 groups"):
        SkilledModel(backbone, PolytroponRouter(1, 5, 2, 4), slot)
    with pytest.raises(ValueError, match="has 4 skills and 2 heads, the router 8 and 2"):
        SkilledModel(backbone, PolytroponRouter(router.n_groups, 5, 2, 8), slot)
