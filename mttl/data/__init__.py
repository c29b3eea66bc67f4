"""Data: gyms on disk, partitions, collation, samplers, and the Lightning data module.

`prepare` is imported from its own module, whose name it shares.
"""

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
