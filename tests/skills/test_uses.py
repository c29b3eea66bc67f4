"""What every kind of inventory promises, in each use that it has."""

import copy

import pytest
import torch
from safetensors.torch import load, save
from torch import nn

from helpers.backbones import fill
from helpers.compare import assert_same
from helpers.pairs import ASSIGNMENTS, N, loop_over_pairs, random_pairs
from helpers.skills import INVENTORIES, OTHERS, filled, make_kind, mixing
from mttl.moe import FeedForwardExperts, MoELayer
from mttl.routing import RoutingSlot, TopKRouter
from mttl.skills import KINDS, SkilledLinear, kind_for
from mttl.skills.blocks.adapter import BottleneckInventory
from mttl.skills.gated import GatedInventory
from mttl.skills.inventory import USES

I, O, K, H, B, L, T = 8, 12, 4, 2, 4, 5, 3  # noqa: E741
ALL = [*INVENTORIES, *OTHERS]
HAVING = {use: [name for name in ALL if use in make_kind(name, I, O, K).uses] for use in USES}
TASK, TOKEN = HAVING["task"], HAVING["token"]
COMPOSED = {
    "dense": {},
    "sparse": {"sparsity": 0.7},
    "lora": {"rank": 2, "scale": 0.3},
    "krona": {"scale": 0.3},
    "intrinsic": {"dimension": 7},
}
SHAPES = [(6,), (5, 4), (4, 3, 2, 2), (1,), ()]
PRODUCTS = ("lora", "krona")  # of vectors they make nothing
TENSORS = [
    (kind, shape) for kind in COMPOSED for shape in SHAPES if kind not in PRODUCTS or shape[1:]
]


def layer(kind, n_heads=1, dtype=torch.float64):
    """Return a base layer and skills of it that change much."""
    made = make_kind(kind, I, O, K, **({"n_heads": n_heads} if kind in INVENTORIES else {}))
    return nn.Linear(I, O).to(dtype), filled(made).to(dtype)


def mixed(kind, inventory, base, x, weights):
    return inventory.combine_linear(x, base, inventory.merge(weights))


def tensor_skills(kind, shape, **settings):
    made = KINDS[kind].of_tensor(shape, K, **COMPOSED[kind] | settings).double()
    fill(made)
    return made


