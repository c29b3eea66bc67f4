"""How many processes a training has, known before anything is loaded."""

import os

import torch

from mttl.config.schema import Config, Trainer
from mttl.errors import ConfigError


def check_processes(config: Config) -> None:
    """See that as many processes train as the configuration says, and can do what it says.

    Raises:
        ConfigError: If they are others, or experts cannot be shared out among them.
    """
    count = process_count(config.trainer)
    if config.moe is None or not config.moe.parallel or count is None:
        return
    if problem := config.moe.problem_of(count):
        raise ConfigError(problem)


def process_count(section: Trainer) -> int | None:
    """Return how many processes the section describes, or None where only Lightning can tell.

    Raises:
        ConfigError: If a launcher has started another number of them.
    """
    devices = _device_count(section)
    if not devices:
        return None
    count = devices * section.num_nodes
    launcher, started = _started()
    if started not in (None, count):
        raise ConfigError(
            f"{launcher} has started {started} processes, and the section trainer describes "
            f"{devices} on each of {section.num_nodes} machines. Set trainer.devices to the "
            "processes on each machine and trainer.num_nodes to the machines, or start as many"
        )
    return count


def _device_count(section: Trainer) -> int | None:
    if isinstance(section.devices, list):
        return len(section.devices)
    if isinstance(section.devices, int) and section.devices > 0:
        return section.devices
    if section.accelerator in ("gpu", "cuda") or (
        section.accelerator == "auto" and torch.cuda.is_available()
    ):
        return torch.cuda.device_count()
    return None if section.accelerator == "tpu" else 1


def _started() -> tuple[str, int | None]:
    """Return who has started how many processes; None where Lightning does."""
    told = os.environ
    if "TORCHELASTIC_RUN_ID" in told and told.get("WORLD_SIZE", "").isdecimal():
        return "torchrun", int(told["WORLD_SIZE"])
    by_hand = told.get("SLURM_JOB_NAME") in ("bash", "interactive")
    if told.get("SLURM_NTASKS", "").isdecimal() and "SLURM_PROCID" in told and not by_hand:
        return "SLURM", int(told["SLURM_NTASKS"])
    return "", None
