"""Trained runs of random weights, and servers of them."""

from pathlib import Path

import pytest

import mttl
from helpers.gyms import TINY_T5, make_run
from helpers.serving import BACKBONES
from mttl.assembly.model import Built


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        kind: make_run(tmp_path_factory.mktemp(kind), backbone=backbone)
        for kind, backbone in BACKBONES.items()
    }


@pytest.fixture(scope="session")
def beams(tmp_path_factory: pytest.TempPathFactory) -> Path:
    searches = {"num_beams": 3, "length_penalty": 0.5}
    backbone = {**TINY_T5, "initial_scale": {"*": 1.5}}  # less sure, so that beams find more
    return make_run(tmp_path_factory.mktemp("beams"), backbone=backbone, generation=searches)


@pytest.fixture(params=list(BACKBONES))
def folder(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Path:
    return folders[request.param]


@pytest.fixture
def run(folder: Path) -> Built:
    return mttl.load(folder)
