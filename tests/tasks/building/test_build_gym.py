import errno
import json
import os
import re
import time

import numpy as np
import pytest

from helpers.played_build import play
from helpers.processes import wait_for
from helpers.raw import copying_task, make_task, rows, write_jsonl, write_raw
from mttl.tasks import sample_files
from mttl.tasks.building import build_gym
from mttl.tasks.building.build_gym import Outcome, build_many, build_task, check_task, count_files
from mttl.tasks.convert import convert
from mttl.tasks.folder import SPLITS, Gym
from mttl.tasks.rows import line_of
from mttl.tasks.sampling import SAMPLES, cut, few_shot
from mttl.tasks.task import Source


@pytest.fixture
def raw(tmp_path):
    return write_raw(tmp_path / "raw")


@pytest.fixture
def out(tmp_path):
    return tmp_path / "gym"


def files(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("task", [make_task(), copying_task()])
def test_files_are_what_is_drawn_from_the_lines(raw, out, task):
    outcome = build_task(task, out, raw=raw)
    assert (outcome.status, outcome.skipped) == ("built", False)
    train = list(convert(task, "train", rows(60)))
    test = list(convert(task, "validation", rows(9))) if task.source.test else train
    pool, held_out = cut(task, len(train), len(test) if task.source.test else None)
    for sample in SAMPLES:
        places = few_shot(task, np.arange(60) % 3, pool, sample)
        for split, lines, at in zip(SPLITS, (train, train, test), (*places, held_out), strict=True):
            path = out / task.name / f"{task.name}_2_{sample}_{split}.jsonl"
            expected = [line_of(".jsonl", lines[i][0], lines[i][1:]) for i in at]
            assert path.read_bytes().decode() == "".join(expected)
    assert Gym(out).samples(task.name) == sorted(SAMPLES)
    assert len(files(out)) == 16


def test_what_is_complete_is_not_built_again(raw, out):
    build_task(make_task(), out, raw=raw, samples=[13, 21])
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.jsonl")}
    assert len(before) == 6
    again = build_task(make_task(description="other words"), out, raw=raw, samples=[21])
    assert (again.status, again.skipped) == ("built", True)
    more = build_task(make_task(), out, raw=raw, samples=[13, 42])
    assert (more.status, more.skipped) == ("built", False)
    assert build_task(make_task(), out, raw=raw, samples=[13, 21, 42]).skipped
    assert count_files(make_task(), out) == (9, 15)


def test_another_file_definition_or_source_is_built_again(raw, out):
    build_task(make_task(), out, raw=raw, samples=[13])
    whole = files(out)
    path = out / "colours" / "colours_2_13_dev.jsonl"
    path.write_bytes(path.read_bytes()[:-3])
    outcome = check_task(make_task(), out, samples=[13])
    assert outcome.status == "incomplete"
    assert outcome.detail == "colours_2_13_dev.jsonl has changed since it was built"
    assert build_task(make_task(), out, raw=raw, samples=[13]).status == "built"
    assert files(out) == whole
    path.unlink()
    assert check_task(make_task(), out, samples=[13]).detail == "1 of 3 files are missing"
    assert not build_task(make_task(), out, raw=raw, samples=[13]).skipped
    assert files(out) == whole
    assert not build_task(make_task(input="{text}"), out, raw=raw, samples=[13]).skipped
    assert build_task(make_task(input="{text}"), out, raw=raw, samples=[13]).skipped
    write_jsonl(raw / "colours__default/validation.jsonl", rows(8))
    assert not build_task(make_task(input="{text}"), out, raw=raw, samples=[13]).skipped
    record = out / "colours" / build_gym.RECORD
    for text in ("no JSON", "[]"):
        record.write_text(text)
        assert not build_task(make_task(input="{text}"), out, raw=raw, samples=[13]).skipped


def test_published_sums(raw, out, monkeypatch):
    """Files with published sums need no record of their source; others are reported."""
    build_task(make_task(), out, raw=raw)
    sums = dict(json.loads((out / "colours" / build_gym.RECORD).read_text())["files"])
    monkeypatch.setattr(build_gym, "published_sums", lambda: {"colours": sums})
    assert check_task(make_task(), out).status == "verified"
    (out / "colours" / build_gym.RECORD).unlink()
    assert build_task(make_task(), out).skipped
    sums["colours_2_13_dev.jsonl"] = "0" * 32
    outcome = build_task(make_task(), out, raw=raw)
    assert (outcome.status, outcome.skipped) == ("differs", False)
    assert outcome.detail == "1 of 15 files differ from the published ones"
    assert build_task(make_task(), out, raw=raw).skipped
    distinct = make_task(references="distinct", output="{label|name}")
    outcome = check_task(distinct, out)
    assert outcome.detail.endswith("; the published order of reference answers is unknown")


def test_all_rows_of_files_that_are_split_already(tmp_path, out):
    sizes, files = {"train": 31, "dev": 8, "test": 5}, {}
    for split, n in sizes.items():
        records = [{"text": f"{split} {i}", "label": i % 3} for i in range(n)]
        files[split] = str(write_jsonl(tmp_path / f"{split}.jsonl", records))
    task = make_task(source=Source(None, **files), k=None)
    assert build_task(task, out, samples=[13]).status == "built"
    gym = Gym(out)
    for split, n in sizes.items():
        inputs = [row.input for row in gym.rows("colours", split, 13)]
        assert inputs == [f"text: {split} {i}" for i in range(n)]
    assert build_task(task, out, samples=[13]).skipped
    write_jsonl(out.parent / "dev.jsonl", rows(9))
    assert not build_task(task, out, samples=[13]).skipped
    write_jsonl(out.parent / "dev.jsonl", [])
    assert "dev.jsonl') has no lines" in build_task(task, out, samples=[13]).detail


@pytest.mark.parametrize(
    ("task", "k", "message"),
    [
        (make_task, 20, "': k is 20, so train would take all with the most frequent output"),
        (copying_task, 48, r"': k is 48, so train would take all of the lines \(48\) and leave"),
    ],
)  # fmt: skip
def test_a_k_that_leaves_nothing_for_dev(raw, out, task, k, message):
    outcome = build_task(task(k=k), out, raw=raw)
    assert outcome.status == "failed"
    assert re.search(message, outcome.detail)
    assert list(out.iterdir()) == []
    assert build_task(task(k=k - 1), out, raw=raw).status == "built"


def test_malformed_records_keep_what_was_there(raw, out):
    build_task(make_task(), out, raw=raw, samples=[13])
    before = files(out)
    path = raw / "colours__default/train.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-20])
    outcome = build_task(make_task(), out, raw=raw, samples=[13, 21])
    assert outcome.status == "failed"
    assert "train.jsonl.gz' is truncated or damaged after line " in outcome.detail
    write_jsonl(path, [*rows(60), {"text": "x"}])
    outcome = build_task(make_task(), out, raw=raw, samples=[13, 21])
    assert "row 61: the field 'label' is missing" in outcome.detail
    assert files(out) == before


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), KeyboardInterrupt()]
)
def test_a_full_disk_and_ctrl_c_leave_whole_files(raw, out, error, monkeypatch):
    """They strike while the fifth file is written."""
    sync, n_calls = os.fsync, 0

    def fsync(number):
        nonlocal n_calls
        n_calls += 1
        if n_calls == 5:
            raise error
        sync(number)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(type(error)):
            build_task(make_task(), out, raw=raw)
    left = files(out)
    assert len(left) == 4
    build_task(make_task(), out, raw=raw)
    assert {name: files(out)[name] for name in left} == left
    assert len(files(out)) == 16


