"""Frozen skills under attention: the plain equation, its gradients, and what is trained."""

from functools import partial

import pytest
import torch
from torch.func import functional_call

from helpers.adapterhub import adapterhub
from helpers.backbones import BACKBONES, batch, fill
from helpers.compare import assert_same
from helpers.modes import adapted
from mttl.adaptation.modes import apply_mode
from mttl.config.optim_schema import AdamW
from mttl.routing import AverageRouter, RoutingSlot
from mttl.skills import AdapterInventory, LoRAInventory, SkilledModel, attach_skills
from mttl.skills.attention import AttendedInventory
from mttl.training.optim import build_optimizer, parameter_roles

WEIGHTS = torch.full((2, 1, 3), 1 / 3)
IDS = torch.tensor([0, 1, 1])
LORA = partial(LoRAInventory, rank=2, scale=0.7)
ADAPTER = partial(AdapterInventory, hidden_features=3, scale=0.7, layer_norm=True)


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        *((LORA, {"query": q, "value": v}) for q in ("output", "input") for v in (True, False)),
        (ADAPTER, {}),
        (partial(ADAPTER, parallel=False), {}),
    ],
)
def test_equals_the_plain_computation_with_its_gradients(make, settings):
    """Every skill's output apart, in the words of the paper."""
    inventory = AttendedInventory(make(4, 6, 3), key_size=5, **settings)
    fill(inventory)
    attention = inventory.double().attention
    x = torch.randn(2, 3, 4, dtype=torch.double, requires_grad=True)
    y = torch.randn(2, 3, 6, dtype=torch.double, requires_grad=True)
    alone = torch.eye(3).double()[:, None]
    outputs = torch.stack(
        [inventory.skills(x, y, alone[k : k + 1].expand(2, 1, 3)) - y for k in range(3)], dim=2
    )  # (B, L, K, O)
    query = (x if inventory.query == "input" else y) @ attention.query.t() + attention.query_bias
    scores = torch.einsum("bld,blkd->blk", query, outputs @ attention.key.t())
    expected = (scores.softmax(-1).unsqueeze(-1) * outputs).sum(2)
    if attention.value_change is not None:
        expected = expected @ (torch.eye(6).double() + attention.value_change).t()
    expected = y + expected
    found = inventory(x, y, WEIGHTS.double())
    assert_same(found, expected, [x, y, *attention.parameters()])


@pytest.mark.parametrize("value", [True, False], ids=["dynamic", "static"])
@pytest.mark.parametrize("parallel", [True, False])
def test_adapters_under_attention_are_those_of_adapterhubs_fusion(parallel, value):
    """As its layer fuses adapters, but for the model's residual connection and norm behind it."""
    hub = adapterhub()
    config = hub.configuration.ParBnConfig if parallel else hub.configuration.SeqBnConfig
    kind = hub.modeling.ParallelAdapter if parallel else hub.modeling.Adapter
    own = config(scaling=0.7, original_ln_before=False, original_ln_after=False)
    adapter = kind("skill", 6, 4, own)
    # What theirs has, too, and has switched off in its two configurations: a temperature that falls
    # from 50 to 1, and a residual connection inside the sum. Its matrix of values starts with 1e-6
    # beside the diagonal, ours as the identity; here both are far from that.
    form = "DynamicAdapterFusionConfig" if value else "StaticAdapterFusionConfig"
    fusion_config = getattr(hub.configuration, form)()
    fusion = hub.modeling.BertFusion(fusion_config, 6, 0.0).double()

    settings = {"hidden_features": 4, "scale": 0.7, "parallel": parallel}
    query = "input" if parallel else "output"
    inventory = AttendedInventory(AdapterInventory(6, 6, 3, **settings), value=value, query=query)
    fill(inventory)
    skills, attention = inventory.double().skills, inventory.attention
    x, y = torch.randn(2, 2, 3, 6, dtype=torch.double).requires_grad_().unbind()
    stacks = {
        "adapter_down.0.weight": skills.blocks.up,
        "adapter_down.0.bias": skills.blocks.up_bias,
        "adapter_up.weight": skills.blocks.down,
        "adapter_up.bias": skills.blocks.down_bias,
    }
    h, asks, residual = adapter.pre_forward(y, x, None, fusion_config=fusion_config)
    singles = [{name: part[k] for name, part in stacks.items()} for k in range(3)]
    made = [functional_call(adapter, one, (h, residual), strict=True)[2] for one in singles]
    outputs = torch.stack(made, dim=2)
    bias = torch.randn(6, dtype=torch.double, requires_grad=True)
    parts = {
        "query.weight": attention.query,
        "query.bias": attention.query_bias,
        "key.weight": attention.key,
        "key.bias": bias,
    }
    if value:
        parts["value.weight"] = torch.eye(6).double() + attention.value_change
    attended = functional_call(fusion, parts, (asks, outputs, outputs, residual), strict=True)
    expected = adapter.post_forward(attended, y, x, None)
    if parallel:  # where it fuses these, the block's input is added, which one of them does not add
        expected = expected - x
    found = inventory(x, y, WEIGHTS.double())
    # The same double-precision sums in another order: some dozens of roundings of 1e-16.
    by = [x, y, *attention.parameters()]
    towards = assert_same(found, expected, by, rtol=1e-12, atol=1e-12)
    # A bias of the keys, which ours has not, adds the same to all scores.
    assert torch.autograd.grad((expected * towards).sum(), bias)[0].abs().max() < 1e-12


