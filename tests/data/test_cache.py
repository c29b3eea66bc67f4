import logging
import multiprocessing
import os
import shutil

import pyarrow as pa
import pytest
from datasets import Features, List, Value

from mttl.data import cache
from mttl.data.cache import in_memory

FEATURES = Features({"x": Value("int64"), "y": List(Value("string"))})


def build(write):
    write({"x": [1, 2], "y": [["a"], []]})
    write({"x": [3], "y": [["b", "c"]]})
    return "three rows"


def must_not_build(write):
    raise AssertionError("built again")


def cached(build, key, cache_dir):
    return cache.cached(build, FEATURES, key, cache_dir)


ALL = {"x": [1, 2, 3], "y": [["a"], [], ["b", "c"]]}


def test_the_second_call_reads(tmp_path, caplog, capfd):
    folder = tmp_path / "deep" / "cache"
    first = cached(build, "key", folder)
    second = cached(must_not_build, "key", folder)
    assert first.to_dict() == second.to_dict() == in_memory(build, FEATURES).to_dict() == ALL
    assert second.info.description == in_memory(build, FEATURES).info.description == "three rows"
    assert [path.name for path in folder.iterdir()] == ["key"]
    assert not caplog.records
    assert capfd.readouterr() == ("", "")  # no progress bar


@pytest.mark.parametrize(
    "damage",
    [
        lambda place: os.truncate(place / "rows.arrow", 10),
        lambda place: (place / "rows.arrow").write_bytes(
            (place / "rows.arrow").read_bytes().replace(b"a", b"z")
        ),
        lambda place: (place / "about.txt").write_bytes(b"\xff"),
        lambda place: (place / "rows.arrow").unlink(),
        lambda place: (shutil.rmtree(place), place.write_text("no folder")),
    ],
)
def test_a_damaged_cache_is_not_used(tmp_path, caplog, damage):
    cached(build, "key", tmp_path)
    damage(tmp_path / "key")
    with caplog.at_level(logging.WARNING):
        assert cached(build, "key", tmp_path).to_dict() == ALL
    assert "cannot be used" in caplog.text


def test_a_failed_build_or_save_leaves_nothing(tmp_path, monkeypatch, caplog):
    def fail(write):
        write(ALL)
        raise RuntimeError("no")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with pytest.raises(RuntimeError, match="no"):
        cached(fail, "key", tmp_path)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(pa.ipc, "new_stream", full)
    assert cached(build, "key", tmp_path)["x"][:] == [1, 2, 3]
    assert "No space left on device" in caplog.text
    assert not list(tmp_path.iterdir())


def build_together(folder, barrier, results):
    def slowly(write):
        barrier.wait()  # both have seen that the cache is not there
        return build(write)

    results.put(cached(slowly, "key", folder).to_dict())


def test_two_processes_that_build_at_once(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(2), context.Queue()
    given = tmp_path, barrier, results
    processes = [context.Process(target=build_together, args=given) for _ in range(2)]
    for process in processes:
        process.start()
    both = [results.get(timeout=250) for _ in processes]
    for process in processes:
        process.join(timeout=60)
    assert both == [ALL] * 2
    assert [path.name for path in tmp_path.iterdir()] == ["key"]
    assert cached(must_not_build, "key", tmp_path).to_dict() == ALL
