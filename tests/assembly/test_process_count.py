"""How many processes there are is known before anything is loaded; no process is started here."""

import pytest
import torch

from helpers.gyms import TINY_T5
from mttl.assembly.process_count import check_processes, process_count
from mttl.config.schema import Config, Trainer
from mttl.errors import ConfigError

LAUNCHERS = {
    "torchrun": {"TORCHELASTIC_RUN_ID": "7", "WORLD_SIZE": "4"},
    "SLURM": {"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_JOB_NAME": "train"},
}


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name in {name for variables in LAUNCHERS.values() for name in variables}:
        monkeypatch.delenv(name, raising=False)


def trainer(**settings: object) -> Trainer:
    return Trainer.model_validate({"max_steps": 1, **settings})


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"accelerator": "cpu"}, 1),
        ({"accelerator": "cpu", "devices": 3}, 3),
        ({"devices": [0, 1], "num_nodes": 2}, 4),
        ({}, 2),
        ({"accelerator": "gpu", "devices": -1, "num_nodes": 3}, 6),
        ({"accelerator": "tpu"}, None),
    ],
)
def test_what_the_section_describes(settings: dict[str, object], expected: int | None) -> None:
    assert process_count(trainer(**settings)) == expected


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launcher_that_has_started_others_is_refused(
    monkeypatch: pytest.MonkeyPatch, launcher: str
) -> None:
    for name, value in LAUNCHERS[launcher].items():
        monkeypatch.setenv(name, value)
    assert process_count(trainer(num_nodes=2)) == 4
    match = rf"{launcher} has started 4 processes, and .* describes 2 on each of 1 machines"
    with pytest.raises(ConfigError, match=match):
        process_count(trainer())


def config(**trainer: object) -> Config:
    return Config.model_validate(
        {
            "data": {"dir": "nowhere"},
            "backbone": TINY_T5,
            "skills": {"kind": "none"},
            "router": {"kind": "none"},
            "moe": {
                **{"router": {"kind": "switch"}, "experts": {"kind": "lora"}},
                **{"n_experts": 6, "parallel": True},
            },
            "optim": {"kind": "adamw"},
            "trainer": {"max_steps": 1, **trainer},
        }
    )


def test_experts_are_shared_out_among_the_processes_that_there_are() -> None:
    check_processes(config())
    with pytest.raises(ConfigError, match="one process trains: set moe"):
        check_processes(config(accelerator="cpu"))
    with pytest.raises(ConfigError, match=r"n_experts \(6\) must be a multiple of .* \(4\)"):
        check_processes(config(num_nodes=2))
