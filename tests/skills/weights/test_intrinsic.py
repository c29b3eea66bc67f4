"""Intrinsic skills and their random projections, beside plain products with matrices."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
import torch
from scipy.linalg import hadamard
from torch.func import functional_call

from helpers.backbones import batch, tiny_t5
from helpers.compare import assert_same
from helpers.skills import filled, mixing, skilled
from mttl.checkpoints.model_tensors import skill_tensors
from mttl.merging.fold import task_mixing
from mttl.skills import IntrinsicInventory, SkilledModel
from mttl.skills.weights.intrinsic import (
    SMALL,
    DenseProjection,
    Fastfood,
    power_of_two,
    walsh_hadamard,
)

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


CPU = torch.device("cpu")


@pytest.mark.parametrize("n", [1, 2, SMALL, 2 * SMALL, 4096])
def test_the_transform_is_the_product_with_the_matrix(n: int) -> None:
    x = torch.randn(3, n).double()
    torch.testing.assert_close(walsh_hadamard(x), x @ torch.tensor(hadamard(n)).double())


@pytest.mark.parametrize(("n_in", "n_out"), [(5, 12), (1, 7), (100, 12), (8, 4096), (64, 1000)])
def test_fastfood_equals_the_released_formula(n_in: int, n_out: int) -> None:
    """The vector is padded to the size of the transforms, the result cut and divided.

    So does `intrinsic.py` of r-three/t-few; here with the draws in the order of this project.
    """
    size = power_of_two(max(n_in, n_out))
    draws = np.random.RandomState(3)
    signs = 2.0 * draws.randint(0, 2, n_in) - 1
    order, scales = draws.permutation(size), draws.standard_normal(size)
    matrix = hadamard(size)
    x = np.random.RandomState(1).standard_normal(n_in)
    padded = np.concatenate([x * signs, np.zeros(size - n_in)])
    whole = matrix @ (scales * (matrix @ padded)[order])
    divisor = np.sqrt(size * np.square(scales).sum()) * np.sqrt(n_out / size)
    found = Fastfood(n_in, n_out, 3, CPU)(torch.tensor(x)[None])[0]
    # Scales are kept in single precision.
    torch.testing.assert_close(found, torch.tensor(whole[:n_out] / divisor), rtol=1e-5, atol=1e-6)


def test_draws_are_the_same_everywhere() -> None:
    """Runs hold no projection: another stream would make them useless."""
    dense = DenseProjection(1, 3, 7, CPU)(torch.ones(1, 1))[0]
    fast = Fastfood(2, 4, 7, CPU)(torch.tensor([[1.0, 2.0]]))[0]
    expected = torch.tensor([0.9638844132, -0.2656627893, 0.0187130217])
    torch.testing.assert_close(dense, expected)
    expected = torch.tensor([-0.1153975725, 0.8869695067, 0.9585935473, -1.6795251369])
    torch.testing.assert_close(fast, expected)


def test_a_matrix_that_is_too_large_is_refused() -> None:
    with pytest.raises(ValueError, match="is too large, because it has more than 67,108,864"):
        IntrinsicInventory(1000, 1000, 1, dimension=80, projection="dense")
