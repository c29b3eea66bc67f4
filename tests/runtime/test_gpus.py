"""No GPU is needed: only how many there are is asked for."""

import pytest
import torch

from mttl.runtime.gpus import device_of, gpu_environment


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
