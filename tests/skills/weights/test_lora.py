"""Low-rank skills beside plain loops, and what users of PEFT set for LoRA, beside PEFT."""

from functools import partial

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from helpers.backbones import batch, fill, tiny_gpt2, tiny_llama
from helpers.command import train
from helpers.compare import relative_error
from helpers.gyms import write_config, write_gym
from helpers.skills import filled, gradients, mixing, skilled
from mttl.assembly.model import load_run
from mttl.checkpoints.saved_inventory import count_saved
from mttl.merging.low_rank_factors import mixture_factors
from mttl.routing import AverageRouter, PrivateRouter, RoutingSlot, Tokens, TopKRouter
from mttl.routing.token.choice import Assignment
from mttl.skills import LoRAInventory
from mttl.skills.attach import Level, Placement, attach_levels
from mttl.skills.gated import GatedInventory
from mttl.skills.weights.lora import low_rank_linear

peft = pytest.importorskip("peft")

MIXES = ["factors", "deltas", "outputs"]


@pytest.mark.parametrize("mix", MIXES)
def test_a_shared_input_side_is_that_of_skills_with_equal_ones(mix):
    shared = filled(LoRAInventory(4, 6, 3, rank=2, mix=mix, shared_down=True)).double()
    assert shared.down.shape == (1, 4, 2)
    own = LoRAInventory(4, 6, 3, rank=2, mix=mix).double()
    own.down.data.copy_(shared.down.expand(3, -1, -1))
    own.up.data.copy_(shared.up)
    x, y = torch.randn(5, 3, 4).double(), torch.randn(5, 3, 6).double()
    weights = mixing(5, 1, 3).double()
    torch.testing.assert_close(shared(x, y, weights), own(x, y, weights))
    torch.testing.assert_close(shared.delta(weights), own.delta(weights))
    # Rows are normalised: B's are mixed, and A is as it is.
    ups = torch.einsum("bk,kor->bor", weights[:, 0], shared.up)
    expected = y + x @ shared.down[0] @ ups.mT / 2
    torch.testing.assert_close(shared(x, y, weights), expected)


@pytest.mark.parametrize("rank", [1, 4])
def test_hydra_lora_is_a_plain_loop_over_tokens(rank):
    """y = s Σ_e ω_e B_e A x with ω the softmax of a linear map (HydraLoRA, equation 3)."""
    experts = filled(LoRAInventory(4, 6, 3, rank=rank, shared_down=True))
    router = TopKRouter(4, 3, top_k=3, init_scale=10.0)
    x = torch.randn(7, 4)
    found = experts.dispatch(x, router(Tokens(x)))
    for n in range(7):
        gates = (router.weight @ x[n]).softmax(0)
        hidden = experts.down[0].t() @ x[n]
        expected = sum(gates[e] * (experts.up[e] @ hidden) for e in range(3)) / rank
        torch.testing.assert_close(found[n], expected)
    found.sum().backward()
    assert experts.down.grad.shape == (1, 4, rank)
    assert experts.down.grad.any()


