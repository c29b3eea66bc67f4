import errno
import os
import time

import pytest

from helpers.played_build import play
from helpers.raw import make_task, write_raw
from mttl.tasks.building.build_gym import Outcome, build_task
from mttl.tasks.building.build_many import build_many


def run(names, out, n_workers):
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
def test_a_fault_stops_no_other_task(tmp_path, n_workers):
    found = run(["a", "faulty", "b", "c"], tmp_path, n_workers)
    outcomes = {outcome.task: outcome for outcome in found}
    assert outcomes["faulty"] == Outcome("faulty", "failed", "ZeroDivisionError: a fault")
    assert [outcomes[name].status for name in "abc"] == ["built"] * 3


def test_a_process_that_dies_costs_its_task_only(tmp_path):
    found = list(run(["dies", "a", "dies too", "b"], tmp_path, 2))
    outcomes = {outcome.task: outcome for outcome in found}
    assert outcomes["dies"].status == outcomes["dies too"].status == "failed"
    assert outcomes["dies"].detail == "its process died; was there too little memory?"
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
        "its process died; was there too little memory?"
    ] * 3


@pytest.mark.parametrize("n_workers", [1, 2])
def test_a_full_disk_ends_all(tmp_path, n_workers):
    with pytest.raises(OSError, match="No space left on device: 'some/file'") as caught:
        list(run(["full", "a", "b", "c"], tmp_path, n_workers))
    assert caught.value.errno == errno.ENOSPC


def test_processes_that_work_are_stopped_and_clean_up(tmp_path):
    """As after Ctrl-C: the generator is closed while one of them is busy."""
    found = run(["slow", "a"], tmp_path, 2)
    assert next(found).task == "a"
    start = time.monotonic()
    while not (tmp_path / "begun").exists() and time.monotonic() - start < 120:
        time.sleep(0.01)
    start = time.monotonic()
    found.close()
    assert time.monotonic() - start < 120  # it would sleep for longer
    assert (tmp_path / "cleaned").exists()
