"""What `datasets` says of records that it cannot give.

What it asks a hub, and gets, is in `test_hub_server.py`.
"""

import errno

import datasets
import pytest
from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError
from huggingface_hub.errors import HfHubHTTPError

from helpers.raw import rows, write_raw
from mttl.io.errors import TaskError
from mttl.tasks.building import hub
from mttl.tasks.building.hub import (
    PARQUET,
    UnavailableError,
    hub_records,
    local_files,
    open_records,
)
from mttl.tasks.task import Source
from mttl.tasks.task_file import parse_tasks


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
        (REFUSAL, r"'m/x' cannot be loaded \(503 Service"),
        (ConnectionError("Couldn't reach"), "the hub is unreachable, or HF_HUB_OFFLINE is set"),
        (ReadTimeout("slow"), "the hub is unreachable, or HF_HUB_OFFLINE is set"),
        (OSError("Couldn't deserialize thrift"), "'m/x' cannot be loaded .Couldn't deserialize"),
        (DatasetNotFoundError("it is a gated dataset"), "'m/x' is gated; accept its terms"),
    ],
)
def test_reasons(monkeypatch, error, message):
    monkeypatch.setattr(datasets, "load_dataset_builder", raising(error))
    with pytest.raises(UnavailableError, match=message) as caught:
        hub_records(source("m/x", mirrors=("n/x",)), "train")
    assert "from https://huggingface.co/datasets/m/x, then use --raw" in str(caught.value)
    assert str(caught.value).count("the hub is unreachable, or HF_HUB_OFFLINE is set") <= 1


def test_a_connection_that_breaks_while_records_are_read(monkeypatch):
    class Breaking:
        def iter(self, n):
            yield {"text": ["a"]}
            raise ConnectionError("reset")

    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: Breaking())
    found = hub_records(source("x", revision=PARQUET), "train")
    assert next(found) == {"text": "a"}
    with pytest.raises(UnavailableError, match="the hub is unreachable, or HF_HUB_OFFLINE is set"):
        next(found)


def test_a_full_disk_is_no_reason_of_the_source(monkeypatch):
    """The library wraps it; it must end the build."""
    error = DatasetGenerationError("An error occurred while generating the dataset")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(datasets, "load_dataset_builder", raising(error))
    with pytest.raises(OSError, match="No space left on device"):
        hub_records(source("x"), "train")

    monkeypatch.setattr(datasets, "load_dataset_builder", raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):  # a fault of the program
        hub_records(source("x"), "train")


COLOURS = Source("maker/colours", train="train", test="validation")


def test_raw_records(tmp_path):
    """Packed or not, and under the name of the data set without its maker's."""
    raw = write_raw(tmp_path)
    assert list(open_records(COLOURS, "train", raw=raw)) == rows(60)
    assert list(open_records(COLOURS, "validation", raw=raw)) == rows(9)
    names = [path.name for path in local_files(COLOURS, raw)]
    assert names == ["train.jsonl.gz", "validation.jsonl"]
    # Records that are not there.
    message = r"has no file colours__default/train\.jsonl\[\.gz\]"
    with pytest.raises(UnavailableError, match=message):
        open_records(COLOURS, "train", raw=tmp_path / "other")
    assert local_files(COLOURS, tmp_path / "other") == local_files(COLOURS, None) == []
    gone = Source("x", train="train", unavailable="it was withdrawn; ask its makers")
    with pytest.raises(UnavailableError, match="it was withdrawn; ask its makers"):
        open_records(gone, "train")


def test_own_files_and_all_else_is_on_the_hub(tmp_path, monkeypatch):
    path = tmp_path / "mine.tsv"
    path.write_text("a\t0\n")
    mine = Source(None, train=str(path), columns=("text", "label"))
    assert list(open_records(mine, mine.train, raw=tmp_path)) == [{"text": "a", "label": "0"}]
    assert local_files(mine, None) == [path]
    monkeypatch.setattr(hub, "hub_records", lambda source, split: [(source.path, split)])
    assert open_records(COLOURS, "train") == [("maker/colours", "train")]


def test_a_folder_that_exists_is_never_looked_up(tmp_path, monkeypatch):
    """`save_to_disk` writes a folder per split; a data set without splits is the train split."""
    monkeypatch.setattr(hub, "hub_records", raising(AssertionError("a request")))
    rows = datasets.Dataset.from_dict({"text": ["a", "b"], "label": ["x", "y"]})
    rows.save_to_disk(tmp_path / "alone")
    datasets.DatasetDict({"train": rows, "new": rows.select([1])}).save_to_disk(tmp_path / "both")

    def read(source):
        keys = 'kind: text-to-text\nmetric: ACC\ninput: "{text}"\noutput: "{label}"'
        text = f"{keys}\ntasks: {{one: {{source: {source}}}}}"
        return parse_tasks(text, "mine.yaml", tmp_path)["one"].source

    both = read("{path: both, test: new}")
    assert [len(list(open_records(both, split))) for split in both.splits] == [2, 1]
    alone = read("{path: alone}")
    assert list(open_records(alone, alone.train)) == list(rows)
    assert {path.name for path in local_files(alone, None)} >= {"state.json", "dataset_info.json"}
    with pytest.raises(TaskError, match=r"source\.dev: '.*both' has the splits new, train"):
        read("{path: both, dev: newer}")
    (tmp_path / "alone" / "state.json").write_text("{}")
    with pytest.raises(TaskError, match="alone' cannot be read"):
        list(open_records(alone, alone.train))