@pytest.mark.parametrize("kind", [kind for kind in TASK if "sparse" not in kind])
def test_skills_that_begin_alike_are_one_under_any_weights(kind):
    """Sparse ones keep places of their own."""
    base, inventory = layer(kind)
    x = torch.randn(B, L, I, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    single = torch.eye(K, dtype=torch.float64)[:1].expand(B, 1, K)
    given = mixing(B, 1, K).double()
    given = given / given.sum(-1, keepdim=True)
    expected = mixed(kind, inventory, base, x, single)
    assert not torch.allclose(mixed(kind, inventory, base, x, given), expected)
    inventory.make_identical()
    torch.testing.assert_close(mixed(kind, inventory, base, x, given), expected)


@pytest.mark.parametrize("kind", ALL)
def test_some_skills_are_drawn_anew_and_the_others_stay(kind):
    """A new one changes nothing, as at the start; so where it stands alone it is the bare layer.

    With trained parameters of all skills together it changes what they say.
    """
    base, skills = layer(kind)
    before = {name: value.clone() for name, value in skills.state_dict().items()}
    skills.reset_skills(torch.tensor([1, 3]))
    stacked = [name for name, value in skills.named_parameters() if len(value) == K]
    for name, value in skills.state_dict().items():
        stays = [0, 2] if name in stacked else slice(None)
        assert torch.equal(value[stays], before[name][stays]), name
    assert any(not torch.equal(skills.state_dict()[name][1], before[name][1]) for name in stacked)
    if skills.common_parameters:
        return
    x = torch.randn(2, L, I, dtype=torch.float64)
    alone = torch.eye(K, dtype=torch.float64)[[1, 3]].unsqueeze(1).expand(-1, skills.n_heads, -1)
    torch.testing.assert_close(mixed(kind, skills, base, x, alone), base(x))


def plain_changes(inventory, shape):
    """The K changes of a tensor, entry by entry."""
    if hasattr(inventory, "change"):
        return list(inventory.change)
    if hasattr(inventory, "vector"):  # projected by the matrix that unit vectors become
        matrix = inventory._project(torch.eye(inventory.dimension).double()).flatten(1)
        return [(vector @ matrix).reshape(shape) for vector in inventory.vector]
    found = []
    for k in range(K):
        if hasattr(inventory, "left"):
            flat = 0.3 * torch.kron(inventory.left[k], inventory.right[k])
        elif hasattr(inventory, "up"):
            flat = 0.3 * inventory.up[k] @ inventory.down[k].t()
        else:
            flat = torch.zeros(shape.numel(), dtype=torch.float64)
            for value, place in zip(
                inventory.values[k], inventory.indices[k].tolist(), strict=True
            ):
                flat = flat + value * (torch.arange(len(flat)) == place)
        found.append(flat.reshape(shape))
    return found


def use(kind, name, inventory, dtype=torch.float64):
    """Run an inventory in one of its uses, on inputs that are the same every time."""
    draw = torch.Generator().manual_seed(5)
    x = torch.randn(B, L, I, generator=draw, dtype=torch.float64).to(dtype)
    with torch.random.fork_rng():
        torch.manual_seed(6)
        base, given = nn.Linear(I, O).to(dtype), ASSIGNMENTS["random"]()
    weights = mixing(B, 1, K).to(dtype)
    if name == "task":
        return mixed(kind, inventory, base, x, weights)
    if name == "token":
        tokens = x.flatten(0, 1)[:N]
        return inventory.dispatch(base(tokens) if inventory.reads == "output" else tokens, given)
    return inventory.compose(base.weight, weights)


# Kinds that act before the layer has an output.
MASKS = ("supermask", "masked_sparse", "head_mask", "head_mask, soft", "dora")
SCORED = ("supermask", "masked_sparse")
HARD = (*SCORED, "head_mask")  # a rounding may flip a gate
CASES = [(kind, name) for name in USES for kind in HAVING[name]]


@pytest.mark.parametrize("n_heads", [1, H])
@pytest.mark.parametrize("kind", TASK)
def test_a_mixed_batch_equals_plain_layers_one_example_at_a_time(kind, n_heads):
    if kind in OTHERS and n_heads > 1:
        pytest.skip("a case of one head")
    base, inventory = layer(kind, n_heads)
    x = torch.randn(B, L, I, dtype=torch.float64, requires_grad=True)
    weights = mixing(B, n_heads, K).double().requires_grad_()
    y, rows = mixed(kind, inventory, base, x, weights), []
    for b in range(B):
        if isinstance(inventory, GatedInventory):
            expected = gated(inventory, base, x[b], weights[b])
        elif inventory.attachment_point == "block":
            expected = behind_or_beside(inventory, x[b], base(x[b]), weights[b, 0])
        else:
            expected = nn.functional.linear(
                x[b], *inventory.fold(base.weight, base.bias, weights[b])
            )
        rows.append(expected)
    assert_same(y, torch.stack(rows), [x, weights, *inventory.parameters()])
    if kind not in MASKS:
        torch.testing.assert_close(inventory(x, base(x), weights), y)


def adapter(inventory, h, weights):
    """What one network of averaged parameters makes of an adapter's input."""
    if not isinstance(inventory, BottleneckInventory):  # its own test has the definition
        rows = h.reshape(1, -1, h.shape[-1])
        nothing = rows.new_zeros(1, rows.shape[1], O)
        return inventory(rows, nothing, weights[None, None]).reshape(*h.shape[:-1], O)
    if inventory.layer_norm:
        h = (h - h.mean(-1, keepdim=True)) / (h.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    down, down_bias, up, up_bias = averaged_projections(inventory, weights)
    hidden = inventory.activation(h @ down.t() + down_bias)
    return inventory.scale * (hidden @ up.t() + up_bias)


def averaged_projections(inventory, weights):
    if hasattr(inventory, "rule"):  # factors are averaged apart: see the test against AdapterHub
        return [part[0] for part in inventory.projections(weights[None, None])]
    return [torch.tensordot(weights, part, 1) for part in inventory.projections()]


def gated(inventory, base, x, weights):
    skills, y = inventory.skills, base(x)
    with_skills = nn.functional.linear(x, *skills.fold(base.weight, base.bias, weights))
    gate, shift = weights @ inventory.weight, weights @ inventory.bias
    return y + (x @ gate.t() + shift).sigmoid() * (with_skills - y)


def behind_or_beside(inventory, x, y, weights):
    h = x if inventory.reads == "input" else y
    if getattr(inventory, "mix", "factors") == "factors":
        return y + adapter(inventory, h, weights)
    only = torch.eye(K, dtype=weights.dtype)
    return y + sum(weights[k] * adapter(inventory, h, only[k]) for k in range(K))


def alone(kind, inventory, base):
    """What one expert adds to the base output of one token, as a function of what it reads."""
    one_hot = torch.eye(K).double()[:, None]
    if inventory.attachment_point == "block":
        return lambda row, e: adapter(inventory, row, one_hot[e, 0])
    if kind == "ia3":  # the base output is what it reads
        ones = torch.ones(O, 1).double()
        return lambda row, e: row * (inventory.fold(ones, None, one_hot[e])[0] - 1)[:, 0]
    nothing, no_bias = torch.zeros(O, I).double(), torch.zeros(O).double()

    def change(row, e):
        weight, bias = inventory.fold(nothing, no_bias, one_hot[e])
        return weight @ row + bias

    return change


@pytest.mark.parametrize("name", ASSIGNMENTS)
@pytest.mark.parametrize("kind", TOKEN)
def test_tokens_that_choose_equal_a_loop_over_pairs_with_gradients(kind, name):
    base, inventory = layer(kind)
    given = ASSIGNMENTS[name]()
    n_in = O if inventory.reads == "output" else I
    x = torch.randn(len(given.probabilities), n_in).double().requires_grad_()
    given.weights.requires_grad_()
    leaves = [x, given.weights, *inventory.parameters()]
    found = inventory.dispatch(x, given)
    expected = loop_over_pairs(alone(kind, inventory, base), x, given, O)
    assert_same(found, expected, leaves if len(x) else [])


@pytest.mark.parametrize(("kind", "shape"), TENSORS)
def test_a_composed_tensor_is_the_common_one_and_the_weighted_changes(kind, shape):
    inventory = tensor_skills(kind, shape)
    base, weights = torch.randn(shape).double(), mixing(T, 1, K).double()
    leaves = [base.requires_grad_(), weights.requires_grad_(), *inventory.parameters()]
    changes = plain_changes(inventory, base.shape)
    expected = torch.stack(
        [base + sum(weights[t, 0, k] * changes[k] for k in range(K)) for t in range(T)]
    )
    found = inventory.compose(base, weights)
    assert_same(found, expected, leaves)
    if shape:
        torch.testing.assert_close(base + inventory.delta(weights).view(-1, *shape), expected)


@pytest.mark.parametrize("kind", ALL)
def test_fresh_skills_change_nothing(kind):
    inventory, base, x = make_kind(kind, I, O, K), nn.Linear(I, O), torch.randn(B, L, I)
    for again in (False, True):
        if again:
            fill(inventory)
            inventory.reset_parameters()
        if "task" in inventory.uses and kind not in SCORED:
            weights = torch.randn(B, 1, K)  # also where rows do not sum to 1
            assert torch.equal(mixed(kind, inventory, base, x, weights), base(x))
            if kind not in MASKS:
                assert torch.equal(inventory(x, base(x), weights), base(x))
        if "token" in inventory.uses:
            read = torch.randn(N, O if inventory.reads == "output" else I)
            assert not inventory.dispatch(read, random_pairs()).any()
        if "composed" in inventory.uses:
            weights = torch.randn(T, 1, K)
            found = inventory.compose(base.weight, weights)
            assert torch.equal(found, base.weight.expand(T, O, I))


@pytest.mark.every(4)
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_copy_and_a_saved_state_give_the_same_bit_for_bit(kind, name):
    _, inventory = layer(kind)
    expected = use(kind, name, inventory)
    twin = copy.deepcopy(inventory)
    assert torch.equal(use(kind, name, twin), expected)
    fill(twin, seed=9)
    assert torch.equal(use(kind, name, inventory), expected)  # they share nothing
    restored = make_kind(kind, I, O, K).double()
    use(kind, name, restored)  # whatever is kept between passes is of another state
    restored.load_state_dict(load(save(inventory.state_dict())))
    assert torch.equal(use(kind, name, restored), expected)


@pytest.mark.every(2)
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_autocast_computes_in_bfloat16_and_keeps_float32_gradients(kind, name):
    """Skills that are in bfloat16 themselves run too."""
    _, inventory = layer(kind, dtype=torch.float32)
    expected = use(kind, name, inventory, torch.float32)
    with torch.autocast("cpu", torch.bfloat16, enabled=name != "composed"):
        found = use(kind, name, inventory, torch.float32)
    if name != "composed":  # composing switches autocast off: small changes would be lost
        assert found.dtype == torch.bfloat16
    if kind not in HARD:
        # bfloat16 has 8 bits of mantissa: a few roundings of 2^-9 each.
        torch.testing.assert_close(found.float(), expected, rtol=0.05, atol=0.08)
    found.float().square().sum().backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in inventory.parameters())
    assert all(parameter.grad.isfinite().all() for parameter in inventory.parameters())
    half = use(kind, name, inventory.to(torch.bfloat16), torch.bfloat16)
    assert half.dtype == torch.bfloat16
    if kind not in HARD:
        torch.testing.assert_close(half.float(), expected, rtol=0.05, atol=0.1)


@pytest.mark.parametrize("kind", [kind for kind in TASK if kind not in HARD])
def test_a_bfloat16_base_with_float32_skills(kind):
    base, inventory = layer(kind, dtype=torch.float32)
    x, weights = torch.randn(B, L, I), mixing(B, 1, K)
    expected = mixed(kind, inventory, base, x, weights)
    base.to(torch.bfloat16)
    y = mixed(kind, inventory, base, x.bfloat16(), weights)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), expected, rtol=0.05, atol=0.05)
    y.float().square().sum().backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in inventory.parameters())


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_every_parameter_gets_a_gradient(kind, name):
    _, inventory = layer(kind)
    use(kind, name, inventory).square().sum().backward()
    for key, parameter in inventory.named_parameters():
        assert parameter.grad.flatten(1).any(dim=1).all(), key  # of every skill


