r"""Sparse skills: changes of few entries of a layer's weight, chosen before training.

If it is faster, outputs are mixed per example without a dense weight. For example b and output
feature o of head h, :math:`y_{bo} = \sum_k w_{bhk} (\Phi_k x_b)_o`. The K matrices form one sparse
matrix of K · O rows, which is multiplied by all positions of the batch; the products are weighted
and summed over the skills. The backward pass needs the transpose and, for the values, products of
gradients and inputs at the entries of the support.
"""

import warnings
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from mttl.aggregation.mix import active_dtype, mix_blocks
from mttl.io.errors import raised_as
from mttl.plugins.part_settings import Fraction, OneOf, PositiveInt
from mttl.skills.inventory import Inputs, Inventory, Merged, Outputs, Weights, draw
from mttl.skills.skilled_layer import SkilledLayer
from mttl.skills.weights.supports import random_support, require_inside, spread


def fixed_by_file(**defaults: object) -> dict[str, str]:
    """Return the `refuses` of settings that the file of a support determines."""
    return {
        f"support != random and {name} != {default}": f"{name} cannot be set if support names a "
        "file, which determines the entries"
        for name, default in defaults.items()
    }


class Pattern(NamedTuple):
    """The entries of K sparse matrices (O, I) in CSR format, and of their transpose.

    ``starts`` are row offsets of the K · O rows of all matrices, ``starts_t`` of the I rows of the
    transpose; ``order_t`` has the position of the transpose's entries among those of the matrices.
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
    # If possible, indices are int32: half the memory, and no copies inside products.
    small = max(len(rows), n_skills * out_features, in_features) <= torch.iinfo(torch.int32).max
    dtype = torch.int32 if small else torch.int64
    return Pattern(
        shape,
        _starts(rows, n_skills * out_features).to(dtype),
        columns.to(dtype),
        _starts(columns, in_features).to(dtype),
        rows[order].to(dtype),
        order,
    )


class _SparseOutputs(torch.autograd.Function):
    """The mixed outputs of K sparse matrices with values in the order of their supports."""

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
            entries = values.flatten()[pattern.order_t]
            transpose = _csr(pattern.starts_t, pattern.columns_t, entries, len(scaled))
            grad_x = torch.sparse.mm(transpose, scaled).t().reshape(x.shape)
        # Gradient of the values: grad · xᵀ, computed at the entries of the support only.
        if needs_values and scaled is not None:
            zeros = values.new_zeros(values.numel())
            places = _csr(pattern.starts, pattern.columns, zeros, pattern.shape[1])
            inputs = x.flatten(0, 1).contiguous()
            sampled = torch.sparse.sampled_addmm(places, scaled, inputs, beta=0.0)
            grad_values = sampled.values().view_as(values)
        if needs_weights:
            # Recompute the outputs of all skills, which need K times the memory of the output.
            by_skill = _products(x, values, weights, pattern)
            grad_weights = (by_skill * grad).sum((2, 4)).permute(2, 1, 0)
        return grad_x, grad_values, grad_weights, None


def _products(x: Tensor, values: Tensor, weights: Tensor, pattern: Pattern) -> Tensor:
    """Return the output of every skill, (K, H, O / H, B, L)."""
    n_examples, n_heads, n_skills = weights.shape
    matrix = _csr(pattern.starts, pattern.columns, values.flatten(), pattern.shape[1])
    outputs = torch.sparse.mm(matrix, x.flatten(0, 1).t().contiguous())
    return outputs.view(n_skills, n_heads, -1, n_examples, x.shape[1])


def _by_feature(weights: Float[Tensor, "B H K"]) -> Float[Tensor, "K H 1 B 1"]:
    return weights.permute(2, 1, 0)[:, :, None, :, None]


def _starts(rows: Tensor, n_rows: int) -> Tensor:
    counts = torch.bincount(rows, minlength=n_rows)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def _csr(starts: Tensor, columns: Tensor, values: Tensor, n_columns: int) -> Tensor:
    shape = len(starts) - 1, n_columns
    with warnings.catch_warnings():  # torch warns that compressed sparse tensors are in beta
        warnings.filterwarnings("ignore", message="Sparse (CSR tensor|invariant)")
        return torch.sparse_csr_tensor(
            starts, columns, values.detach(), shape, check_invariants=False
        )


class SparseInventory(Inventory):
    r"""Changes of few entries, chosen before training: :math:`y = W_0 x + \sum_k w_k \Phi_k x`.

    Only the values at the supports are parameters, so gradients, optimizer state and files are
    equally small. Each skill has a random support; `set_support` replaces it by a chosen one (see
    `mttl.skills.weights.supports`).

    Args:
        sparsity: Fraction of entries that a skill does not change.
        structure: Unit of the random choice: entries, all weights of an output, or square blocks.
        block: Side of a block.
        mix: Method of mixing. ``"deltas"`` builds one dense change per example, or one per distinct
            vector of weights if these need no gradient (on a CPU); ``"outputs"`` computes sparse
            products; ``"auto"`` chooses the faster one by a rule fitted to measured times: outputs
            for few entries and short texts. Compiled models use deltas.
        support: ``"random"``, or a file of ``mttl sparse`` with the support of all skills.

    References:
        Ansell et al., *Composable Sparse Fine-Tuning for Cross-Lingual Transfer*, ACL 2022,
        arXiv:2110.07560. As skills, with random supports: Ponti et al., EACL 2023,
        arXiv:2202.13914, section 2.4.
    """

    internal = ("init",)
    refuses: ClassVar = fixed_by_file(sparsity=0.9, structure="entries", block=16)
    # Whether `mix: auto` may choose sparse products; the memory planner has no values for them.
    sparse_products = True
    uses = ("task", "token", "composed")
    indices: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        n_skills: int,
        *,
        sparsity: Fraction = 0.9,
        structure: Annotated[str, OneOf("entries", "rows", "blocks")] = "entries",
        block: PositiveInt = 16,
        n_heads: int = 1,
        mix: Annotated[str, OneOf("auto", "deltas", "outputs")] = "auto",
        init: str = "zero",
        support: str = "random",
    ) -> None:
        super().__init__(in_features, out_features, n_skills, n_heads)
        self.mix, self.init, self.support = mix, init, support
        shapes = {"": (out_features, in_features)}
        drawn = [
            random_support(shapes, 1 - sparsity, structure=structure, block=block)[""]
            for _ in range(n_skills)
        ]
        # Blocks at the edge of the weight are smaller; all skills get the same number of entries.
        n_entries = min(len(places) for places in drawn)
        self.register_buffer("indices", torch.stack([places[:n_entries] for places in drawn]))
        self.values = nn.Parameter(torch.empty(n_skills, n_entries))
        self.reset_parameters()
        self._pattern: tuple[Tensor, int, Pattern] | None = None  # of indices, and their version

    def reset_parameters(self) -> None:
        """Re-initialise the values; the supports do not change."""
        draw(self.values, self.init, self.in_features)

    def set_support(self, entries: Int[Tensor, "n"], *, masked: bool = False) -> None:
        if masked:
            raise ValueError(
                "the skill was trained with --form masked, which sets all other weights to 0; set "
                "skills.kind: masked_sparse, or train it with --form added"
            )
        self.set_indices(entries)

    def set_indices(self, indices: Int[Tensor, "n"] | Int[Tensor, "K n"]) -> None:
        """Replace the supports of the skills; the values start at 0.

        Indices into the flattened weight (O, I), per skill or for all, ascend; ValueError if one is
        out of range.
        """
        indices = indices.to(torch.int64).expand(self.n_skills, -1)
        require_inside(indices, self.out_features * self.in_features)
        self.indices = indices.to(self.indices.device).contiguous()
        self.values = nn.Parameter(self.values.new_zeros(indices.shape))

    def merge(self, weights: Weights) -> Merged:
        """Return the weights, or dense changes and the index of each example's change."""
        compared = self.mix == "auto" and _comparable(weights)
        equal = compared and (len(weights) == 1 or bool((weights == weights[:1]).all()))
        if self.mix == "deltas" or equal:
            return self._dense(weights)
        return (weights,)  # the faster method depends on the length of the text

    def combine(self, x: Inputs, y: Outputs, merged: Merged) -> Outputs:
        dtype = active_dtype(x)
        if len(merged) == 1 and self._computes_outputs(x):
            # Sparse products need at least single precision.
            wide = torch.promote_types(self.values.dtype, torch.float32)
            with torch.autocast(x.device.type, enabled=False):
                given = (part.to(wide) for part in (x, self.values, *merged))
                change: Any = _SparseOutputs.apply(*given, self._current_pattern())
            return y + change.to(y.dtype)
        changes, which = self._dense(merged[0]) if len(merged) == 1 else merged
        changes, x, y = changes.to(dtype), x.to(dtype), y.to(dtype)
        if len(changes) == 1:  # all examples are equal: one product
            return torch.addmm(y.flatten(0, 1), x.flatten(0, 1), changes[0].t()).view_as(y)
        if len(changes) == len(x):
            return torch.baddbmm(y, x, changes.transpose(1, 2))
        order = which.argsort(stable=True)
        parts = x[order].split(torch.bincount(which, minlength=len(changes)).tolist())
        outputs = [part @ change.t() for part, change in zip(parts, changes, strict=True)]
        return y + torch.cat(outputs)[order.argsort()]

    def changes(self) -> Float[Tensor, "K O I"]:
        size = self.out_features * self.in_features
        return spread(self.values, self.indices, size).view(-1, self.out_features, self.in_features)

    def _dense(self, weights: Weights) -> Merged:
        """Return dense changes, and the index of each example's change."""
        which = torch.arange(len(weights), device=weights.device)
        if len(weights) > 1 and _comparable(weights):
            rows, which = torch.unique(weights.flatten(1), dim=0, return_inverse=True)
            weights = rows.unflatten(1, weights.shape[1:])
            if len(weights) == len(which):  # all differ: keep the order
                weights, which = weights[which], torch.arange(len(which))
        return mix_blocks(self.changes(), weights), which

    def _computes_outputs(self, x: Tensor) -> bool:
        if torch.compiler.is_compiling() or not self.values.numel() or not x.numel():
            return False
        if self.mix == "outputs":
            return True
        if not self.sparse_products:
            return False
        # Costs of an example in units of an entry of its dense change, fitted to the benchmark:
        # outputs and entries of all skills, against the change and its product.
        n_positions, size = x.shape[1], self.out_features * self.in_features
        outputs = n_positions * (self.n_skills * self.out_features + self.values.numel() / 14)
        return outputs < size * (1 + n_positions / 70)

    def _current_pattern(self) -> Pattern:
        """Return the pattern of the current support, which is cached."""
        own, cached = self.indices, self._pattern
        # Loading a checkpoint changes the indices in place; moving the module replaces them.
        if cached is None or cached[0] is not own or cached[1] != own._version:
            pattern = make_pattern(own, (self.out_features, self.in_features))
            cached = self._pattern = own, own._version, pattern
        return cached[2]


