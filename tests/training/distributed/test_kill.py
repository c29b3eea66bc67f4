"""One of two processes is killed: the other ends, and the resumed run is bit-identical."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from helpers.command import RECIPE, ROOT, arguments
from helpers.gyms import write_config, write_gym
from helpers.nodes import torchrun
from helpers.processes import is_running, wait_until_gone
from mttl.checkpoints.run_folder import RunFolder

SETTINGS = (
    *("trainer.devices=2", "trainer.strategy=ddp", "data.batch_size=4", "data.evaluate=[dev]"),
    *("optim.schedule=constant", "optim.warmup=0"),
)
MARK = "MTTL_TEST_MARK"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("kill")
    path = write_config(folder / "tiny.yaml", write_gym(folder / "gym"))
    yield path
    for run in (folder / "runs").iterdir():  # where a test has failed
        for pid in ranks(path, run.name).values():
            os.kill(pid, signal.SIGKILL)


def begin(
    config: Path, launcher: str, name: str, steps: int, resume: bool = False
) -> "subprocess.Popen[str]":
    given = arguments(config, name, (*SETTINGS, f"trainer.max_steps={steps}"), resume)
    mark = str(config.parent / name)
    if launcher == "torchrun":
        return torchrun("--standalone", "--nproc-per-node=2", given=given, **{MARK: mark})
    return subprocess.Popen(
        [sys.executable, str(RECIPE), *given],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), MARK: mark},
    )


def ranks(config: Path, name: str) -> dict[int, int]:
    """Return the process of each rank."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            variables = (path / "environ").read_bytes().split(b"\0")
            command = (path / "cmdline").read_bytes()
        except OSError:
            continue
        marked = f"{MARK}={config.parent / name}".encode() in variables
        if marked and b"pl_train.py" in command and b"distributed.run" not in command:
            found[int(b"LOCAL_RANK=1" in variables)] = int(path.name)
    return found


def kill(config: Path, launcher: str, name: str, lost: int) -> str:
    """Kill one process after a validation; return the output once all have ended."""
    process = begin(config, launcher, name, 100_000)
    assert process.stdout is not None
    before = []
    for line in process.stdout:
        before.append(line)
        if "step 8: mean score" in line:
            break
    else:
        raise AssertionError("".join(before))
    found = ranks(config, name)
    assert found.keys() == {0, 1}
    os.kill(found[lost], signal.SIGKILL)
    assert wait_until_gone([*found.values()], 60)
    said, _ = process.communicate(timeout=60)
    assert process.returncode
    assert not ranks(config, name)
    return said


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("launcher", ["lightning", "torchrun"])
def test_the_other_process_ends_and_the_run_goes_on(config: Path, launcher: str) -> None:
    kept = {}
    for lost in (0, 1):
        kill(config, launcher, f"{launcher}{lost}", lost)
        run = RunFolder(config.parent / "runs" / f"{launcher}{lost}")
        step = torch.load(run.last, weights_only=False)["global_step"]
        assert step >= 4
        kept[lost] = step
    steps = max(kept.values()) + 4
    for name in (f"{launcher}0", f"{launcher}1", "whole"):
        if not (config.parent / "runs" / name / "skills").is_dir():
            process = begin(config, launcher, name, steps, resume=name != "whole")
            said, _ = process.communicate(timeout=400)
            assert process.returncode == 0, said
    whole = RunFolder(config.parent / "runs" / "whole")
    for lost in (0, 1):
        run = RunFolder(config.parent / "runs" / f"{launcher}{lost}")
        for path in ("skills.safetensors", "router.safetensors", "backbone.safetensors"):
            expected, found = (load_file(one.skills / path) for one in (whole, run))
            torch.testing.assert_close(found, expected, rtol=0, atol=0)
        assert run.metrics.read_text() == whole.metrics.read_text()


@pytest.mark.slow
def test_a_process_ends_with_the_one_that_started_it_before_they_have_met(config: Path) -> None:
    process = begin(config, "lightning", "early", 100_000)
    deadline = time.monotonic() + 200
    while 1 not in (found := ranks(config, "early")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(found[0], signal.SIGKILL)
    assert wait_until_gone([found[1]], 60)
    said, _ = process.communicate(timeout=10)
    assert said.count("error: ") <= 1  # nobody listens yet in the first moment
    assert not is_running(found[1])
