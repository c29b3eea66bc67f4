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


def write_support(path: Path, config: Path) -> SparseSkill:
    """Write a sparse file whose tensors have different numbers of entries."""
    backbone = build_backbone(load_config(str(config), []).backbone)
    weights = {name: value.detach() for name, value in backbone.named_parameters()}
    chosen = {name: value.shape for name, value in weights.items() if value.ndim == 2}
    support = random_support(chosen, 0.05)
    SparseSkill.between(weights, weights, support).save(path)
    return SparseSkill.load(path)


def test_a_support_from_a_file_survives_saving_and_the_file(config, tmp_path):
    path = tmp_path / "support.safetensors"
    skill = write_support(path, config)
    found = load_config(f"{config}+skills/sparse.yaml", [f"skills.support={path}"])
    tasks = ["one", "two"]
    built = build_model(found, tasks)
    for place, layer in built.model.skilled_layers().items():
        expected = skill.support[f"{place}.weight"]
        assert torch.equal(layer.inventory.indices, expected.expand(found.skills.n_skills, -1))
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
    with pytest.raises(ConfigError, match=r"skills\.support .*has no layer with skills"):
        build_model(load_config(files, [f"skills.support={path}"]), ["one"])
    pruned = replace(write_support(path, config), about={"form": "masked"})
    pruned.save(path)
    with pytest.raises(ConfigError, match=r"skills\.support .*belongs to a pruned network"):
        build_model(load_config(files, [f"skills.support={path}"]), ["one"])
    with pytest.raises(ConfigError, match="sparsity cannot be set if support names a file"):
        load_config(files, [f"skills.support={path}", "skills.sparsity=0.5"])