@pytest.mark.parametrize("kind", [kind for kind in ALL if kind not in SCORED])
def test_skills_that_nothing_uses_have_a_gradient_of_zero(kind):
    # Data-parallel training waits for the gradient of every parameter on every process.
    base, inventory = layer(kind)
    x = torch.randn(N, L, I).double()
    if "task" in inventory.uses:
        weights = torch.zeros(N, 1, K).double()
        weights[..., 2] = 1
        mixed(kind, inventory, base, x, weights).square().sum().backward()
        _only_the_third(inventory)
    if "token" in inventory.uses:
        read = torch.randn(N, O if inventory.reads == "output" else I).double()
        inventory.dispatch(read, ASSIGNMENTS["all to one"]()).square().sum().backward()
        _only_the_third(inventory)


def _only_the_third(inventory):
    for parameter in inventory.stacks():
        used = parameter.grad.flatten(1).any(dim=1)
        assert used.tolist() == [False, False, True, False]
        parameter.grad = None


@pytest.mark.every(2)
@pytest.mark.parametrize("kind", INVENTORIES)
def test_gradients_agree_with_finite_differences(kind):
    base, inventory = layer(kind, H)
    base.requires_grad_(False)
    names = [name for name, _ in inventory.named_parameters()]

    def run(x, weights, *skills):
        state = dict(zip(names, skills, strict=True))
        return torch.func.functional_call(inventory, state, (x, base(x), weights))

    x = torch.randn(2, 2, I).double().requires_grad_()
    weights = mixing(2, H, K).double().requires_grad_()
    skills = [parameter.detach().clone().requires_grad_() for parameter in inventory.parameters()]
    assert torch.autograd.gradcheck(run, (x, weights, *skills))


