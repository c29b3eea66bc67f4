"""Skills on whole language models; what every kind promises there is in `test_placed.py`."""

import copy
import threading

import pytest
import torch
from torch import nn
from transformers import GenerationConfig

from helpers.backbones import BACKBONES, batch, tiny_llama, tiny_t5
from helpers.compare import relative_error
from helpers.skills import ROUTERS, gradients, skilled
from mttl.routing import PolytroponRouter, Routing
from mttl.skills import LoRAInventory, SkilledModel

TASK_IDS = torch.tensor([2, 0, 1, 0])


def run(model, task_ids=TASK_IDS, **changes):
    return model(task_ids, **{**batch(len(task_ids)), **changes})


# Float32 logits of these models lie 1e-6 (10 eps) from those of float64, on any processor.
ROUNDING = 1e-5


def assert_same_gradients(found, expected):
    """The same operations, but sums over the uses of a tensor may run in another order.

    What is left of terms that cancel may be 1e5 times smaller than they are; so float64, where
    that is 1e5 eps = 2e-11.
    """
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert gradient.dtype == torch.float64
        assert relative_error(found[name], gradient) < 1e-9, name


@pytest.mark.every(3)
@pytest.mark.parametrize("n_heads", [1, 2])
@pytest.mark.parametrize("router", ROUTERS)
def test_an_example_alone_equals_its_row_of_a_mixed_batch(router, n_heads):
    if router == "hyperformer" and n_heads > 1:
        pytest.skip("has one head")
    model = skilled(tiny_t5(), router=router, n_heads=n_heads)
    inputs = batch(4)
    together = model(TASK_IDS, **inputs).logits
    for row in range(4):
        one = slice(row, row + 1)
        alone = model(TASK_IDS[one], **{name: tensor[one] for name, tensor in inputs.items()})
        assert relative_error(together[one], alone.logits) < ROUNDING
    if router not in ("average", "random"):  # tasks matter
        assert relative_error(run(model, TASK_IDS.roll(1)).logits, together) > 1e-3


@pytest.mark.every(2)
@pytest.mark.parametrize("router", ROUTERS)
def test_rows_of_one_task_are_apart_where_weights_are_drawn(router):
    if router == "hyperformer":
        pytest.skip("has one head")
    model = skilled(tiny_t5(), router=router, n_heads=2)
    ids = torch.ones(3, dtype=torch.long)
    n_examples = [model.train(mode).route(ids).mixing.shape[1] for mode in (True, False)]
    assert n_examples == [3 if model.router.draws else 1, 1]


def test_gradients_of_rows_of_one_task():
    model = skilled(tiny_t5()).double()
    inputs, ids = batch(4), torch.tensor([1, 1, 0, 0])
    model(ids, **inputs).loss.backward()
    found = gradients(model)
    model.zero_grad()
    with model.slot.use(Routing(ids, model.router(ids))):  # each row an example
        model.backbone(**inputs).loss.backward()
    assert_same_gradients(found, gradients(model))


@pytest.mark.parametrize("granularity", ["model", "block"])
def test_layers_of_a_group_share_their_row(granularity):
    model = skilled(tiny_t5(), granularity=granularity)
    apart = skilled(tiny_t5(), granularity="linear")
    with torch.no_grad():
        for path, layer in model.skilled_layers().items():
            own = apart.skilled_layers()[path].group
            apart.router.logits[own].copy_(model.router.logits[layer.group])
    assert model.router.n_groups < apart.router.n_groups
    assert relative_error(run(model).logits, run(apart).logits) < ROUNDING


def test_a_frozen_backbone_keeps_its_weights_to_the_bit():
    model = skilled(tiny_t5()).train()
    before = {
        name: parameter.clone()
        for name, parameter in model.named_parameters()
        if not parameter.requires_grad
    }
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.1)
    run(model).loss.backward()
    optimizer.step()
    after = dict(model.named_parameters())
    assert before.keys() == {name for name in after if "inventory" not in name} - {"router.logits"}
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert all(parameter.grad is not None for parameter in trained)


@pytest.mark.parametrize("family", ["t5", "llama"])
def test_several_sequences_per_example(family):
    model = skilled(BACKBONES[family]())
    ids = batch(4)["input_ids"]
    settings = {"max_new_tokens": 4, "min_new_tokens": 4, "num_return_sequences": 3}
    beams = model.generate(TASK_IDS, input_ids=ids, num_beams=4, **settings)
    assert beams.shape[0] == 12
    # The best of each example is what the search alone returns.
    best = model.generate(TASK_IDS, input_ids=ids, num_beams=4, max_new_tokens=4, min_new_tokens=4)
    assert torch.equal(beams[0::3], best)
    # With one token to choose from, sampling is greedy: each example thrice.
    drawn = model.generate(TASK_IDS, input_ids=ids, do_sample=True, top_k=1, **settings)
    greedy = model.generate(TASK_IDS, input_ids=ids, max_new_tokens=4, min_new_tokens=4)
    assert torch.equal(drawn, greedy.repeat_interleave(3, dim=0))


