from types import SimpleNamespace
from typing import Any

import pytest

from mttl.routing import CategoricalRouter, PolytroponRouter
from mttl.training.callbacks import TemperatureAnnealing


@pytest.mark.parametrize("kind", [PolytroponRouter, CategoricalRouter])
@pytest.mark.parametrize("first", [0, 2])  # resumed
def test_falls_geometrically_from_the_first_step_to_the_last(kind: Any, first: int) -> None:
    router, callback = kind(1, 2, 1, 3, temperature=7.0), TemperatureAnnealing(4.0, 0.125)
    module: Any = SimpleNamespace(model=SimpleNamespace(router=router))
    found = []
    for step in range(first, 6):
        trainer: Any = SimpleNamespace(global_step=step, estimated_stepping_batches=6)
        callback.on_train_batch_start(trainer, module)
        found.append(float(router.temperature))
    # Powers of two: exact but for rounding in float32.
    assert found == pytest.approx([4, 2, 1, 0.5, 0.25, 0.125][first:])
