"""Intrinsic skills, beside plain products with the matrices that they never build."""

from collections.abc import Sequence
from functools import partial

import pytest
import torch
from torch.func import functional_call

from helpers.backbones import batch, tiny_t5
from helpers.compare import assert_same
from helpers.skills import filled, mixing, skilled
from mttl.checkpoints.model_tensors import skill_tensors
from mttl.merging.fold import task_mixing
from mttl.skills import IntrinsicInventory, SkilledModel

K, D = 3, 6


def matrix(inventory: IntrinsicInventory) -> torch.Tensor:
    """Return P as a matrix (O · I, d)."""
    return inventory._project(torch.eye(inventory.dimension).double()).flatten(1).t()


def model(
    vector: str = "said", targets: Sequence[str] = ("attention",), **settings: int
) -> SkilledModel:
    made = partial(IntrinsicInventory, dimension=D, vector=vector, **settings)
    plain = {"router": "polytropon-plain", "n_skills": K}
    return skilled(tiny_t5(), inventory=made, targets=targets, **plain).double()


@pytest.mark.parametrize("projection", ["fastfood", "dense"])
@pytest.mark.parametrize("n_examples", [2, 5])
def test_equals_products_with_the_matrix(projection: str, n_examples: int) -> None:
    """Fewer examples than skills are mixed before they are projected, more of them after."""
    inventory = IntrinsicInventory(8, 12, K, dimension=D, projection=projection)
    filled(inventory).double()
    x, y = torch.randn(n_examples, 2, 8).double(), torch.randn(n_examples, 2, 12).double()
    weights = mixing(n_examples, 1, K).double()
    leaves = list(inventory.parameters())
    found = inventory(x, y, weights)
    vectors = torch.einsum("bk,k,kd->bd", weights[:, 0], leaves[1][:, 0], leaves[0])
    changes = (vectors @ matrix(inventory).t()).view(-1, 12, 8)
    expected = y + torch.einsum("boi,bli->blo", changes, x)
    assert_same(found, expected, leaves)


@pytest.mark.parametrize("vector", ["said", "model", "layer"])
def test_a_model_equals_its_backbone_with_changed_weights(vector: str) -> None:
    """One task alone, against the backbone whose weights are θ0 + λ P θ; gradients of θ too."""
    ours = model(vector)
    inputs, task = batch(2), 1
    inventories = {path: layer.inventory for path, layer in ours.skilled_layers().items()}
    leaves = [parameter for one in inventories.values() for parameter in one.parameters()]
    mixed = task_mixing(ours.router, task)
    weights = dict(tiny_t5().double().named_parameters())
    first: IntrinsicInventory = next(iter(inventories.values()))
    for path, layer in ours.skilled_layers().items():
        own = layer.inventory
        scales = own.scales if vector == "said" else torch.ones(K, 1).double()
        theta = mixed[layer.group] @ (scales * (own.vector if vector == "layer" else first.vector))
        base = weights[f"{path}.weight"]
        weights[f"{path}.weight"] = base + (matrix(own) @ theta[0]).view_as(base)
    plain = functional_call(tiny_t5().double().eval(), weights, kwargs=inputs).logits
    found = ours(torch.full((2,), task), **inputs).logits
    assert_same(found, plain, leaves)


def test_a_vector_of_the_model_exists_once_and_is_saved_once() -> None:
    ours = model("model")
    tensors = skill_tensors(ours)
    assert [tuple(value.shape) for value in tensors.values()] == [(K, D)]
    assert sum(name.endswith("vector") for name, _ in ours.named_parameters()) == 1
    scaled = model("said")
    n_layers = len(scaled.skilled_layers())
    sizes = [value.numel() for value in skill_tensors(scaled).values()]
    assert (len(sizes), sum(sizes)) == (n_layers + 1, K * D + n_layers * K)


def test_projections_are_of_the_path_and_the_seed() -> None:
    layers = list(model("model").skilled_layers().values())
    same, other = model("model"), model("model", seed=1)
    vector = torch.ones(1, D).double()
    found = [layer.inventory._project(vector) for layer in layers]
    assert not torch.allclose(found[0], found[1])
    for ours, twin, changed in zip(
        found, same.skilled_layers().values(), other.skilled_layers().values(), strict=True
    ):
        assert torch.equal(ours, twin.inventory._project(vector))
        assert not torch.allclose(ours, changed.inventory._project(vector))


def test_a_first_pass_without_gradients_leaves_training_alone() -> None:
    """Lightning validates in inference mode, whose tensors no backward pass may read."""
    ours, inputs, tasks = model(), batch(2), torch.tensor([0, 2])
    with torch.inference_mode():
        ours(tasks, **inputs)
    ours(tasks, **inputs).loss.backward()