def test_uses_that_a_kind_has_not_are_refused():
    experts, supermask = FeedForwardExperts(I, 3, O, K), make_kind("supermask", I, O, K)
    message = "FeedForwardExperts cannot be mixed by task, only chosen by token; use another ki"
    with pytest.raises(ValueError, match=message):
        SkilledLinear(nn.Linear(I, O), experts, RoutingSlot(), 0)
    message = "SupermaskInventory cannot be chosen by token, only mixed by task; use another ki"
    with pytest.raises(ValueError, match=message):
        MoELayer(supermask, TopKRouter(I, K), RoutingSlot(), base=nn.Linear(I, O))
    with pytest.raises(ValueError, match=message):
        supermask.dispatch(torch.randn(N, I), random_pairs())
    for kind in ("ia3", "adapter", *SCORED):
        with pytest.raises(NotImplementedError, match="does not add to the base weight"):
            make_kind(kind, I, O, K).delta(mixing(B, 1, K))


@pytest.mark.parametrize("use", USES)
def test_the_registry_knows_the_kinds_of_every_use(use):
    fit = [kind for kind in KINDS if use in KINDS[kind].uses]
    assert "lora" in fit
    assert [kind_for(use, kind) for kind in fit] == [KINDS[kind] for kind in fit]
    for kind in (*(KINDS.keys() - fit), "fourier"):
        message = rf"kind \('{kind}'\) cannot be {USES[use]}; choose one of {', '.join(fit)}$"
        with pytest.raises(ValueError, match=message):
            kind_for(use, kind)


@pytest.mark.parametrize("kind", TASK)
def test_segments_are_examples_of_other_lengths(kind):
    """Tokens of all examples in a row, against every example alone; gradients too."""
    base, inventory = layer(kind)
    segments = (3, 1, 4, 2)
    draw = torch.Generator().manual_seed(5)
    x = torch.randn(sum(segments), I, generator=draw, dtype=torch.float64, requires_grad=True)
    weights = mixing(len(segments), 1, K).double().requires_grad_()
    found = inventory.combine_segments(x, base, inventory.merge(weights), segments)
    alone = zip(x.split(segments), weights.split(1), strict=True)
    expected = [mixed(kind, inventory, base, own[None], one)[0] for own, one in alone]
    assert_same(found, torch.cat(expected), [x, weights, *inventory.parameters()])
