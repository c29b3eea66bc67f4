import logging
import multiprocessing
import os

import datasets
import pytest
from datasets import Dataset

from mttl.data.cache import cached


def build():
    return Dataset.from_dict({"x": [1, 2, 3], "y": [["a"], [], ["b", "c"]]})


def must_not_build():
    raise AssertionError("built again")


def test_the_second_call_reads(tmp_path, caplog, capfd):
    cache = tmp_path / "deep" / "cache"
    first = cached(build, "key", cache)
    second = cached(must_not_build, "key", cache)
    assert first.to_dict() == second.to_dict() == build().to_dict()
    assert [path.name for path in cache.iterdir()] == ["key"]
    assert not caplog.records
    assert capfd.readouterr() == ("", "")  # no progress bar
    assert not datasets.are_progress_bars_disabled()


def test_keys_are_apart(tmp_path):
    cached(build, "one", tmp_path)
    other = cached(lambda: Dataset.from_dict({"x": [9]}), "two", tmp_path)
    assert other["x"][:] == [9]
    assert cached(must_not_build, "one", tmp_path)["x"][:] == [1, 2, 3]


def flip_a_byte(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    [
        lambda place: flip_a_byte(next(place.glob("*.arrow"))),
        lambda place: os.truncate(next(place.glob("*.arrow")), 10),
        lambda place: next(place.glob("*.arrow")).unlink(),
        lambda place: (place / "checksums.json").unlink(),
        lambda place: (place / "checksums.json").write_text("{"),
        lambda place: (place / "state.json").write_text("{}"),
    ],
    ids=["byte", "truncated", "file gone", "no checksums", "bad checksums", "state"],
)
def test_a_damaged_cache_is_built_again_with_a_warning(tmp_path, caplog, damage):
    cached(build, "key", tmp_path)
    damage(tmp_path / "key")
    with caplog.at_level(logging.WARNING):
        again = cached(build, "key", tmp_path)
    assert again.to_dict() == build().to_dict()
    assert "is damaged; it is built again" in caplog.text
    assert cached(must_not_build, "key", tmp_path).to_dict() == build().to_dict()
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_a_cache_that_cannot_be_written(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        dataset = cached(build, "key", tmp_path / "file" / "cache")
    assert dataset.to_dict() == build().to_dict()
    assert "cannot be written" in caplog.text


def test_a_failed_build_leaves_nothing(tmp_path):
    def fail():
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        cached(fail, "key", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_failed_save_leaves_nothing(tmp_path, monkeypatch, caplog):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Dataset, "save_to_disk", full)
    assert cached(build, "key", tmp_path)["x"][:] == [1, 2, 3]
    assert "No space left on device" in caplog.text
    assert not list(tmp_path.iterdir())


def build_together(cache, barrier, results):
    def slowly():
        barrier.wait()  # both have seen that the cache is not there
        return build()

    results.put(cached(slowly, "key", cache).to_dict())


def test_two_processes_that_build_at_once(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(2), context.Queue()
    processes = [
        context.Process(target=build_together, args=(tmp_path, barrier, results)) for _ in range(2)
    ]
    for process in processes:
        process.start()
    both = [results.get(timeout=250) for _ in processes]
    for process in processes:
        process.join(timeout=60)
    assert both == [build().to_dict()] * 2
    assert [path.name for path in tmp_path.iterdir()] == ["key"]
    assert cached(must_not_build, "key", tmp_path).to_dict() == build().to_dict()
