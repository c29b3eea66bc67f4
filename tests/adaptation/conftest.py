"""A trained run that tasks are adapted from."""

from pathlib import Path

import pytest

from helpers.new_tasks import train_source


@pytest.fixture(scope="package")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_source(tmp_path_factory.mktemp("run"))