def test_beams_may_come_from_a_generation_config():
    model = skilled(tiny_t5())
    ids = batch(4)["input_ids"]
    expected = model.generate(TASK_IDS, input_ids=ids, num_beams=3, max_new_tokens=5)
    config = GenerationConfig(
        num_beams=3,
        max_new_tokens=5,
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=model.backbone.generation_config.eos_token_id,
    )
    found = model.generate(TASK_IDS, input_ids=ids, generation_config=config)
    assert torch.equal(found, expected)
    model.backbone.generation_config.num_beams = 3
    assert torch.equal(model.generate(TASK_IDS, input_ids=ids, max_new_tokens=5), expected)
    # An argument of the call outweighs both.
    greedy = model.generate(TASK_IDS, input_ids=ids, num_beams=1, max_new_tokens=5)
    assert greedy.shape[0] == 4


@pytest.mark.parametrize("n_beams", [1, 3])
@pytest.mark.parametrize("make", [tiny_t5, tiny_llama])
def test_generation_merges_each_layer_once(monkeypatch, make, n_beams):
    model = skilled(make())
    merges = []
    merge = LoRAInventory.merge

    def counted(inventory, weights):
        merges.append(id(inventory))
        return merge(inventory, weights)

    monkeypatch.setattr(LoRAInventory, "merge", counted)
    model.generate(
        TASK_IDS,
        input_ids=batch(4)["input_ids"],
        num_beams=n_beams,
        min_new_tokens=5,
        max_length=12,
    )
    assert sorted(merges) == sorted(id(x.inventory) for x in model.skilled_layers().values())


def test_gradient_checkpointing_replays_dropout_and_the_random_routing():
    found = []
    for checkpointing in (False, True):
        model = skilled(tiny_t5(dropout=0.3), train_backbone=True).double().train()
        if checkpointing:
            model.enable_gradient_checkpointing()
        torch.manual_seed(3)
        run(model).loss.backward()
        found.append(gradients(model))
    assert_same_gradients(*found)


@pytest.mark.parametrize(
    ("checkpointing", "threaded"), [(False, True), (True, True), (True, False)]
)
def test_two_forwards_before_one_backward_with_another_between(checkpointing, threaded):
    model = skilled(tiny_t5(), router="polytropon-plain").double().train()
    expected = []
    for ids in (TASK_IDS, TASK_IDS.roll(1)):
        model.zero_grad()
        run(model, ids).loss.backward()
        expected.append(gradients(model))
    model.zero_grad()
    if checkpointing:
        model.enable_gradient_checkpointing()
    loss = run(model).loss + run(model, TASK_IDS.roll(1)).loss
    thread = threading.Thread(target=loss.backward)
    with torch.no_grad(), model.slot.use(model.route(TASK_IDS.roll(2))):
        run(model, TASK_IDS.roll(3))
        if threaded:
            thread.start()
            thread.join()
        else:
            loss.backward()
    total = {name: gradient + expected[1][name] for name, gradient in expected[0].items()}
    assert_same_gradients(gradients(model), total)


def test_a_deep_copy_has_a_slot_of_its_own():
    model = skilled(tiny_t5())
    expected = run(model).logits
    twin = copy.deepcopy(model)
    assert twin.slot is not model.slot
    assert all(layer.slot is twin.slot for layer in twin.skilled_layers().values())
    # Used inside each other, they do not see each other's routing.
    with twin.slot.use(twin.route(torch.tensor([0]))):
        assert torch.equal(run(model).logits, expected)


def test_the_slot_is_emptied_after_an_error_and_the_model_goes_on():
    model = skilled(tiny_t5())
    expected = run(model).logits

    def fail(*_):
        raise KeyError("inside a layer")

    layer = list(model.skilled_layers().values())[5]
    handle = layer.register_forward_hook(fail)
    with pytest.raises(KeyError, match="inside a layer"):
        run(model)
    with pytest.raises(KeyError, match="inside a layer"):
        model.generate(TASK_IDS, input_ids=batch(4)["input_ids"], max_new_tokens=3)
    handle.remove()
    assert not model.slot._stack
    assert torch.equal(run(model).logits, expected)


def test_calling_the_backbone_alone_is_an_error():
    with pytest.raises(RuntimeError, match="without a routing"):
        skilled(tiny_t5()).backbone(**batch(4))


OUT = r"task id {} is out of range: ids are 0 to 2"
WRONG = {
    "received 4 rows for 3 .*one task id per example": lambda m: m(TASK_IDS[:3], **batch(4)),
    OUT.format(-1): lambda m: run(m, torch.tensor([0, -1, 1, 0])),
    OUT.format(3): lambda m: m.generate(torch.tensor([3]), input_ids=batch(1)["input_ids"]),
    "the backbone has no layer with skills; call attach_skills": lambda m: SkilledModel(
        nn.Linear(2, 2), m.router, m.slot
    ),
    "has the group 3, but the router has 3 groups": lambda m: SkilledModel(
        m.backbone, PolytroponRouter(3, 3, 2, 3), m.slot
    ),
    "has 3 skills or experts and 2 heads, but the router has 4 and 1": lambda m: SkilledModel(
        m.backbone, PolytroponRouter(m.router.n_groups, 3, 1, 4), m.slot
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_mistakes_are_named(message):
    with pytest.raises(ValueError, match=message):
        WRONG[message](skilled(tiny_t5(), n_heads=2))