def model_of(family="t5", *, adapters=False, **settings):
    backbone, slot = BACKBONES[family]().requires_grad_(False), RoutingSlot()

    def make(i, o):
        size = {"hidden_features": 3} if adapters else {"rank": 2}
        kind = AdapterInventory if adapters else LoRAInventory
        return AttendedInventory(kind(i, o, 3, **size), **settings)

    attachment_point = "block" if adapters else "linear"
    attachment = attach_skills(
        backbone, make, targets=["attention"], slot=slot, attachment_point=attachment_point
    )
    model = SkilledModel(backbone, AverageRouter(len(attachment.groups), 2, 1, 3), slot).eval()
    for seed, layer in enumerate(model.skilled_layers().values()):
        fill(layer.inventory, seed)
    return model


def test_only_the_attention_is_trained_at_the_rate_of_the_skills():
    model = model_of()
    roles = parameter_roles(model)
    assert set(roles.values()) == {"token_router"}
    assert all(".inventory.attention." in name for name in roles)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = build_optimizer(AdamW(kind="adamw", lr=1e-2, router_lr=1.0), model)
    assert {group["lr"] for group in optimizer.param_groups} == {1e-2}
    model.train()
    routing = model.route(IDS)
    with model.slot.use(routing):
        loss = model.backbone(**batch(3)).loss
    # The distance of every value matrix is owed.
    owed = routing.losses["fusion"]
    changes = [v for name, v in model.named_parameters() if name.endswith("value_change")]
    torch.testing.assert_close(owed, 0.01 * sum(value.square().sum() for value in changes))
    (loss + owed).backward()
    optimizer.step()
    changed = {n for n, value in model.state_dict().items() if not torch.equal(value, before[n])}
    assert changed == set(roles)


@pytest.mark.parametrize("settings", [{"value": False}, {"value_penalty": 0.0}, {}])
def test_nothing_is_owed_without_penalty_or_outside_training(settings):
    model = model_of(**settings).train(bool(settings))
    routing = model.route(IDS)
    with model.slot.use(routing):
        model.backbone(**batch(3))
    assert routing.losses == {}


@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.parametrize("family", ["t5", "llama"])
def test_generation_with_beams_equals_one_example_at_a_time(family, adapters):
    model = model_of(family, adapters=adapters)
    inputs = {"input_ids": batch(3)["input_ids"]}
    settings = {"max_new_tokens": 4, "num_beams": 2, "do_sample": False, "min_new_tokens": 4}
    together = model.generate(IDS, **inputs, **settings)
    for row in range(3):
        alone = model.generate(
            IDS[row : row + 1], input_ids=inputs["input_ids"][row : row + 1], **settings
        )
        assert torch.equal(together[row], alone[0])


def test_adaptation_takes_the_attention_for_the_router():
    model = model_of()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for mode, parts in (
        ("router_only", {"attention"}),
        ("skills_only", {"skills"}),
        ("all", {"attention", "skills"}),
        ("zero_shot", set()),
    ):
        with adapted(model, mode, 1):
            trained = [n for n, value in model.named_parameters() if value.requires_grad]
            assert {name.split(".inventory.")[1].split(".")[0] for name in trained} == parts
            with torch.no_grad():
                for value in model.parameters():
                    if value.requires_grad:
                        value.add_(1)
        after = model.state_dict()
        assert all(torch.equal(after[name], value) for name, value in before.items())
        assert set(parameter_roles(model).values()) == {"token_router"}
    with pytest.raises(ValueError, match="mode 'average' does not work with a fusion, whose"):
        apply_mode(model, "average")
    apply_mode(model, "from_scratch")
    attention = next(iter(model.skilled_layers().values())).inventory.attention
    assert not attention.value_change.any()
