"""Skills of single tensors, against loops over tasks, skills and entries."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from helpers.backbones import fill
from mttl.skills.composed.tensor_skills import DenseSkills, LowRankSkills, SparseSkills

T, K = 3, 4
SHAPES = [(6,), (5, 4), (4, 3, 2, 2), (1,)]
MAKERS = {
    "dense": lambda shape, **settings: DenseSkills(shape, K, **settings),
    "sparse": lambda shape, **settings: SparseSkills(shape, K, sparsity=0.7, **settings),
    "lora": lambda shape, **settings: LowRankSkills(shape, K, rank=2, **settings),
}
CASES = [(kind, shape) for kind in MAKERS for shape in SHAPES if kind != "lora" or len(shape) > 1]


def make(kind, shape, **settings):
    skills = MAKERS[kind](shape, **settings).double()
    fill(skills)
    return skills


def inputs(shape):
    return torch.randn(shape).double(), torch.rand(T, K).double().softmax(-1)


def changes(skills):
    """The K changes as dense tensors, entry by entry."""
    if isinstance(skills, DenseSkills):
        return list(skills.change)
    found = []
    for k in range(K):
        if isinstance(skills, LowRankSkills):
            flat = skills.scale * skills.up[k] @ skills.down[k].t()
        else:
            flat = torch.zeros(skills.shape.numel(), dtype=torch.float64)
            for value, index in zip(skills.values[k], skills.indices[k].tolist(), strict=True):
                flat = flat + value * (torch.arange(len(flat)) == index)
        found.append(flat.reshape(skills.shape))
    return found


@pytest.mark.parametrize(("kind", "shape"), CASES)
def test_equals_a_loop_with_its_gradients(kind, shape):
    skills = make(kind, shape)
    base, weights = inputs(shape)
    leaves = [base.requires_grad_(), weights.requires_grad_(), *skills.parameters()]
    expected = torch.stack(
        [base + sum(weights[t, k] * changes(skills)[k] for k in range(K)) for t in range(T)]
    )
    found = skills.merge(base, weights)
    torch.testing.assert_close(found, expected)
    direction = torch.randn_like(found)
    torch.testing.assert_close(
        torch.autograd.grad((found * direction).sum(), leaves),
        torch.autograd.grad((expected * direction).sum(), leaves),
    )


@pytest.mark.parametrize(("kind", "shape"), CASES)
def test_gradients_are_those_of_finite_differences(kind, shape):
    skills = make(kind, shape)
    base, weights = inputs(shape)
    names = [name for name, _ in skills.named_parameters()]

    def merge(base, weights, *values):
        own = dict(zip(names, values, strict=True))
        return torch.func.functional_call(_Merge(skills), _below(own), (base, weights))

    leaves = [base, weights, *skills.parameters()]
    assert torch.autograd.gradcheck(merge, [leaf.detach().requires_grad_() for leaf in leaves])


class _Merge(nn.Module):
    def __init__(self, skills):
        super().__init__()
        self.skills = skills

    def forward(self, base, weights):
        return self.skills.merge(base, weights)


def _below(parameters):
    return {f"skills.{name}": value for name, value in parameters.items()}


@pytest.mark.parametrize("kind", MAKERS)
@given(shape=st.lists(st.integers(1, 5), min_size=2, max_size=4), order=st.permutations(range(K)))
def test_permuting_skills_and_weights_together_changes_nothing(kind, shape, order):
    skills = make(kind, shape)
    base, weights = inputs(shape)
    expected = skills.merge(base, weights)
    with torch.no_grad():
        for tensor in skills.state_dict().values():
            tensor.copy_(tensor[list(order)])
    torch.testing.assert_close(skills.merge(base, weights[:, list(order)]), expected)


@pytest.mark.parametrize(("kind", "shape"), CASES)
def test_one_hot_weights_select_a_skill(kind, shape):
    skills = make(kind, shape)
    base, _ = inputs(shape)
    found = skills.merge(base, torch.eye(K).double())
    for k, change in enumerate(changes(skills)):
        torch.testing.assert_close(found[k], base + change)


@pytest.mark.parametrize(("kind", "shape"), CASES)
def test_skills_that_begin_at_zero_change_nothing(kind, shape):
    base, weights = inputs(shape)
    skills = MAKERS[kind](shape, init="zero").double()
    assert torch.equal(skills.merge(base, weights), base.expand(T, *shape))


@pytest.mark.parametrize(
    ("layer", "kind"),
    [(layer, kind) for layer in ("linear", "convolution") for kind in ("dense", "sparse")],
)
def test_kaiming_draws_as_the_layers_of_pytorch_do(layer, kind):
    weight = nn.Linear(200, 60).weight if layer == "linear" else nn.Conv2d(32, 50, 3).weight
    skills = MAKERS[kind](weight.shape, init="kaiming")
    values = torch.cat([parameter.flatten() for parameter in skills.parameters()]).detach()
    assert values.abs().max() <= weight[0].numel() ** -0.5
    # Uniform draws, at least 12 000 of them: their spread is within 3 % with near certainty.
    assert float(values.std() / weight.detach().std()) == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_kaiming_leaves_vectors_at_zero(kind):
    skills = MAKERS[kind]((50,), init="kaiming")
    assert not any(parameter.any() for parameter in skills.parameters())


def test_kaiming_draws_both_sides_of_a_low_rank_skill():
    skills = LowRankSkills((100, 8, 5), K, rank=4, init="kaiming")
    for side, fan_in in ((skills.down, 40), (skills.up, 4)):
        assert 0.95 * fan_in**-0.5 < side.abs().max() <= fan_in**-0.5
    assert not LowRankSkills((100, 8, 5), K).up.any()


@pytest.mark.parametrize(("kind", "shape"), CASES)
def test_skills_can_be_drawn_anew(kind, shape):
    skills = MAKERS[kind](shape, init="zero").double()
    entries = dict(skills.named_buffers())
    fill(skills)
    skills.reset_parameters()
    base, weights = inputs(shape)
    assert torch.equal(skills.merge(base, weights), base.expand(T, *shape))
    for name, buffer in skills.named_buffers():
        assert torch.equal(buffer, entries[name])


@given(size=st.integers(1, 60), sparsity=st.floats(0, 0.99))
def test_a_sparse_skill_changes_the_promised_number_of_entries(size, sparsity):
    skills = SparseSkills((size,), K, sparsity=sparsity)
    n_changed = max(1, round((1 - sparsity) * size))
    assert skills.values.shape == skills.indices.shape == (K, n_changed)
    assert skills.indices.dtype == torch.int64
    for row in skills.indices.tolist():
        assert row == sorted(set(row))
        assert row[0] >= 0
        assert row[-1] < size


def test_every_sparse_skill_has_entries_of_its_own_drawn_evenly():
    skills = SparseSkills((40, 50), 50)
    assert len({tuple(row) for row in skills.indices.tolist()}) == 50
    counts = torch.bincount(skills.indices.flatten(), minlength=2000)
    assert counts.sum() == 50 * 200
    # Each count is binomial with mean 5 and deviation 2.1; none of 2000 lies 6 deviations off.
    assert counts.max() < 5 + 6 * 2.2
    assert float(counts.double().std()) == pytest.approx((50 * 0.1 * 0.9) ** 0.5, rel=0.1)


def test_the_state_of_an_optimizer_is_as_small_as_a_sparse_skill():
    skills = SparseSkills((100, 100), K, init="kaiming")
    optimizer = torch.optim.Adam(skills.parameters())
    skills.merge(torch.zeros(100, 100), torch.rand(T, K)).square().sum().backward()
    optimizer.step()
    state = optimizer.state[skills.values]
    assert state["exp_avg"].shape == (K, 1000)
    assert len(optimizer.state) == 1


def test_the_scale_of_a_low_rank_skill_is_one_over_the_rank_unless_given():
    assert LowRankSkills((4, 4), K, rank=8).scale == 1 / 8
    assert LowRankSkills((4, 4), K, rank=8, scale=0.0).scale == 0.0


def test_the_printed_forms_name_their_settings():
    assert "shape=(4, 3), n_skills=2, init=zero" in repr(DenseSkills((4, 3), 2))
    assert "sparsity=0.9" in repr(SparseSkills((4, 3), 2))
    assert "rank=4, scale=0.25" in repr(LowRankSkills((4, 3), 2, rank=4))


def test_settings_that_make_no_sense_are_errors():
    with pytest.raises(ValueError, match=r"n_skills \(0\) must be at least 1"):
        DenseSkills((3,), 0)
    with pytest.raises(ValueError, match=r"init \('normal'\) must be 'zero' or 'kaiming'"):
        DenseSkills((3,), 2, init="normal")
    for sparsity in (1.0, -0.1):
        with pytest.raises(ValueError, match=rf"sparsity \({sparsity}\) must lie in \[0, 1\)"):
            SparseSkills((3,), 2, sparsity=sparsity)
    with pytest.raises(ValueError, match=r"rank \(0\) must be at least 1"):
        LowRankSkills((3, 3), 2, rank=0)
    with pytest.raises(ValueError, match=r"a tensor of shape \(3,\) is no matrix"):
        LowRankSkills((3,), 2)
