"""One task of a run, called like a model of transformers."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from mttl.inference.mixture_name import MIXTURE
from mttl.inference.predictor import Predictor, combined


class TaskModel:
    """A run with the skills of a task or mixture, for libraries that call models of transformers.

    ``models`` are by task. Raises a TaskError for a mixture that is malformed or not possible.
    """

    def __init__(self, models: Mapping[str, Predictor], name: str) -> None:
        find = {task: (run, task) for task, run in models.items()}.__getitem__
        self.run, name = combined(name, find) if name.startswith(MIXTURE) else find(name)
        self.run.model.eval()
        self.config: Any = self.run.model.backbone.config
        self.device = self.run.device
        self._task_id = self.run.task_ids([name]).to(self.device)

    @torch.no_grad()
    def __call__(self, input_ids: Int[Tensor, "B L"], **inputs: Any) -> Any:
        """Return the output of the backbone, in the run's precision."""
        task_ids = self._task_id.expand(len(input_ids))
        with self.run.autocast():
            return self.run.model(task_ids, input_ids=input_ids, **inputs)

    def generate(self, input_ids: Int[Tensor, "B L"], **settings: Any) -> Int[Tensor, "B M"]:
        """Return generated ids, in the run's precision."""
        task_ids = self._task_id.expand(len(input_ids))
        return self.run.generate(task_ids, input_ids=input_ids, **settings)