def arguments(bias=True, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    shapes = [(3, 4, 5), (6, 5), (6,), (3, 5, 2), (3, 6, 2)]
    drawn = [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]
    if not bias:
        drawn[2] = None
    return drawn


def plain(x, weight, bias, down, up):
    return functional.linear(x, weight, bias) + x @ down @ up.transpose(1, 2)


@pytest.mark.parametrize("bias", [True, False])
def test_gradients_of_all_arguments_agree_with_finite_differences(bias):
    drawn = [None if one is None else one.requires_grad_() for one in arguments(bias)]
    assert torch.autograd.gradcheck(low_rank_linear, drawn)


@pytest.mark.parametrize("needed", range(5))
def test_each_gradient_is_right_when_it_is_the_only_one(needed):
    # The backward pass skips what nobody needs; each branch must stand alone.
    found, expected = arguments(), arguments()
    for drawn, function in ((found, low_rank_linear), (expected, plain)):
        drawn[needed].requires_grad_()
        function(*drawn).square().sum().backward()
    torch.testing.assert_close(found[needed].grad, expected[needed].grad)
    assert all(one.grad is None for index, one in enumerate(found) if index != needed)


def test_inputs_and_gradients_that_are_not_contiguous():
    found, expected = arguments(), arguments()
    outcomes = []
    for drawn, function in ((found, low_rank_linear), (expected, plain)):
        x = drawn[0].transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
        drawn[1] = drawn[1].t().contiguous().t().requires_grad_()
        drawn[3].requires_grad_()
        y = function(x, *drawn[1:])
        # A sum over one axis sends back a gradient that is expanded, not stored.
        y.transpose(1, 2).sum(0).square().sum().backward()
        outcomes.append((y, x.grad, drawn[1].grad, drawn[3].grad))
    for one, other in zip(*outcomes, strict=True):
        torch.testing.assert_close(one, other)


def test_there_is_no_second_derivative():
    drawn = [one.requires_grad_() for one in arguments()]
    (gradient,) = torch.autograd.grad(
        low_rank_linear(*drawn).square().sum(), drawn[0], create_graph=True
    )
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


# The same float32 products in another order.
ROUNDING = 1e-5


@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        ({}, 1 / 8),
        ({"alpha": 16.0}, 2.0),
        ({"rslora": True}, 8**-0.5),
        ({"alpha": 4.0, "rslora": True}, 4 * 8**-0.5),
    ],
)
def test_alpha_is_divided_by_the_rank_or_its_root(settings, scale):
    assert LoRAInventory(4, 6, 2, rank=8, **settings).scale == pytest.approx(scale)


def peft_layer(weight, settings):
    """Return a layer of peft over a copy of a weight."""
    base = nn.Linear(*weight.shape[::-1], bias=False)
    base.weight = nn.Parameter(weight.clone())
    config = peft.LoraConfig(target_modules=["0"], **settings)
    return peft.get_peft_model(nn.Sequential(base), config).base_model.model[0]


def ours(weight, mix, n_skills=1, **settings):
    base = nn.Linear(*weight.shape[::-1], bias=False)
    base.weight = nn.Parameter(weight.clone(), requires_grad=False)
    inventory = LoRAInventory(*weight.shape[::-1], n_skills, mix=mix, **settings)
    inventory.init_from_base(base)
    return base, inventory


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("start", [True, "pissa"])
@pytest.mark.parametrize("rslora", [False, True])
def test_outputs_and_gradients_are_those_of_peft(mix, start, rslora):
    torch.manual_seed(0)
    weight, x = torch.randn(12, 10), torch.randn(1, 7, 10)
    # What a start subtracts is dropped with the skill; PEFT's base keeps all of the residual.
    dropout = 0.0 if start == "pissa" else 0.3
    settings = {"r": 4, "lora_alpha": 6, "use_rslora": rslora, "lora_dropout": dropout}
    theirs = peft_layer(weight, settings | {"init_lora_weights": start}).train()
    base, inventory = ours(
        weight,
        mix,
        rank=4,
        alpha=6.0,
        rslora=rslora,
        dropout=dropout,
        init="pissa" if start == "pissa" else "zero",
    )
    first, second = theirs.lora_A["default"].weight, theirs.lora_B["default"].weight
    if start == "pissa":  # singular vectors are those of one routine, signs included
        torch.testing.assert_close(inventory.down[0], first.t())
        torch.testing.assert_close(inventory.up[0], second)
    with torch.no_grad():
        for own, other in ((inventory.down[0], first.t()), (inventory.up[0], second)):
            other.add_(torch.randn(other.shape))
            own.copy_(other)
    weights = torch.ones(1, 1, 1)
    for training in (True, False):
        theirs.train(training)
        inventory.train(training)
        inventory.zero_grad()
        theirs.zero_grad()
        torch.manual_seed(1)
        found = inventory.combine_linear(x, base, inventory.merge(weights))
        torch.manual_seed(1)
        expected = theirs(x)
        assert relative_error(found, expected) < ROUNDING
        found.square().sum().backward()
        expected.square().sum().backward()
        assert relative_error(inventory.down.grad[0], first.grad.t()) < ROUNDING
        assert relative_error(inventory.up.grad[0], second.grad) < ROUNDING


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("init", ["pissa", "orthogonal"])
def test_fresh_skills_of_a_start_change_nothing_under_any_weights(mix, init):
    torch.manual_seed(0)
    weight, x = torch.randn(12, 16), torch.randn(5, 3, 16)
    base, inventory = ours(weight, mix, n_skills=3, rank=4, n_heads=2, init=init)
    y = base(x)
    weights = mixing(5, 2, 3)
    # The start is of the size of the weight: what is left of it is rounding.
    assert relative_error(inventory.combine_linear(x, base, inventory.merge(weights)), y) < ROUNDING
    assert inventory.delta(weights).abs().max() < 1e-5
    assert inventory.down.abs().max() > 0.1
    inventory.dropout = 0.5  # nor while inputs are dropped
    assert relative_error(inventory.combine_linear(x, base, inventory.merge(weights)), y) < ROUNDING