def test_a_full_disk_while_lines_are_stored(raw, out, monkeypatch):
    class Full:
        def write(self, data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sample_files.tempfile, "TemporaryFile", lambda dir: Full())
    with pytest.raises(OSError, match="No space left") as caught:
        build_task(make_task(), out, raw=raw)
    assert caught.value.filename == str(out / "colours")
    assert list(out.iterdir()) == []


def build_played(names, out, n_workers):
    tasks = [make_task(name) for name in names]
    return build_many(tasks, out, samples=[13], n_workers=n_workers, build=play)


def test_processes_build_what_one_does(tmp_path):
    raw = write_raw(tmp_path / "raw")
    tasks = [make_task(f"colours{i}") for i in range(3)]
    for n_workers, out in ((1, tmp_path / "one"), (2, tmp_path / "two")):
        found = list(build_many(tasks, out, samples=[13], raw=raw, n_workers=n_workers))
        assert {outcome.status for outcome in found} == {"built"}
        assert {outcome.task for outcome in found} == {task.name for task in tasks}
    for path in (tmp_path / "one").rglob("*.jsonl"):
        other = tmp_path / "two" / path.relative_to(tmp_path / "one")
        assert path.read_bytes() == other.read_bytes()
    assert all(build_task(task, tmp_path / "two", samples=[13], raw=raw).skipped for task in tasks)


@pytest.mark.parametrize("n_workers", [1, 2])
def test_a_fault_stops_no_other_task_and_a_full_disk_all(tmp_path, n_workers):
    found = build_played(["a", "faulty", "b", "c"], tmp_path, n_workers)
    outcomes = {outcome.task: outcome for outcome in found}
    assert outcomes["faulty"] == Outcome("faulty", "failed", "ZeroDivisionError: a fault")
    assert [outcomes[name].status for name in "abc"] == ["built"] * 3
    with pytest.raises(OSError, match="No space left on device: 'some/file'") as caught:
        list(build_played(["full", "a", "b", "c"], tmp_path, n_workers))
    assert caught.value.errno == errno.ENOSPC


def test_a_process_that_dies_costs_its_task_only(tmp_path):
    found = list(build_played(["dies", "a", "dies too", "b"], tmp_path, 2))
    outcomes = {outcome.task: outcome for outcome in found}
    assert outcomes["dies"].status == outcomes["dies too"].status == "failed"
    assert outcomes["dies"].detail == "its process died, possibly for lack of memory"
    assert outcomes["a"].status == outcomes["b"].status == "built"


class Deadly:
    """A build that ends whatever process it is sent to."""

    def __reduce__(self):
        return os._exit, (9,)


def test_processes_that_die_before_they_have_read_their_task(tmp_path):
    """What is left unread makes for another error than an end."""
    tasks = [make_task(name) for name in "abc"]
    found = list(build_many(tasks, tmp_path, samples=[13], n_workers=2, build=Deadly()))  # type: ignore[arg-type]
    assert [outcome.detail for outcome in found] == [
        "its process died, possibly for lack of memory"
    ] * 3


def test_processes_that_work_are_stopped_and_clean_up(tmp_path):
    """As after Ctrl-C: the generator is closed while one of them is busy."""
    found = build_played(["slow", "a"], tmp_path, 2)
    assert next(found).task == "a"
    wait_for((tmp_path / "begun").exists)
    start = time.monotonic()
    found.close()
    assert time.monotonic() - start < 120  # it would sleep for longer
    assert (tmp_path / "cleaned").exists()
