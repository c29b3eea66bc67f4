import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from helpers.skills import filled, mixing
from mttl.routing import RoutingSlot
from mttl.skills import DenseInventory, SparseInventory, attach_skills
from mttl.skills.weights.sparse import place_supports, restore_supports
from mttl.skills.weights.supports import random_indices

B, L, I, O, K = 4, 3, 6, 8, 3  # noqa: E741


def dense_masked(inventory, x, y, weights):
    """Return the same with dense changes and masks, example by example."""
    masks = torch.zeros(inventory.n_skills, O * I, dtype=x.dtype)
    dense = torch.zeros(inventory.n_skills, O * I, dtype=x.dtype)
    for k in range(inventory.n_skills):
        masks[k, inventory.indices[k]] = 1
        dense[k, inventory.indices[k]] = inventory.values[k].detach()
    dense.requires_grad_()
    changes = (dense * masks).view(-1, O, I)
    by_feature = weights.repeat_interleave(O // inventory.n_heads, dim=1)  # (B, O, K)
    outputs = [
        y[b] + x[b] @ torch.einsum("ok,koi->oi", by_feature[b], changes).t() for b in range(len(x))
    ]
    return torch.stack(outputs), dense


def arguments(n_heads):
    x, y = torch.randn(B, L, I).double(), torch.randn(B, L, O).double()
    weights = mixing(B, n_heads, K).double()
    return x.requires_grad_(), y.requires_grad_(), weights.requires_grad_()


@pytest.mark.parametrize("n_heads", [1, 2])
@pytest.mark.parametrize("mix", ["auto", "deltas", "outputs"])
@pytest.mark.parametrize("structure", ["entries", "rows", "blocks"])
def test_output_and_gradients_are_those_of_dense_masked_changes(mix, n_heads, structure):
    inventory = SparseInventory(
        I, O, K, sparsity=0.7, n_heads=n_heads, mix=mix, structure=structure, block=2
    )
    inventory = filled(inventory).double()
    x, y, weights = arguments(n_heads)
    found = inventory(x, y, weights)
    expected, dense = dense_masked(inventory, x, y, weights)
    torch.testing.assert_close(found, expected)
    direction = torch.randn_like(found)
    ours = torch.autograd.grad(found, (x, y, weights, inventory.values), direction)
    *theirs, masked = torch.autograd.grad(expected, (x, y, weights, dense), direction)
    for one, other in zip(ours[:3], theirs, strict=True):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(ours[3], masked.gather(1, inventory.indices))


@pytest.mark.parametrize("mix", ["auto", "deltas", "outputs"])
def test_examples_with_equal_weights_share_a_change_where_no_gradient_is_needed(mix):
    inventory = filled(SparseInventory(I, O, K, mix=mix)).double()
    x, y, _ = arguments(1)
    rows = mixing(2, 1, K).double()
    for which in ([0, 0, 0, 0], [1, 0, 1, 1], [0, 1, 1, 0]):
        weights = rows[which]
        expected, dense = dense_masked(inventory, x, y, weights)
        found = inventory(x, y, weights)
        torch.testing.assert_close(found, expected)
        (ours,) = torch.autograd.grad(found.square().sum(), inventory.values)
        (theirs,) = torch.autograd.grad(expected.square().sum(), dense)
        torch.testing.assert_close(ours, theirs.gather(1, inventory.indices))
    one = inventory.merge(rows[[0, 0, 0, 0]])
    if mix != "outputs":
        assert one[0].shape == (1, O, I)  # no dense weight per example


def test_a_support_can_be_given_and_changed():
    inventory = filled(SparseInventory(I, O, K, mix="outputs")).double()
    x, y, weights = arguments(1)
    inventory(x, y, weights)  # sorts out the old support
    for support in (torch.arange(5) * 3, torch.stack([random_indices(O * I, 4) for _ in range(K)])):
        inventory.set_indices(support)
        assert inventory.values.shape == (K, support.shape[-1])
        filled(inventory)
        expected, _ = dense_masked(inventory, x, y, weights)
        torch.testing.assert_close(inventory(x, y, weights), expected)
    with torch.no_grad():  # as loading does
        inventory.indices.copy_(torch.arange(4).expand(K, -1))
    expected, _ = dense_masked(inventory, x, y, weights)
    torch.testing.assert_close(inventory(x, y, weights), expected)
    # Where a model is shared by processes, the values of all but the first come later.
    inventory = SparseInventory(4, 3, 2).to("meta")
    inventory.set_support(torch.tensor([0, 5, 7]))
    assert inventory.indices.shape == inventory.values.shape == (2, 3)
    assert inventory.indices.device.type == inventory.values.device.type == "meta"


def test_an_empty_support_changes_nothing_and_has_a_gradient():
    inventory = SparseInventory(I, O, K, mix="outputs").double()
    inventory.set_support(torch.empty(0, dtype=torch.int64))
    x, y, weights = arguments(1)
    found = inventory(x, y, weights)
    assert torch.equal(found, y)
    found.sum().backward()
    assert inventory.values.grad.shape == (K, 0)  # data-parallel training waits for one


@pytest.mark.parametrize(
    ("support", "message"),
    [
        (torch.tensor([1, O * I]), r"must be in \[0, 48\)"),
        (torch.tensor([-1, 3]), r"must be in \[0, 48\)"),
    ],
)
def test_a_support_that_does_not_exist_is_refused(support, message):
    with pytest.raises(ValueError, match=message):
        SparseInventory(I, O, K).set_support(support)


def test_supports_are_placed_by_the_names_of_weights():
    backbone = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)).requires_grad_(False)
    slot = RoutingSlot()
    attach_skills(backbone, lambda i, o: SparseInventory(i, o, 2), targets=["0", "1"], slot=slot)
    layers = {place: backbone.get_submodule(place) for place in "01"}
    place_supports(layers, {"1.weight": torch.tensor([2, 9])})
    assert layers["0"].inventory.values.shape == (2, 0)
    assert layers["1"].inventory.indices.tolist() == [[2, 9], [2, 9]]
    state = {
        f"{path}.{name}": value
        for path, layer in layers.items()
        for name, value in layer.inventory.state_dict().items()
    }
    place_supports(layers, {"0.weight": torch.tensor([1])})
    restore_supports(layers, state)
    assert layers["0"].inventory.values.shape == (2, 0)
    assert layers["1"].inventory.indices.tolist() == [[2, 9], [2, 9]]
    with pytest.raises(ValueError, match="it has no entries for the layers with skills"):
        place_supports(layers, {"x.weight": torch.tensor([2])})
    with pytest.raises(ValueError, match=r"layer '1': .*must be in \[0, 15\)"):
        place_supports(layers, {"1.weight": torch.tensor([20])})
    layers["0"].inventory = DenseInventory(4, 5, 2)
    with pytest.raises(ValueError, match="layer '0': DenseInventory has no support"):
        place_supports(layers, {"1.weight": torch.tensor([2])})


@pytest.mark.parametrize("mix", ["auto", "deltas"])
def test_one_example_is_merged_without_reading_its_weights(mix):
    """They have no values in a memory plan."""
    inventory = SparseInventory(I, O, K, mix=mix)
    with FakeTensorMode(allow_non_fake_inputs=True):
        changes, which = inventory.merge(torch.ones(1, 1, K))
    assert (changes.shape, which.shape) == ((1, O, I), (1,))