def test_a_start_reads_transposed_weights_and_refuses_too_few_directions():
    torch.manual_seed(0)
    layer = Conv1D(6, 6)
    inventory = LoRAInventory(6, 6, 1, rank=6, init="pissa", scale=1.0)
    inventory.init_from_base(layer)
    torch.testing.assert_close(inventory.up[0] @ inventory.down[0].t(), layer.weight.t())
    wide = LoRAInventory(6, 6, 2, rank=4, init="orthogonal")
    with pytest.raises(ValueError, match=r"needs 8 singular directions for 2 skills of rank 4"):
        wide.init_from_base(layer)
    with pytest.raises(ValueError, match="cannot read the weight of Identity"):
        wide.init_from_base(nn.Identity())


@pytest.mark.parametrize("mix", MIXES)
def test_what_a_start_subtracts_is_in_every_use(mix):
    torch.manual_seed(0)
    weight = torch.randn(6, 8)
    base, inventory = ours(weight, mix, n_skills=3, rank=2, init="orthogonal", scale=0.7)
    fill(inventory, 1)
    x, weights = torch.randn(3, 2, 8), torch.eye(3)[:, None]
    zero = torch.zeros(3, 2, 6)
    change = inventory.delta(weights)
    expected = torch.bmm(x, change.mT)
    torch.testing.assert_close(inventory(x, zero, weights), expected)
    tokens, places = x.flatten(0, 1), torch.arange(6)
    pairs = Assignment(places, places // 2, torch.ones(6), torch.ones(6, 3))
    torch.testing.assert_close(inventory.dispatch(tokens, pairs), expected.flatten(0, 1))
    packed = inventory.combine_segments(tokens, base, inventory.merge(weights), (2, 2, 2))
    torch.testing.assert_close(packed, base(tokens) + expected.flatten(0, 1))
    part = mixture_factors(inventory, weights[1])
    torch.testing.assert_close(part.up @ part.down.t(), change[1])
    hidden = inventory.hidden_units(x, zero)[:, :, 1]
    torch.testing.assert_close((hidden @ inventory.last_product()[1].t())[1], expected[1])
    inventory.reset_parameters()
    assert inventory.delta(weights).abs().max() < 1e-5


def test_a_gate_lets_its_skills_start_and_loaded_skills_do_not():
    for fresh in (True, False):
        backbone = nn.Sequential(nn.Linear(6, 6))
        placement = Placement(
            lambda i, o: GatedInventory(LoRAInventory(i, o, 2, rank=2, init="pissa")), ["0"]
        )
        attach_levels(backbone, [Level([placement], RoutingSlot(), fresh=fresh)])
        assert bool(backbone[0].inventory.skills.start_up.any()) == fresh


@pytest.mark.parametrize("kind", [partial(LoRAInventory, rank=2, dropout=0.4), "diff_pruning"])
def test_a_replay_draws_what_was_drawn(kind):
    inputs, found = batch(3), []
    for checkpointed in (False, True):
        model = skilled(tiny_llama(), inventory=kind, router=PrivateRouter).train()
        if checkpointed:
            model.enable_gradient_checkpointing()
        torch.manual_seed(3)
        model(torch.tensor([2, 0, 1]), **inputs).loss.backward()
        found.append(gradients(model))
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient)


