"""Files of finished adaptations: whole lines, one writer, one inventory."""

import io
import json
import math
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from pydantic.dataclasses import dataclass
from rich.console import Console

from helpers.backbones import tiny_t5
from helpers.skills import skilled
from mttl.adaptation import shard as workers
from mttl.adaptation.plan import FewShotJob, FewShotResult, Results, check_folder
from mttl.adaptation.resumable_jobs import ResumableJobs
from mttl.adaptation.shard import Shard
from mttl.checkpoints.inventory_files import inventory_digest
from mttl.checkpoints.saved_inventory import save_inventory
from mttl.io.errors import ConfigError, DivergedError, MttlError
from mttl.io.record import STRICT

SETTINGS = "adapt:\n  lr: 0.1\n"


def result(task: str, test: float) -> FewShotResult:
    return FewShotResult(task, 1, 13, "EM", 0.5, test, 10, 100, 0, 4)


def test_results_are_read_back_and_a_cut_line_is_dropped(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.add(result("a", 0.5))
    results.add(result("b", math.nan))
    path = tmp_path / "results.jsonl"
    assert json.loads(path.read_text().splitlines()[1])["test"] is None
    whole = path.read_text()
    path.write_text(whole + '{"task": "c", "sam')
    again = Results(tmp_path)
    assert path.read_text() != whole  # reading alone leaves the file as it is
    assert list(again.finished) == [FewShotJob("a", 1, 13), FewShotJob("b", 1, 13)]
    assert again.finished[FewShotJob("a", 1, 13)] == result("a", 0.5)
    with again.writing():
        assert path.read_text() == whole
        again.add(result("c", 1.0))
        again.add(result("d", 1.0))
    assert len(Results(tmp_path).finished) == 4


def test_parts_see_what_the_others_finished_and_leave_their_files_alone(tmp_path: Path) -> None:
    first, second = Shard(1, 2), Shard(2, 2)
    Results(tmp_path, first).add(result("a", 0.5))
    theirs = tmp_path / "results-1-of-2.jsonl"
    theirs.write_text(theirs.read_text() + "{half")  # being written
    results = Results(tmp_path, second)
    results.add(result("b", 0.5))
    assert {job.task for job in results.finished} == {"a", "b"}
    assert theirs.read_text().endswith("{half")


def test_one_process_writes_a_file(tmp_path: Path) -> None:
    first, second = Results(tmp_path), Results(tmp_path)
    with first.writing():
        first.add(result("a", 0.5))
        with pytest.raises(MttlError, match=r"another process is writing '.*results\.jsonl'; wait"):
            second.add(result("b", 0.5))
        Results(tmp_path, Shard(1, 2)).add(result("c", 0.5))  # another file
        assert len(Results(tmp_path).finished) == 2  # reading needs no lock
    with second.writing():
        assert FewShotJob("a", 1, 13) in second.finished  # what was written in the meantime
        second.add(result("b", 0.5))
    assert {job.task for job in Results(tmp_path).finished} == {"a", "b", "c"}


@pytest.mark.parametrize("place", [".", "trials/adapt.lr=0.1"])
def test_results_that_do_not_tell_their_inventory_are_refused(tmp_path: Path, place: str) -> None:
    Results(tmp_path / place).add(result("a", 0.5))
    unknown = r"of other skills \(checksum unknown, now 1234\).* delete this one"
    with pytest.raises(ConfigError, match=unknown):
        check_folder(tmp_path, SETTINGS, "1234")
    assert not (tmp_path / "config.yaml").exists()
    (tmp_path / "inventory.sha256").write_text("1234")
    check_folder(tmp_path, SETTINGS, "1234")


def test_the_digest_tells_inventories_apart(tmp_path: Path) -> None:
    """By tasks and weights; a copy that other libraries wrote is the same."""
    model = skilled(tiny_t5())

    def digest(name: str, tasks: str = "ab") -> str:
        facts = {"backbone_name": "tiny", "backbone_trained": False, "settings": {"data": {}}}
        save_inventory(tmp_path / name, model, list(tasks), **facts)
        return inventory_digest(tmp_path / name)

    before = digest("skills")
    assert digest("other") == before
    assert digest("renamed", "ba") != before
    for part in (model.router, next(iter(model.skilled_layers().values())).inventory):
        value = next(part.parameters())
        with torch.no_grad():
            value.view(-1)[-1] += 1
        assert digest("changed") != before
        with torch.no_grad():
            value.view(-1)[-1] -= 1
    path = tmp_path / "other" / "meta.json"
    meta = json.loads(path.read_text())
    meta["libraries"]["torch"] = "9.9"
    path.write_text(json.dumps(meta))
    assert inventory_digest(tmp_path / "other") == before


def test_what_adaptation_takes_from_training_counts(tmp_path: Path) -> None:
    """A training may be resumed elsewhere; results in two precisions are of two experiments."""
    before = "adapt: {levels: [a], lr: 0.1}\ntrainer: {precision: '32', max_epochs: 4}\n"
    check_folder(tmp_path, before, "inventory")
    elsewhere = before.replace("[a]", "[a, b]").replace("max_epochs: 4", "max_epochs: 5")
    check_folder(tmp_path, elsewhere, "inventory")
    half = elsewhere.replace("'32'", "bf16-mixed")
    with pytest.raises(ConfigError, match=r"trainer.precision \(32 before, bf16-mixed now\)"):
        check_folder(tmp_path, half, "inventory")
    clipped = elsewhere.replace("max_epochs: 5", "gradient_clip_val: 0.5")
    check_folder(tmp_path, clipped, "inventory")
    shared = ("trainer.precision", "trainer.gradient_clip_val")
    with pytest.raises(ConfigError, match=r"trainer.gradient_clip_val \(0.5 before, None now\)"):
        check_folder(tmp_path, elsewhere, "inventory", shared=shared)


@dataclass(frozen=True, config=STRICT)
class Score:
    job: str
    score: float


def test_an_error_of_the_work_is_not_taken_for_another_writer(tmp_path: Path) -> None:
    results = ResumableJobs(tmp_path / "results.jsonl", Score)
    with pytest.raises(BlockingIOError), results.writing():
        raise BlockingIOError
    results.add(Score("a", 0.5))


@pytest.mark.parametrize(
    "line", ["{", "[1]", "\0\0", "é", "", '{"job": "a"}', '{"job": "a", "score": 1, "x": 2}']
)
def test_a_damaged_line_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(b'{"job": "a", "score": 0.5}\n' + line.encode("latin-1") + b"\n")
    with pytest.raises(MttlError, match=r"results\.jsonl', line 2 is damaged .* Delete the line"):
        ResumableJobs(path, Score)


@pytest.mark.parametrize("kept", [True, False])
def test_jobs_that_diverge_have_no_result_and_the_others_go_on(tmp_path: Path, kept: bool) -> None:
    def work(job: str, on_step: Callable[[], object]) -> Score:
        on_step()
        if job == "b":
            raise DivergedError("not finite")
        return Score(job, 0.5)

    path, to = tmp_path / "results.jsonl", Console(file=io.StringIO(), width=200)
    results = ResumableJobs(path if kept else None, Score)
    diverged = results.run("abc", work, to, doing="working", shown=lambda found: str(found.score))
    assert set(results.finished) == {"a", "c"}
    lines = to.file.getvalue().splitlines()
    assert lines[1:] == ["2 of 3: b: diverged, about 0 s left", "3 of 3: c: 0.5"]
    assert path.exists() == kept
    with pytest.raises(DivergedError, match="diverged and have no result:\nb: not finite"):
        diverged.report()


@pytest.mark.parametrize("shard", [Shard(), Shard(2, 2)])
def test_each_worker_is_shown_a_gpu_of_its_own(monkeypatch, shard):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    started = []

    def start(command, *, env, **more):
        started.append((command[-1], env.get("CUDA_VISIBLE_DEVICES")))
        return SimpleNamespace(wait=lambda: 0, terminate=lambda: None)

    monkeypatch.setattr(workers, "subprocess", SimpleNamespace(Popen=start, DEVNULL=None))
    workers.start_workers(3, shard, ["adapt"])
    parts = [shard.part(number, 3) for number in (1, 2, 3)]
    # By the number of the worker, not of the part: the second of two parts would take one GPU only.
    assert started == [
        (f"{part.number}/{part.n_shards}", gpu)
        for part, gpu in zip(parts, ("0", "1", "0"), strict=True)
    ]


@pytest.mark.parametrize(("status", "raised"), [(2, False), (1, True), (-9, True)])
def test_jobs_that_a_worker_reports_are_left_to_the_caller(monkeypatch, status, raised):
    """So that what others finished is shown, and written, where some diverged."""
    ended = SimpleNamespace(wait=lambda: status, terminate=lambda: None)
    started = SimpleNamespace(Popen=lambda command, **more: ended, DEVNULL=None)
    monkeypatch.setattr(workers, "subprocess", started)
    with pytest.raises(MttlError, match="worker 1, 2 of 2") if raised else nullcontext():
        workers.start_workers(2, Shard(), ["adapt"])


@pytest.mark.parametrize("n_workers", [1, 2, 3])
@pytest.mark.parametrize("n_shards", [1, 2, 3])
def test_workers_of_parts_share_all_jobs(n_shards: int, n_workers: int) -> None:
    jobs = [FewShotJob("a", sample, 13) for sample in range(7)]
    for number in range(1, n_shards + 1):
        part = Shard(number, n_shards)
        workers = [part.part(worker, n_workers).share(jobs) for worker in range(1, n_workers + 1)]
        shared = sorted((job for jobs in workers for job in jobs), key=lambda job: job.sample)
        assert shared == part.share(jobs)
    assert Shard().part(2, 3) == Shard(2, 3)
