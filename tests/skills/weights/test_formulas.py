"""Kinds on linear layers by their formulas, with gradients: one example and head after another."""

from functools import partial

import pytest
import torch
from torch import nn

from helpers.backbones import tiny_gpt2
from helpers.compare import assert_same
from helpers.skills import filled, mixing, skilled
from mttl.skills.weights.bitfit import BitFitInventory
from mttl.skills.weights.dense import DenseInventory
from mttl.skills.weights.head_mask import HeadMaskInventory
from mttl.skills.weights.krona import KronABlockInventory, KronAInventory
from mttl.skills.weights.lora import LoRAInventory
from mttl.skills.weights.masked_sparse import MaskedSparseInventory
from mttl.skills.weights.supermask import SupermaskInventory

B, L, I, O, K = 5, 2, 8, 12, 3  # noqa: E741
LoRA = partial(LoRAInventory, rank=2)
KronA = partial(KronAInventory, scale=0.5)
HARD = 0.05


def mixed(w, stack, *rest):
    """Return Σ w_hk · stack_k of every block of features apart."""
    blocks = zip(w, stack.chunk(len(w), 1), strict=True)
    return torch.cat([sum(a * one for a, one in zip(row, own, strict=True)) for row, own in blocks])


def factors(s, base, x, w):
    return base(x) + x @ mixed(w, s.down) @ mixed(w, s.up).T / 2


def deltas(s, base, x, w):
    products = [up @ down.T / 2 for up, down in zip(s.up, s.down, strict=True)]
    return base(x) + x @ mixed(w, torch.stack(products)).T


def kronecker(s, base, x, w):
    return base(x) + 0.5 * x @ torch.kron(mixed(w, s.left), mixed(w, s.right)).T


def kroneckers(s, base, x, w):
    products = [torch.kron(a, b) for a, b in zip(s.left, s.right, strict=True)]
    return base(x) + 0.5 * x @ mixed(w, torch.stack(products)).T


def beside(s, base, x, w):
    share = 0 if s.residual is None else (w[0] @ s.residual) * x
    return kronecker(s.product, base, x, w) + share


def gated(s, base, x, w):
    logits = 0.5 + mixed(w, s.logits)
    soft = logits.sigmoid() / torch.tensor(0.5).double().sigmoid()
    gates = (logits >= 0) + soft - soft.detach() if s.hard else soft  # the slope of soft gates
    return base(x * gates.repeat_interleave(I // len(gates)))


def masked(s, base, x, w):
    scores = mixed(w, s.scores)
    mask = (scores >= HARD) + scores - scores.detach()  # the threshold passes gradients
    assert 0 < (scores >= HARD).double().mean() < 1
    return nn.functional.linear(x, base.weight * mask, base.bias)


def masked_sparse(s, base, x, w):
    """Return the output entry by entry: (θ + φ) where the mixed score is high, else nothing."""
    scores, rows = s.mask.scores, []
    for o in range(O):
        row, total = w[o * len(w) // O], 0 if base.bias is None else base.bias[o]
        for i in range(I):
            score = sum(row[k] * scores[k, o, i] for k in range(K))
            kept = (score >= HARD) + score - score.detach()
            weight = base.weight[o, i]
            for k in range(K):
                place = (s.difference.indices[k] == o * I + i).nonzero()[:, 0]
                weight = weight + row[k] * s.difference.values[k, place].sum()
            total = total + kept * weight * x[:, i]
        rows.append(total)
    return torch.stack(rows, 1)


mask = partial(SupermaskInventory, threshold=HARD)
heads = partial(HeadMaskInventory, start=0.5)
# What makes a kind, the sizes of its place, numbers of heads, and the formula.
FORMULAS = [
    (LoRA, (I, O), (1, 2), factors),
    (partial(LoRA, mix="deltas"), (I, O), (1, 2), deltas),
    (partial(LoRA, mix="outputs"), (I, O), (1, 2), deltas),
    *((partial(KronA, shape=one), (I, O), (1,), kronecker) for one in ((2, 4), (12, 1), (1, 8))),
    (partial(KronA, shape=(2, 4), mix="deltas"), (I, O), (1, 2), kroneckers),
    (partial(KronABlockInventory, shape=(2, 4), scale=0.5), (O, O), (1,), beside),
    (partial(KronABlockInventory, scale=0.5, residual=False), (O, O), (1,), beside),
    (DenseInventory, (I, O), (1, 2), lambda s, base, x, w: base(x) + x @ mixed(w, s.change).T),
    (BitFitInventory, (I, O), (1, 2), lambda s, base, x, w: base(x) + mixed(w, s.bias)),
    (heads, (I, O, 4), (1, 2), gated),
    (partial(heads, hard=False), (I, O, 4), (1, 2), gated),
    (mask, (I, O), (1, 2), masked),
    (partial(MaskedSparseInventory, threshold=HARD), (I, O), (1, 2), masked_sparse),
]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("make", "sizes", "n_heads", "formula"),
    [(make, sizes, n, formula) for make, sizes, heads, formula in FORMULAS for n in heads],
)
def test_equals_the_formula_with_its_gradients(make, sizes, n_heads, formula, bias):
    n_in, n_out, *more = sizes
    heads = {"n_heads": n_heads} if n_heads > 1 else {}  # some kinds do not have them
    skills = filled(make(n_in, n_out, K, *more, **heads)).double()
    base = nn.Linear(n_in, n_out, bias=bias).double()
    x = torch.randn(B, L, n_in, dtype=torch.double, requires_grad=True)
    weights = mixing(B, n_heads, K).double().requires_grad_()
    found = skills.combine_linear(x, base, skills.merge(weights))
    expected = torch.stack([formula(skills, base, x[b], weights[b]) for b in range(B)])
    assert_same(found, expected, [x, weights, *skills.parameters(), *base.parameters()])


def test_one_skill_is_lokr_of_peft() -> None:
    peft = pytest.importorskip("peft")
    base = nn.Sequential(nn.Linear(8, 12))
    # A rank above the sizes of the right factor keeps it whole.
    config = peft.LoKrConfig(r=64, alpha=64, target_modules=["0"], init_weights=False)
    theirs = peft.get_peft_model(base, config)
    layer = theirs.base_model.model[0]
    left, right = layer.lokr_w1["default"], layer.lokr_w2["default"]
    ours = KronAInventory(8, 12, 1, shape=left.shape)
    with torch.no_grad():
        ours.left.copy_(left[None])
        ours.right.copy_(right[None])
    x = torch.randn(3, 5, 8)
    weights = torch.ones(3, 1, 1)
    found = ours.combine_linear(x, layer.base_layer, ours.merge(weights))
    torch.testing.assert_close(found, theirs(x))
    found.square().sum().backward()
    gradient = ours.left.grad[0], ours.right.grad[0]
    theirs(x).square().sum().backward()
    torch.testing.assert_close(gradient, (left.grad, right.grad))


def test_a_fresh_supermask_keeps_all_weights_and_reads_those_of_plain_layers():
    """The convolutions of GPT-2 keep their weight the other way round."""
    assert SupermaskInventory(I, O, K).merge(mixing(B, 1, K))[0].all()
    message = r"'transformer\.h\.0.*needs an nn\.Linear, not Conv1D"
    with pytest.raises(ValueError, match=message):
        skilled(tiny_gpt2(), inventory="supermask")
