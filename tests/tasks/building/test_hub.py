"""What `datasets` says of records that it cannot give.

What it asks a hub, and gets, is in `test_hub_server.py`.
"""

import errno

import datasets
import pytest
from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError
from huggingface_hub.errors import HfHubHTTPError

from mttl.tasks.building.hub import PARQUET, UnavailableError, hub_records
from mttl.tasks.task import Source


def source(path, **changes):
    return Source(**{"path": str(path), "train": "train", "config": "plain", **changes})


class ReadTimeout(Exception):
    __module__ = "httpx2._exceptions"


def raising(error):
    def load(*args, **options):
        raise error

    return load


REFUSAL = HfHubHTTPError.__new__(HfHubHTTPError)  # it asks for a response of the http library
Exception.__init__(REFUSAL, "503 Service Unavailable")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (REFUSAL, r"'m/x' was refused by the hub \(503 Service"),
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
