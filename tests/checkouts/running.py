"""Cases run in a checkout: in processes of their own, with nothing of another checkout."""

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from checkouts.cases import BY_NAME, Case
from mttl.io.errors import ConfigError, MttlError
from mttl.runtime.progress_bar import counting_bar

WORKERS = 2  # cases that run at once, with one thread each
POLL = 0.05  # seconds between two looks for the file at which to stop
ENDED = "ended.json"  # lies in a case's folder when all its commands have ended well


@dataclass(frozen=True)
class Side:
    """A checkout and where its commands work: each case has a folder in it."""

    name: str
    checkout: Path
    folder: Path
    source: Path  # of the folders of cases that others need, which are copied from there

    def has_ended(self, case: Case) -> bool:
        """Return whether these very commands have ended in the folder."""
        path = self.folder / case.name / ENDED
        return path.is_file() and path.read_text() == _said(case)


@dataclass(frozen=True)
class Job:
    """A case on one side."""

    side: Side
    case: Case

    def __str__(self) -> str:
        return f"{self.case.name}, {self.side.name}"


def state_of(checkout: Path) -> str:
    """Return a short name of a checkout's commit and of what was changed since."""
    states = [
        subprocess.run(["git", "-C", str(checkout), *arguments], capture_output=True, check=False)
        for arguments in (["rev-parse", "HEAD"], ["diff", "HEAD"])
    ]
    if any(state.returncode for state in states):
        raise ConfigError(f"'{checkout}' is not a checkout of this repository: name its folder")
    ask = [sys.executable, "-c", "import mttl; print(mttl.__file__)"]
    found = subprocess.run(
        ask, env=_environment(checkout), cwd="/", capture_output=True, text=True, check=False
    )
    if not found.stdout.startswith(f"{checkout}/"):
        raise ConfigError(
            f"'{checkout}' has no package mttl that its commands would import; they would take "
            f"{found.stdout.strip() or 'none'}: name the folder that holds mttl/"
        )
    return hashlib.sha256(b"".join(state.stdout for state in states)).hexdigest()[:12]


def run_jobs(jobs: list[Job], console: Console) -> dict[Job, str]:
    """Run cases, each after what it needs, some at once; return what went wrong with which."""
    futures: dict[Path, Future[None]] = {}
    failures: dict[Job, str] = {}
    pool = ThreadPoolExecutor(WORKERS)
    with counting_bar(console) as progress:
        bar = progress.add_task("running", total=len(jobs))
        try:
            for job in jobs:
                # Started before this one, so that they are not waited for in vain.
                needs = [futures.get(job.side.source / need) for need in job.case.needs]
                future = pool.submit(_run, job, [need for need in needs if need])
                futures[job.side.folder / job.case.name] = future
            by_future = dict(zip(futures.values(), jobs, strict=True))
            for future in as_completed(by_future):
                job, error = by_future[future], future.exception()
                progress.update(bar, advance=1, description=str(job))
                console.print(f"{job}: {'failed' if error else 'ended'}")
                if error is not None:
                    failures[job] = str(error)
        finally:
            pool.shutdown(cancel_futures=True)
    return failures


def _run(job: Job, needs: list["Future[None]"]) -> None:
    """Run the commands of a case in a folder of its own, when what it needs is there."""
    case, place = job.case, job.side.folder / job.case.name
    if any(need.exception() for need in needs):
        raise MttlError(f"needs {', '.join(case.needs)}, and that failed")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    for need in case.needs:
        for made in BY_NAME[need].makes:
            shutil.copytree(job.side.source / need / made, place / made)
    for name, text in case.files:
        (place / name).write_text(text)
    for command in case.commands:
        with (place / "log.txt").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "mttl", *shlex.split(command)],
                cwd=place, env=_environment(job.side.checkout), stdout=log, stderr=log,
            )  # fmt: skip
            try:
                if case.stop_at:
                    _stop_at(place / case.stop_at, process)
                status = process.wait()
            finally:
                process.kill()
        stopped = case.stop_at is not None and (place / case.stop_at).is_file()
        if stopped and status == 0:
            raise MttlError("ended before it could be interrupted: give it more steps")
        if status and not stopped:
            last = (place / "log.txt").read_text().strip().splitlines()[-3:]
            raise MttlError(f"{command}: {' | '.join(last)} ({place / 'log.txt'})")
    (place / ENDED).write_text(_said(case))


def _stop_at(path: Path, process: "subprocess.Popen[bytes]") -> None:
    while process.poll() is None and not path.is_file():
        time.sleep(POLL)
    process.terminate()


def _environment(checkout: Path) -> dict[str, str]:
    """Return the environment of a checkout's commands: its own code, one thread, no hub."""
    return {
        **os.environ,
        **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
        **{"PYTHONPATH": str(checkout), "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"},
    }


def _said(case: Case) -> str:
    """Return all that decides what a case leaves, but for the code."""
    return json.dumps([case.commands, case.files, [_said(BY_NAME[need]) for need in case.needs]])
