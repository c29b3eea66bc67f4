"""Records by `datasets`: from Parquet files on this disk, and what it says of those it has not.

What it asks a hub, and gets, is in `test_hub_server.py`.
"""

import errno

import datasets
import pytest
from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError

from helpers.raw import rows
from mttl.tasks.building.hub import PARQUET, UnavailableError, hub_records
from mttl.tasks.task import Source

CARD = """---
configs:
- config_name: plain
  data_files:
  - {{split: train, path: plain/train/*.parquet}}
  - {{split: validation, path: plain/validation/*.parquet}}
dataset_info:
  config_name: plain
  features:
  - {{name: text, dtype: string}}
  - {{name: label, dtype: int64}}
  splits:
  - {{name: train, num_bytes: {train}, num_examples: 20}}
  - {{name: validation, num_bytes: 100, num_examples: 5}}
---
"""


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A data set with splits whose names share a beginning, and a card with their sizes."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for split, n in [("train", 20), ("train_r2", 3), ("validation", 5)]:
        folder = tmp_path / "set" / "plain" / split
        folder.mkdir(parents=True)
        datasets.Dataset.from_list(rows(n)).to_parquet(folder / "0000.parquet")
    (tmp_path / "set" / "README.md").write_text(CARD.format(train=900))
    return tmp_path / "set"


def source(path, **changes):
    return Source(**{"path": str(path), "train": "train", "config": "plain", **changes})


def test_records_of_a_table(repository):
    assert list(hub_records(source(repository, test="validation"), "train")) == rows(20)


def test_names_are_tried_in_turn(repository, monkeypatch):
    seen = []
    load = datasets.load_dataset_builder

    def builder(path, *args, **options):
        seen.append((path, options["revision"]))
        if path == "a/old":
            raise DatasetNotFoundError("Dataset 'a/old' doesn't exist")
        return load(path, *args, **options)

    monkeypatch.setattr(datasets, "load_dataset_builder", builder)
    found = hub_records(source("a/old", revision="v1", mirrors=(str(repository),)), "train")
    assert list(found) == rows(20)
    assert seen == [("a/old", "v1"), (str(repository), None)]


class ReadTimeout(Exception):
    __module__ = "httpx2._exceptions"


def raising(error):
    def load(*args, **options):
        raise error

    return load


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ConnectionError("Couldn't reach"), "there is no way to the hub, or HF_HUB_OFFLINE is set"),
        (ReadTimeout("slow"), "there is no way to the hub, or HF_HUB_OFFLINE is set"),
        (OSError("Couldn't deserialize thrift"), "'m/x' cannot be loaded .Couldn't deserialize"),
        (
            DatasetNotFoundError("Dataset 'm/x' is a gated dataset"),
            "'m/x' is gated: accept its terms",
        ),
        (
            DatasetNotFoundError("Dataset 'm/x' doesn't exist"),
            "'m/x' is not on the hub .Dataset 'm/x' do",
        ),
        (ValueError("BuilderConfig 'plain' not found."), "'m/x' cannot be loaded .BuilderConfig"),
        (FileNotFoundError("no data files"), "'m/x' cannot be loaded .no data files"),
    ],
)
def test_reasons(monkeypatch, error, message):
    monkeypatch.setattr(datasets, "load_dataset_builder", raising(error))
    with pytest.raises(UnavailableError, match=message) as caught:
        hub_records(source("m/x", mirrors=("n/x",)), "train")
    assert "By hand: https://huggingface.co/datasets/m/x, then --raw" in str(caught.value)
    assert str(caught.value).count("no way to the hub") <= 1


def test_a_refusal_of_the_hub(monkeypatch):
    from huggingface_hub.errors import HfHubHTTPError

    error = HfHubHTTPError.__new__(HfHubHTTPError)  # it asks for a response of the http library
    Exception.__init__(error, "503 Service Unavailable")
    monkeypatch.setattr(datasets, "load_dataset_builder", raising(error))
    with pytest.raises(UnavailableError, match=r"'x' was refused by the hub \(503 Service"):
        hub_records(source("x"), "train")


def test_without_a_hub():
    """`HF_HUB_OFFLINE` is set for all tests."""
    with pytest.raises(UnavailableError, match="there is no way to the hub"):
        hub_records(source("glue", config="rte"), "train")


def test_a_connection_that_breaks_while_records_are_read(monkeypatch):
    class Breaking:
        def iter(self, n):
            yield {"text": ["a"]}
            raise ConnectionError("reset")

    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: Breaking())
    found = hub_records(source("x", revision=PARQUET), "train")
    assert next(found) == {"text": "a"}
    with pytest.raises(UnavailableError, match="there is no way to the hub"):
        next(found)


def test_a_full_disk_is_no_reason_of_the_source(monkeypatch):
    """The library wraps it; it must end the build."""
    error = DatasetGenerationError("An error occurred while generating the dataset")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(datasets, "load_dataset_builder", raising(error))
    with pytest.raises(OSError, match="No space left on device"):
        hub_records(source("x"), "train")


def test_faults_of_the_program_are_not_swallowed(monkeypatch):
    monkeypatch.setattr(datasets, "load_dataset_builder", raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        hub_records(source("x"), "train")
