"""One operation for the linear layers of all experts, against a loop over the experts."""

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.compare import assert_same, relative_error
from mttl.aggregation import grouped
from mttl.aggregation.grouped import _has_kernel, grouped_linear, times_transpose, write_outer

# Rows of each expert: none, one, few, and more than any special case; and all in one place.
SIZES = [[0, 1, 2, 3, 5, 40], [0, 0, 64, 0], [1, 1, 1], [7], [0, 0]]
# Float32 sums of at most 64 products, in another order.
ROUNDING = 1e-5


def loop(x: Tensor, weight: Tensor, bias: Tensor | None, sizes: list[int]) -> Tensor:
    parts = x.split(sizes)
    y = torch.cat([rows @ weight[e].t() for e, rows in enumerate(parts)])
    return y if bias is None else y + bias.repeat_interleave(torch.tensor(sizes), dim=0)


def arguments(sizes: list[int], *, bias: bool = True) -> list[Tensor | None]:
    x, weight = torch.randn(sum(sizes), 16), torch.randn(len(sizes), 8, 16)
    given = [x, weight, torch.randn(len(sizes), 8) if bias else None]
    return [None if tensor is None else tensor.requires_grad_() for tensor in given]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("onednn", [True, False])
def test_equals_a_loop_with_gradients(sizes, kernel, onednn, monkeypatch) -> None:
    monkeypatch.setattr(grouped, "_has_kernel", lambda *given: kernel)
    monkeypatch.setattr(grouped, "MANY_PRODUCTS", 1 if onednn else 2**40)
    given = arguments(sizes)
    found = grouped_linear(*given, torch.tensor(sizes))
    assert_same(found, loop(*given, sizes), given, atol=ROUNDING, rtol=1e-4)


def test_only_wanted_gradients_are_computed() -> None:
    x, weight, bias = arguments([2, 3])
    for wanted in (x, weight, bias):
        given = [tensor if tensor is wanted else tensor.detach() for tensor in (x, weight, bias)]
        y = grouped_linear(*given, torch.tensor([2, 3]))
        assert torch.autograd.grad(y.sum(), wanted)[0].shape == wanted.shape


class LargeTensors(TorchDispatchMode):
    """Counts tensors of one shape that operations allocate."""

    def __init__(self, shape: torch.Size) -> None:
        super().__init__()
        self.shape, self.storages = shape, set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.shape == self.shape:
            self.storages.add(result.data_ptr())
        return result


def test_the_backward_builds_one_gradient_of_the_weight() -> None:
    sizes = [5] * 8
    x, weight, _ = arguments(sizes, bias=False)
    counts = torch.tensor(sizes)

    def count(y: Tensor) -> int:
        weight.grad = None
        with LargeTensors(weight.shape) as large:
            y.backward(torch.ones_like(y))
        return len(large.storages)

    assert count(grouped_linear(x, weight, None, counts)) == 1
    # The count sees what it is meant to: indexing fills a full-size gradient per expert.
    assert count(loop(x, weight, None, sizes)) > 1


def test_autocast_decides_the_dtype() -> None:
    x, weight, bias = arguments([2, 3])
    with torch.autocast("cpu", torch.bfloat16):
        y = grouped_linear(x, weight, bias, torch.tensor([2, 3]))
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert weight.grad.dtype == x.grad.dtype == torch.float32
    # Eight bits of mantissa, sums of 16 products.
    assert relative_error(y.float(), loop(x, weight, bias, [2, 3])) < 2e-2


def test_bfloat16_kernel_equals_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, _ = (None if t is None else t.detach().bfloat16() for t in arguments([2, 3, 8]))
    counts = torch.tensor([2, 3, 8])
    other = grouped_linear(x, weight, None, counts)
    monkeypatch.setattr(grouped, "_has_kernel", lambda *given: True)
    one = grouped_linear(x, weight, None, counts)
    assert relative_error(one.float(), other.float()) < 1e-2  # one rounding to 8 bits


def test_the_kernel_is_for_gpus_and_whole_rows_of_16_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    generation = [(9, 0)]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: generation[0])
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert _has_kernel(gpu, torch.bfloat16, 8, 16)
    assert not _has_kernel(gpu, torch.bfloat16, 7, 16)
    assert not _has_kernel(gpu, torch.float32, 8, 16)
    assert not _has_kernel(cpu, torch.bfloat16, 8, 16)
    generation[0] = (7, 5)
    assert not _has_kernel(gpu, torch.bfloat16, 8, 16)


@pytest.mark.parametrize("n_rows", [0, 1, 2, 4, 5, 33])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("many", [1, 2**40])
def test_products(n_rows, dtype, many, monkeypatch) -> None:
    monkeypatch.setattr(grouped, "MANY_PRODUCTS", many)
    x, weight = torch.randn(n_rows, 6, dtype=dtype), torch.randn(4, 6, dtype=dtype)
    torch.testing.assert_close(times_transpose(x, weight), x @ weight.t(), atol=1e-5, rtol=1e-5)
    flipped = weight.t().contiguous().t()
    torch.testing.assert_close(times_transpose(x, flipped), x @ weight.t(), atol=1e-5, rtol=1e-5)
    left, out = torch.randn(n_rows, 4, dtype=dtype), torch.full((4, 6), torch.nan, dtype=dtype)
    write_outer(out.fill_(7), left, x)
    torch.testing.assert_close(out, left.t() @ x, atol=1e-5, rtol=1e-5)
