"""A callback that records when a training starts, steps, validates and saves."""

import json
import time
from pathlib import Path
from statistics import median
from typing import Any

from _common import peak_mib
from pytorch_lightning.callbacks import Callback

__all__ = ["Clock"]


class Clock(Callback):
    """Writes the seconds of processor time of a training, and its memory, when it ends.

    ``start`` is the time of the process until the first step, ``step`` the median between the
    starts of two steps, ``evaluation`` a validation, ``saving`` what follows it until the end of
    the training, and ``end`` the time of the process until then.

    Args:
        folder: Gets the file clock.json.
    """

    def __init__(self, folder: str) -> None:
        self.path = Path(folder) / "clock.json"
        self.steps: list[float] = []
        self.validation: list[float] = []
        self.start_mib = 0.0

    def on_train_batch_start(self, *_: Any) -> None:
        self.start_mib = self.start_mib or peak_mib()
        self.steps.append(time.process_time())

    def on_validation_start(self, *_: Any) -> None:
        self.validation.append(time.process_time())

    on_validation_end = on_validation_start  # type: ignore[assignment]

    def on_train_end(self, *_: Any) -> None:
        end, (begun, validated) = time.process_time(), self.validation[-2:]
        steps = [after - before for before, after in zip(self.steps, self.steps[1:], strict=False)]
        found = {"start": self.steps[0], "step": median(steps), "evaluation": validated - begun}
        found |= {"saving": end - validated, "end": end, "start_mib": self.start_mib}
        self.path.write_text(json.dumps(found), encoding="utf-8")
