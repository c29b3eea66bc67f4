import pytest

from helpers.raw import rows, write_raw
from mttl.tasks.building import sources
from mttl.tasks.building.hub import UnavailableError
from mttl.tasks.building.sources import local_files, open_records
from mttl.tasks.task import Source

COLOURS = Source("maker/colours", train="train", test="validation")


def test_raw_records(tmp_path):
    """Packed or not, and under the name of the data set without its maker's."""
    raw = write_raw(tmp_path)
    assert list(open_records(COLOURS, "train", raw=raw)) == rows(60)
    assert list(open_records(COLOURS, "validation", raw=raw)) == rows(9)
    assert [path.name for path in local_files(COLOURS, raw)] == [
        "train.jsonl.gz",
        "validation.jsonl",
    ]


def test_raw_records_that_are_not_there(tmp_path):
    with pytest.raises(
        UnavailableError, match=r"has no file colours__default/train\.jsonl\[\.gz\]"
    ):
        open_records(COLOURS, "train", raw=tmp_path)
    assert local_files(COLOURS, tmp_path) == []
    assert local_files(COLOURS, None) == []


def test_own_files(tmp_path):
    path = tmp_path / "mine.tsv"
    path.write_text("a\t0\n")
    mine = Source(None, train=str(path), columns=("text", "label"))
    assert list(open_records(mine, mine.train, raw=tmp_path)) == [{"text": "a", "label": "0"}]
    assert local_files(mine, None) == [path]


def test_sources_that_left_the_hub_are_not_asked_for():
    gone = Source("x", train="train", unavailable="it was withdrawn; ask its makers")
    with pytest.raises(UnavailableError, match="it was withdrawn; ask its makers"):
        open_records(gone, "train")


def test_all_else_is_on_the_hub(monkeypatch):
    monkeypatch.setattr(sources, "hub_records", lambda source, split: [(source.path, split)])
    assert open_records(COLOURS, "train") == [("maker/colours", "train")]
