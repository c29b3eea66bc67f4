"""Settings of runs that other processes repeat."""

from pathlib import Path

import pytest

from helpers.gyms import TINY_T5, write_config, write_gym


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration without noise, of answers that differ in length."""
    folder = tmp_path_factory.mktemp("still")
    return write_config(
        folder / "tiny.yaml",
        write_gym(folder / "gym", lengths=(1, 6)),
        backbone={"config": {**TINY_T5["config"], "dropout_rate": 0.0}},
        router={"relaxed": False},
    )