@pytest.mark.parametrize("mix", MIXES)
def test_a_mixed_batch_drops_as_peft_with_each_examples_skill(mix):
    """The draws of a batch do not depend on who is in it: only the skills do."""
    x, weights = torch.randn(3, 5, 8), torch.eye(3)[:, None]
    base = nn.Linear(8, 6)
    inventory = filled(LoRAInventory(8, 6, 3, rank=2, dropout=0.4, mix=mix))
    torch.manual_seed(5)
    found = inventory.combine_linear(x, base, inventory.merge(weights))
    for skill in range(3):
        theirs = peft_layer(base.weight, {"r": 2, "lora_alpha": 1, "lora_dropout": 0.4}).train()
        with torch.no_grad():
            theirs.lora_A["default"].weight.copy_(inventory.down[skill].t())
            theirs.lora_B["default"].weight.copy_(inventory.up[skill])
        torch.manual_seed(5)
        expected = theirs(x)[skill] + base.bias
        torch.testing.assert_close(found[skill], expected)
    inventory.eval()
    plain = LoRAInventory(8, 6, 3, rank=2, mix=mix)
    plain.load_state_dict(inventory.state_dict())
    assert torch.equal(inventory(x, base(x), weights), plain(x, base(x), weights))


def test_fresh_skills_that_start_from_the_weight_change_no_answer_of_gpt2():
    """Whose weights are transposed; in evaluation nothing is dropped."""
    inputs = batch(2)
    made = partial(LoRAInventory, rank=2, dropout=0.5, init="orthogonal")
    where = {"targets": ["all"], "router": AverageRouter, "n_tasks": 1, "n_skills": 2}
    model = skilled(tiny_gpt2(), inventory=made, **where)
    for layer in model.skilled_layers().values():
        layer.inventory.reset_parameters()
    found = model(torch.zeros(2, dtype=torch.long), **inputs).logits
    assert relative_error(found, tiny_gpt2().eval()(**inputs).logits) < ROUNDING


def test_a_run_starts_from_its_backbone_and_is_loaded_without_looking(tmp_path, monkeypatch):
    config = write_config(
        tmp_path / "tiny.yaml",
        write_gym(tmp_path / "gym"),
        skills={"init": "orthogonal", "dropout": 0.2, "alpha": 2.0, "rslora": True},
        optim={"up_lr_ratio": 4.0},
    )
    overrides = ("trainer.max_steps=2", "trainer.val_check_interval=2", "data.evaluate=[]")
    folder = train(config, "started", *overrides).path
    saved = load_file(folder / "skills" / "skills.safetensors")
    monkeypatch.setattr(
        LoRAInventory, "init_from_base", lambda *_: pytest.fail("values are loaded")
    )
    built = load_run(folder)
    for path, layer in built.model.skilled_layers().items():
        inventory = layer.inventory
        assert inventory.scale == pytest.approx(2**0.5)
        assert torch.equal(inventory.start_down, saved[f"{path}.start_down"])
        assert not torch.equal(inventory.down, inventory.start_down)
    counted = sum(v.numel() for name, v in saved.items() if "start_" not in name)
    assert count_saved(folder / "skills" / "skills.safetensors") == counted
