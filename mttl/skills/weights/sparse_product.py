r"""The outputs of K sparse matrices, mixed per example, without any dense weight.

For example b and output feature o of head h, :math:`y_{bo} = \sum_k w_{bhk} (\Phi_k x_b)_o`. The K
matrices are one sparse matrix of K · O rows; its product with all positions of the batch at once
is weighed and summed over the skills. The backward pass needs the transpose and, for the values,
the products of gradients and inputs at the support alone.
"""

import warnings
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

LARGEST_INT32 = 2**31 - 1


class Pattern(NamedTuple):
    """Where K sparse matrices (O, I) have entries, in the two orders in which products read them.

    Starts are those of rows: K · O rows of all matrices, or the I rows of the transpose. Columns
    follow the entries by row; ``order_t`` has the place of the transpose's in the first order.
    """

    shape: tuple[int, int]
    starts: Tensor
    columns: Tensor
    starts_t: Tensor
    columns_t: Tensor
    order_t: Tensor


def make_pattern(indices: Int[Tensor, "K n"], shape: tuple[int, int]) -> Pattern:
    """Return the pattern of K supports."""
    n_skills, _ = indices.shape
    out_features, in_features = shape
    skill = torch.arange(n_skills, device=indices.device)[:, None]
    rows = (indices // in_features + skill * out_features).flatten()
    columns = (indices % in_features).flatten()
    order = torch.argsort(columns, stable=True)  # rows ascend already
    # Products count in int32 where they can: half the memory, and no copy inside them.
    small = max(len(rows), n_skills * out_features, in_features) <= LARGEST_INT32
    dtype = torch.int32 if small else torch.int64
    return Pattern(
        shape,
        _starts(rows, n_skills * out_features).to(dtype),
        columns.to(dtype),
        _starts(columns, in_features).to(dtype),
        rows[order].to(dtype),
        order,
    )


def sparse_outputs(
    x: Float[Tensor, "B L I"],
    values: Float[Tensor, "K n"],
    weights: Float[Tensor, "B H K"],
    pattern: Pattern,
) -> Float[Tensor, "B L O"]:
    """Return the mixed outputs of K sparse matrices, of values in the order of their supports.

    Gradients are exact for ``x``, ``values`` and ``weights``; there is no second derivative.
    """
    return _SparseOutputs.apply(x, values, weights, pattern)  # type: ignore[return-value]


class _SparseOutputs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, values: Tensor, weights: Tensor, pattern: Pattern) -> Tensor:
        ctx.save_for_backward(x, values, weights)
        ctx.pattern = pattern
        # Forward: one sparse product gives the outputs of all skills; then their weighted sum.
        by_skill = _products(x, values, weights, pattern)
        mixed = (by_skill * _by_feature(weights)).sum(0)  # (H, O / H, B, L)
        return mixed.flatten(0, 1).permute(1, 2, 0).contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, values, weights = ctx.saved_tensors
        pattern: Pattern = ctx.pattern
        needs_x, needs_values, needs_weights, _ = ctx.needs_input_grad
        # (H, O / H, B, L)
        grad = grad.permute(2, 0, 1).unflatten(0, (weights.shape[1], -1)).contiguous()
        grad_x = grad_values = grad_weights = None
        scaled = None
        if needs_x or needs_values:
            scaled = (grad * _by_feature(weights)).flatten(3).flatten(0, 2)  # (K O, B L)
        # Gradient of x: the transposed sparse matrix times the weighted output gradients.
        if needs_x and scaled is not None:
            transpose = _csr(
                pattern.starts_t,
                pattern.columns_t,
                values.flatten()[pattern.order_t],
                (pattern.shape[1], len(scaled)),
            )
            grad_x = torch.sparse.mm(transpose, scaled).t().reshape(x.shape)
        # Gradient of the values: grad · xᵀ, computed at the entries of the support only.
        if needs_values and scaled is not None:
            places = _csr(
                pattern.starts,
                pattern.columns,
                values.new_zeros(values.numel()),
                (len(scaled), pattern.shape[1]),
            )
            inputs = x.flatten(0, 1).contiguous()
            sampled = torch.sparse.sampled_addmm(places, scaled, inputs, beta=0.0)
            grad_values = sampled.values().view_as(values)
        if needs_weights:
            # The outputs of all skills are computed again: keeping them costs K times the output.
            by_skill = _products(x, values, weights, pattern)
            grad_weights = (by_skill * grad).sum((2, 4)).permute(2, 1, 0)
        return grad_x, grad_values, grad_weights, None


def _products(x: Tensor, values: Tensor, weights: Tensor, pattern: Pattern) -> Tensor:
    """Return the output of every skill, (K, H, O / H, B, L)."""
    n_examples, n_heads, n_skills = weights.shape
    matrix = _csr(
        pattern.starts,
        pattern.columns,
        values.flatten(),
        (n_skills * pattern.shape[0], pattern.shape[1]),
    )
    outputs = torch.sparse.mm(matrix, x.flatten(0, 1).t().contiguous())
    return outputs.view(n_skills, n_heads, -1, n_examples, x.shape[1])


def _by_feature(weights: Float[Tensor, "B H K"]) -> Float[Tensor, "K H 1 B 1"]:
    return weights.permute(2, 1, 0)[:, :, None, :, None]


def _starts(rows: Tensor, n_rows: int) -> Tensor:
    counts = torch.bincount(rows, minlength=n_rows)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def _csr(starts: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    with warnings.catch_warnings():  # compressed sparse tensors are in beta, torch says
        warnings.filterwarnings("ignore", message="Sparse (CSR tensor|invariant)")
        return torch.sparse_csr_tensor(
            starts, columns, values.detach(), shape, check_invariants=False
        )
