import pytest
import torch
from torch.nn import functional

from mttl.skills.weights.low_rank import low_rank_linear


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
