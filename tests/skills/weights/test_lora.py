import pytest
import torch
from torch.nn import functional

from helpers.skills import filled, mixing
from mttl.routing import Tokens, TopKRouter
from mttl.skills import LoRAInventory
from mttl.skills.weights.low_rank import low_rank_linear

MIXES = ["factors", "deltas", "outputs"]


@pytest.mark.parametrize("mix", MIXES)
def test_equals_a_loop_over_examples_and_heads(mix):
    inventory = filled(LoRAInventory(4, 6, 3, rank=2, n_heads=2, mix=mix)).double()
    down, up = inventory.down, inventory.up
    x, y = torch.randn(5, 3, 4).double(), torch.randn(5, 3, 6).double()
    weights = mixing(5, 2, 3).double()
    expected = y.clone()
    for b in range(5):
        if mix == "factors":
            # Rows of A are input features, rows of B output features: two blocks of each.
            merged_down = torch.cat(
                [
                    sum(weights[b, h, k] * down[k, 2 * h : 2 * h + 2] for k in range(3))
                    for h in (0, 1)
                ]
            )
            merged_up = torch.cat(
                [sum(weights[b, h, k] * up[k, 3 * h : 3 * h + 3] for k in range(3)) for h in (0, 1)]
            )
            expected[b] += x[b] @ merged_down @ merged_up.t() / 2
        else:
            for k in range(3):
                change = x[b] @ down[k] @ up[k].t() / 2
                expected[b] += torch.cat(
                    [weights[b, 0, k] * change[:, :3], weights[b, 1, k] * change[:, 3:]], dim=1
                )
    torch.testing.assert_close(inventory(x, y, weights), expected)


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
def test_equals_the_sum_written_with_ordinary_operations(bias):
    drawn = arguments(bias)
    torch.testing.assert_close(low_rank_linear(*drawn), plain(*drawn))


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