def _comparable(weights: Tensor) -> bool:
    """Return whether examples with equal weights may share a change."""
    # Gradients belong to different tasks, and on an accelerator the comparison would synchronise.
    on_cpu = weights.device.type == "cpu" and not torch.compiler.is_compiling()
    return on_cpu and not weights.requires_grad


def place_supports(
    layers: Mapping[str, SkilledLayer], support: Mapping[str, Tensor], *, masked: bool = False
) -> None:
    """Set the supports of all layers; ValueError if none has one. The others change nothing.

    Supports are indices by the names of weights, ``<path>.weight``, as in a sparse file; if it is
    ``masked``, all other weights are 0.
    """
    found = {path: support[f"{path}.weight"] for path in layers if f"{path}.weight" in support}
    if not found:
        raise ValueError(
            f"it has no entries for the layers with skills ({', '.join(list(layers)[:3])}), only "
            f"for {', '.join(list(support)[:3])}; change skills.targets"
        )
    for path, layer in layers.items():
        entries = found.get(path, torch.empty(0, dtype=torch.int64))
        with raised_as(ValueError, f"layer '{path}'", ValueError):
            layer.inventory.set_support(entries, masked=masked and path in found)


def restore_supports(layers: Mapping[str, SkilledLayer], skills: Mapping[str, Tensor]) -> None:
    """Set the supports to those among saved skills, so that their values can be loaded."""
    for path, layer in layers.items():
        for name, part in layer.inventory.named_modules(prefix=path):
            if f"{name}.indices" in skills and hasattr(part, "set_indices"):
                part.set_indices(skills[f"{name}.indices"])  # type: ignore[operator]
