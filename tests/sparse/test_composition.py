import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from mttl.io.errors import CheckpointError
from mttl.sparse.composition import SparseComposition
from mttl.sparse.skill_file import SparseSkill


def network(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Linear(8, 3)).to(dtype)


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def random_skill(model: nn.Module, seed: int, density: float = 0.4) -> SparseSkill:
    """Return a skill of large and small changes, whose support overlaps with others'."""
    generator = torch.Generator().manual_seed(seed)
    start = weights(model)
    end, support = {}, {}
    for name, value in start.items():
        scale = 10.0 ** torch.randint(-6, 5, value.shape, generator=generator)
        end[name] = value + (scale * torch.randn(value.shape, generator=generator)).to(value)
        chosen = torch.rand(value.numel(), generator=generator) < density
        support[name] = chosen.nonzero().flatten()
    return SparseSkill.between(start, end, support)


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


@given(
    steps=st.lists(st.tuples(st.sampled_from("abc"), st.floats(-2, 2)), max_size=12),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
)
def test_however_skills_come_and_go_the_weights_depend_on_those_that_are_there(steps, dtype):
    model = network(dtype)
    start = weights(model)
    skills = {name: random_skill(model, seed) for seed, name in enumerate("abc")}
    composition = SparseComposition(model)
    present: dict[str, float] = {}
    for name, weight in steps:
        if name in present:
            composition.remove(name)
            del present[name]
        else:
            composition.apply(name, skills[name], weight=weight)
            present[name] = weight
        assert composition.names == tuple(sorted(present))
        fresh = network(dtype)
        again = SparseComposition(fresh)
        for other, factor in present.items():
            again.apply(other, skills[other], weight=factor)
        assert same(weights(model), weights(fresh))
    composition.clear()
    assert same(weights(model), start)


def test_swapping_is_removing_and_applying():
    model, other = network(), network()
    skills = [random_skill(model, seed) for seed in range(3)]
    ours, theirs = SparseComposition(model), SparseComposition(other)
    ours.apply("task", skills[0])
    ours.apply("language", skills[1])
    ours.swap("language", "language", skills[2])
    theirs.apply("language", skills[2])
    theirs.apply("task", skills[0])
    assert same(weights(model), weights(other))
    for call, message in (
        (lambda: ours.swap("lingo", "x", skills[0]), "no skill 'lingo' is applied"),
        (lambda: ours.remove("languages"), r"no skill 'languages' .*\. Did you mean 'language'"),
        (lambda: ours.apply("task", skills[0]), "a skill 'task' is applied already"),
        (lambda: ours.swap("language", "task", skills[0]), "a skill 'task' is applied already"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert ours.names == ("language", "task")
    assert same(weights(model), weights(other))


def test_a_weight_that_is_stored_transposed():
    model = network()
    model[0].weight = nn.Parameter(model[0].weight.detach().t().contiguous().t())
    plain = network()
    skill = random_skill(plain, 1)
    for one in (model, plain):
        SparseComposition(one).apply("a", skill)
    assert same(weights(model), weights(plain))


def test_a_skill_of_another_network_is_refused_with_a_list_and_nothing_changes():
    skill = random_skill(network(), 1)
    wider = nn.Sequential(nn.Linear(5, 9), nn.Linear(9, 3))
    other = network()
    with torch.no_grad():
        other[1].weight += 1
    cases = [
        (wider, [r"4 of 4", r"0\.weight: shape \(9, 5\) instead of \(8, 5\)"]),
        (network(torch.float64), [r"4 of 4", r"0\.bias: torch\.float64 instead of torch\.float32"]),
        (network()[:1], [r"2 of 4", r"1\.weight: missing"]),
        (other, [r"1 of 4", r"1\.weight: other weights"]),
    ]
    many = nn.ModuleDict({f"n{i}": nn.Linear(2, 2) for i in range(8)})
    with pytest.raises(CheckpointError, match="and 6 more"):
        SparseComposition(wider).apply("a", random_skill(many, 1, density=1.0))
    for model, messages in cases:
        start = weights(model)
        with pytest.raises(CheckpointError) as raised:
            SparseComposition(model).apply("a", skill)
        for message in messages:
            assert raised.match(message)
        assert same(weights(model), start)
