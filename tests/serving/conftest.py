"""Trained runs of random weights, and servers of them."""

from pathlib import Path
from typing import Any

import pytest

import mttl
from helpers.command import train
from helpers.gyms import TINY_LLAMA, TINY_T5, write_config, write_gym
from helpers.serving import serving
from mttl.build.model import Built

# Random weights that are large: answers depend on the question without any training.
LARGE = {"initial_scale": {"*": 3.0}}
BACKBONES = {"t5": {**TINY_T5, **LARGE}, "llama": {**TINY_LLAMA, **LARGE}}


def make_run(root: Path, backbone: dict, **sections: dict) -> Path:
    gym = write_gym(root / "gym")
    config = write_config(root / "tiny.yaml", gym, backbone=backbone, **sections)
    return train(config, "source", "trainer.max_steps=1", "data.validation=none").path


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: make_run(tmp_path_factory.mktemp(kind), BACKBONES[kind]) for kind in BACKBONES}


@pytest.fixture(scope="session")
def beams(tmp_path_factory: pytest.TempPathFactory) -> Path:
    searches = {"num_beams": 3, "length_penalty": 0.5}
    backbone = {**TINY_T5, "initial_scale": {"*": 1.5}}  # less sure, so that beams find more
    return make_run(tmp_path_factory.mktemp("beams"), backbone, generation=searches)


@pytest.fixture(params=list(BACKBONES))
def folder(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Path:
    return folders[request.param]


@pytest.fixture
def run(folder: Path) -> Built:
    return mttl.load(folder)


@pytest.fixture
def serve() -> Any:
    return serving
