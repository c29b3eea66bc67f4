"""Real records give the published files, byte for byte.

The records lie beside the project; without them the tests are skipped.
"""

import csv

import pytest

from helpers.fact_templates import SHARED
from mttl.tasks.building.build_gym import build_task
from mttl.tasks.folder import Gym
from mttl.tasks.sampling import SAMPLES
from mttl.tasks.task_file import crossfit

RAW = SHARED / "crossfit_raw"


def served() -> list[str]:
    index = RAW / "INDEX.csv"
    if not index.is_file():
        return []
    with index.open(newline="", encoding="utf-8") as file:
        return sorted(name for row in csv.DictReader(file) for name in row["tasks"].split())


@pytest.fixture(scope="module")
def gym(tmp_path_factory):
    """The gym of all tests here: every task adds its files."""
    return tmp_path_factory.mktemp("gym")


ABSENT = [pytest.param("", marks=pytest.mark.skip(f"no raw records at {RAW}; set MTTL_SHARED"))]


@pytest.mark.parametrize("name", served() or ABSENT)
def test_files_are_the_published_ones(name, gym):
    """All five samples, 15 files; of 48 tasks."""
    assert len(served()) == 48
    outcome = build_task(crossfit()[name], gym, raw=RAW)
    assert (outcome.status, outcome.skipped) == ("verified", False), outcome.detail
    assert len(list((gym / name).glob("*.tsv"))) == 15
    built = Gym(gym)
    for sample in SAMPLES:
        assert all(built.rows(name, split, sample) for split in ("train", "dev", "test"))
