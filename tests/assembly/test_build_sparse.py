"""Sparse skills and supermasks from configurations, with supports from files."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helpers.gyms import write_config, write_gym
from mttl.assembly.build_backbone import build_backbone
from mttl.assembly.model import build_model, inventory_settings, load_run
from mttl.config.load import load_config
from mttl.io.errors import ConfigError
from mttl.skills.weights.supports import random_support
from mttl.sparse.skill_file import SparseSkill


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("config")
    return write_config(folder / "tiny.yaml", write_gym(folder / "gym"))


def write_support(path: Path, config: Path, structure: str = "entries") -> SparseSkill:
    """Write a sparse file whose tensors have different numbers of entries."""
    backbone = build_backbone(load_config(str(config), []).backbone)
    weights = {name: value.detach() for name, value in backbone.named_parameters()}
    chosen = {name: value.shape for name, value in weights.items() if value.ndim == 2}
    support = random_support(chosen, 0.05, structure=structure)
    SparseSkill.between(weights, weights, support).save(path)
    return SparseSkill.load(path)


@pytest.mark.parametrize(("kind", "structure"), [("sparse", "entries"), ("far", "rows")])
def test_a_support_from_a_file_survives_saving_and_the_file(config, tmp_path, kind, structure):
    path = tmp_path / "support.safetensors"
    skill = write_support(path, config, structure)
    found = load_config(f"{config}+skills/{kind}.yaml", [f"skills.support={path}"])
    tasks = ["one", "two"]
    built = build_model(found, tasks)
    for place, layer in built.model.skilled_layers().items():
        expected = skill.support[f"{place}.weight"]
        expected = expected.expand(found.skills.n_skills, -1)
        if kind == "far":
            expected = (expected[0] // layer.inventory.in_features).unique()
        assert torch.equal(layer.inventory.indices, expected)
        torch.nn.init.normal_(layer.inventory.values)
    folder = tmp_path / "run" / "skills"
    built.save_skills(folder, inventory_settings(found))
    path.unlink()
    loaded = load_run(folder)
    for place, layer in loaded.model.skilled_layers().items():
        other = built.model.skilled_layers()[place]
        for name, value in layer.inventory.state_dict().items():
            assert torch.equal(value, other.inventory.state_dict()[name])


def test_a_support_that_does_not_fit_is_the_users_mistake(config, tmp_path):
    files = f"{config}+skills/sparse.yaml"
    with pytest.raises(ConfigError, match=r"skills\.support .*does not exist"):
        build_model(load_config(files, ["skills.support=nowhere.safetensors"]), ["one"])
    path = tmp_path / "support.safetensors"
    SparseSkill({}).save(path)
    with pytest.raises(ConfigError, match=r"skills\.support .*has no entries for the layers"):
        build_model(load_config(files, [f"skills.support={path}"]), ["one"])
    pruned = replace(write_support(path, config), about={"form": "masked"})
    pruned.save(path)
    with pytest.raises(ConfigError, match=r"skills\.support .*trained with --form masked"):
        build_model(load_config(files, [f"skills.support={path}"]), ["one"])
    with pytest.raises(ConfigError, match="sparsity cannot be set if support names a file"):
        load_config(files, [f"skills.support={path}", "skills.sparsity=0.5"])


def test_masked_sparse_skills_start_as_the_pruned_network(config, tmp_path):
    """Fresh ones are θ∘b of the file, whose kept entries they change; also after loading."""
    found = load_config(f"{config}+skills/masked_sparse.yaml", [])
    torch.manual_seed(1)
    backbone = build_backbone(found.backbone)  # of random weights
    start = {name: value.detach() for name, value in backbone.named_parameters()}
    path, end, kept = tmp_path / "pruned.safetensors", dict(start), {}
    for name, value in start.items():
        if value.ndim == 2 and "block" in name:
            mask = torch.rand(value.shape, generator=torch.Generator().manual_seed(1)) < 0.3
            end[name], kept[name] = (value + 0.1) * mask, mask
    every = {name: torch.arange(start[name].numel()) for name in kept}
    SparseSkill.between(start, end, every, {"form": "masked"}).save(path)
    found = load_config(f"{config}+skills/masked_sparse.yaml", [f"skills.support={path}"])
    torch.manual_seed(1)
    built = build_model(found, ["one", "two"])
    uniform = torch.full((1, found.skills.n_skills), 1 / found.skills.n_skills)
    layers = built.model.skilled_layers()
    for place, layer in layers.items():
        mask, skills = kept[f"{place}.weight"], layer.inventory
        weight, _ = skills.fold(layer.weight, None, uniform)
        assert torch.equal(weight, layer.weight * mask)
        torch.nn.init.ones_(skills.difference.values)
        weight, _ = skills.fold(layer.weight, None, uniform)
        torch.testing.assert_close(weight, (layer.weight + 1) * mask)
    built.save_skills(tmp_path / "run" / "skills", inventory_settings(found))
    path.unlink()
    loaded = load_run(tmp_path / "run" / "skills").model.skilled_layers()
    for place, layer in layers.items():
        state = layer.inventory.state_dict()
        for name, value in loaded[place].inventory.state_dict().items():
            assert torch.equal(value, state[name])
        loaded[place].inventory.reset_parameters()
        weight, _ = loaded[place].inventory.fold(layer.weight, None, uniform)
        assert torch.equal(weight, layer.weight * kept[f"{place}.weight"])


def test_a_masked_support_of_other_weights_is_refused(config, tmp_path):
    path, other = tmp_path / "pruned.safetensors", tmp_path / "other.safetensors"
    skill = replace(write_support(path, config), about={"form": "masked"})
    skill.save(path)
    replace(skill, about={"form": "masked", "on": ["language"]}).save(other)
    changed = {name: replace(one, base="0") for name, one in skill.changes.items()}
    replace(skill, changes=changed).save(path)
    for file in (path, other):
        files = f"{config}+skills/masked_sparse.yaml"
        with pytest.raises(ConfigError, match=r"with --form masked on other weights of '"):
            build_model(load_config(files, [f"skills.support={file}"]), ["one"])
