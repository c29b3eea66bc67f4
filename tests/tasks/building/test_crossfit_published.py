"""Real records give the published files, byte for byte.

The records and a gym built from them by CrossFit's own program lie beside the project; without them
the tests are skipped.
"""

import csv
import hashlib

import pytest

from helpers.fact_templates import SHARED
from mttl.tasks.building.build_gym import build_task
from mttl.tasks.folder import Gym
from mttl.tasks.sampling import SAMPLES
from mttl.tasks.task import published_sums
from mttl.tasks.task_file import crossfit

RAW, GYM = SHARED / "crossfit_raw", SHARED / "crossfit"


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


@pytest.mark.skipif(not GYM.is_dir(), reason=f"no gym at {GYM}; set MTTL_SHARED")
@pytest.mark.parametrize("name", served() or ABSENT)
def test_the_gym_beside_us_is_equal(name, gym):
    """Where its own table says that it was made from the same records.

    That is so for the samples of 45 of the 48 tasks and the test files of 44. Its test files hold
    200 of the rows at most.
    """
    build_task(crossfit()[name], gym, raw=RAW)
    with (GYM / "TASKS.csv").open(newline="", encoding="utf-8") as file:
        said = {row["task"]: row for row in csv.DictReader(file)}[name]
    for path in sorted((GYM / name).glob("*.tsv")):
        ours, theirs = (gym / name / path.name).read_bytes(), path.read_bytes()
        if path.name.endswith("_test.tsv"):
            if said["test_source_same_as_published"] == "yes":
                assert set(theirs.splitlines()) <= set(ours.splitlines())
        elif said["same_samples_as_published"] == "yes":
            assert ours == theirs, path.name
        else:  # ours has its published sum, so what differs cannot have
            md5 = hashlib.md5(theirs, usedforsecurity=False).hexdigest()
            assert ours == theirs or md5 != published_sums()[name][path.name]


@pytest.mark.skipif(not GYM.is_dir(), reason=f"no gym at {GYM}; set MTTL_SHARED")
def test_every_file_of_the_gym_beside_us_loads():
    gym = Gym(GYM)
    n_files = 0
    for task in gym.tasks():
        assert gym.metric(task) == crossfit()[task].metric
        for sample in gym.samples(task):
            for split in ("train", "dev", "test"):
                assert gym.rows(task, split, sample)
                n_files += 1
    assert n_files == len(list(GYM.rglob("*.tsv")))
    assert len(gym.tasks()) == 100
