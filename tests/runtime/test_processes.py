"""Two processes on the CPU: what they keep together, each finds again."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from helpers.nodes import run_processes
from mttl.babyai.rollouts import PolicyData
from mttl.runtime.processes import device_of, gathered, gpu_environment, rank
from mttl.training.monitors import TokenMonitor


class Position:
    """Stands for a loader of rollouts: all that it knows is a number."""

    def __init__(self, number: int) -> None:
        self.number, self.counts = number, -1

    def state(self) -> dict[str, Any]:
        return {"number": self.number, "counts": 10 * self.number}

    def load_state(self, state: dict[str, Any], of_other: bool = False) -> None:
        name = "counts" if of_other else "number"
        setattr(self, name, state[name])


def test_a_single_process_knows_what_it_knows() -> None:
    assert rank() == 0
    assert gathered("a") == ["a"]
    assert PolicyData(Position(3)).state_dict() == {"processes": [Position(3).state()]}


def _run(number: int, folder: str) -> None:
    torch.set_num_threads(1)
    meeting = f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", init_method=meeting, rank=number, world_size=2)
    assert rank() == number
    assert gathered({"number": number}) == [{"number": 0}, {"number": 1}]
    _loads_are_those_of_both(number)
    _each_process_plays_on(number)
    dist.destroy_process_group()


def _loads_are_those_of_both(number: int) -> None:
    monitor = TokenMonitor(Path(), ("layer",))
    assert monitor.state_dict()["loads"] is None
    monitor.loads = torch.tensor([[1, 2, 0]]) * 10**number
    state = monitor.state_dict()
    assert state["loads"].tolist() == [[11, 22, 0]]
    resumed = TokenMonitor(Path(), ("layer",))
    resumed.load_state_dict(state)
    # Not counted twice, and both have something to add up at the next record.
    assert resumed.loads is not None
    assert sum(gathered(resumed.loads)).tolist() == [[11, 22, 0]]


def _each_process_plays_on(number: int) -> None:
    state = PolicyData(Position(5 + number)).state_dict()  # type: ignore[arg-type]
    resumed = Position(-1)
    PolicyData(resumed).load_state_dict(state)  # type: ignore[arg-type]
    assert resumed.number == 5 + number
    # One process saved: the second begins new episodes, with the counts of the first.
    fewer = Position(-1)
    PolicyData(fewer).load_state_dict({"processes": [Position(7).state()]})  # type: ignore[arg-type]
    assert (fewer.number, fewer.counts) == ((7, -1) if number == 0 else (-1, 70))


def test_two_processes(tmp_path: Path) -> None:
    run_processes(_run, str(tmp_path))


# GPUs: only how many there are is asked for.


@pytest.fixture
def gpus(monkeypatch):
    """Pretend that the process is shown some GPUs."""

    def show(count, visible=None):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    return show


def shown(number):
    return gpu_environment(number)["CUDA_VISIBLE_DEVICES"]


def test_without_a_gpu_everything_is_on_the_cpu(gpus):
    gpus(0)
    assert device_of(3) == torch.device("cpu")
    assert gpu_environment(3) == {}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_parts_and_processes_take_gpus_in_turn(gpus, count):
    gpus(count)
    turns = [place % count for place in range(7)]
    assert [device_of(number).index for number in range(1, 8)] == turns
    assert [int(shown(number)) for number in range(1, 8)] == turns


@pytest.mark.parametrize(
    ("count", "visible", "expected"),
    [
        (2, "5,7", ["5", "7", "5"]),
        (2, " GPU-aa , GPU-bb", ["GPU-aa", "GPU-bb", "GPU-aa"]),
        (1, "3,-1,4", ["3", "3", "3"]),  # what stands behind a wrong number is not shown
        (2, "", ["0", "1", "0"]),
    ],
)
def test_processes_choose_among_what_this_one_is_shown(gpus, count, visible, expected):
    gpus(count, visible)
    assert [shown(number) for number in (1, 2, 3)] == expected
