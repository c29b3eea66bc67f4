"""A base and two models tuned from it, on disk in shards, with Fisher information."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from helpers.backbones import fill, tiny_bart
from mttl.merging.recipe import Recipe

NAMES = ("base", "good", "bad")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the models ``base``, ``good`` and ``bad``, and their Fisher files."""
    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(NAMES):
        model = tiny_bart()
        fill(model, seed)
        # Only the base's shards decide about those of the result.
        model.save_pretrained(folder / name, max_shard_size="5GB" if seed else "20KB")
        generator = torch.Generator().manual_seed(seed)
        fisher = {
            tensor: 10 ** (8 * torch.rand(value.shape, generator=generator) - 8)
            for tensor, value in model.named_parameters()
        }
        save_file(fisher, folder / f"{name}.safetensors")
    return folder


@pytest.fixture
def make(models: Path) -> Callable[..., Recipe]:
    """Return a function that makes a recipe of a method, for both models."""

    def recipe(kind: str, *, fishers: str = "", **method: object) -> Recipe:
        def entry(name: str) -> dict[str, object]:
            given = {"model": str(models / name)}
            return given | (
                {"fisher": str(models / f"{name}.safetensors")} if name in fishers else {}
            )

        role = "expert" if kind == "fisher_average" else "anti_expert"
        return Recipe.model_validate(
            {
                "base": entry("base"),
                "models": [entry("good"), entry("bad") | {"role": role}],
                "method": {"kind": kind, **method},
            }
        )

    return recipe
