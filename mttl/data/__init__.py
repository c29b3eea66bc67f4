"""Data: gyms on disk and how they are built, partitions, collation, samplers, the data module.

`prepare` is imported from its own module, whose name it shares.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mttl.data.collate import EvalCollator, TrainCollator, pad_id_of
    from mttl.data.data_module import TextToTextDataModule
    from mttl.data.evaluation import evaluation_batches
    from mttl.data.gym import Gym
    from mttl.data.partition import Partition, load_partition, select_tasks
    from mttl.data.samplers import TaskBatchSampler, build_sampler
    from mttl.data.tsv import Row

__all__ = [
    "EvalCollator",
    "Gym",
    "Partition",
    "Row",
    "TaskBatchSampler",
    "TextToTextDataModule",
    "TrainCollator",
    "build_sampler",
    "evaluation_batches",
    "load_partition",
    "pad_id_of",
    "select_tasks",
]

# Loaded when first asked for: some bring PyTorch, which processes that build a gym do without.
_HOMES = {
    **dict.fromkeys(("EvalCollator", "TrainCollator", "pad_id_of"), "collate"),
    "TextToTextDataModule": "data_module",
    "evaluation_batches": "evaluation",
    "Gym": "gym",
    **dict.fromkeys(("Partition", "load_partition", "select_tasks"), "partition"),
    **dict.fromkeys(("TaskBatchSampler", "build_sampler"), "samplers"),
    "Row": "tsv",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mttl.data' has no attribute '{name}'")
    return getattr(importlib.import_module(f"mttl.data.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
