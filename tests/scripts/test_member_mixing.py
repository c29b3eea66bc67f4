"""Skills that were trained apart are asked in mixtures: which weights, and whose scores."""

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from helpers.command import ROOT, load_recipe, train
from helpers.gyms import TASKS, write_config, write_gym
from mttl.errors import CheckpointError
from mttl.gym.folder import Gym
from mttl.prediction.predictor import Predictor


@pytest.fixture
def benchmark() -> ModuleType:
    return load_recipe(ROOT / "scripts" / "benchmarks" / "member_mixing.py")


def test_the_first_weight_is_on_the_own_skill(benchmark: ModuleType) -> None:
    rows = benchmark.mixing_rows(6, (0.5, 0.3, 0.2))
    expected = np.zeros((6, 6))
    for task in range(6):
        expected[task, task] = 0.5
        expected[task, (task + 2) % 6] = 0.3
        expected[task, (task + 4) % 6] = 0.2
    np.testing.assert_allclose(rows.numpy(), expected, rtol=1e-6)


def test_rows_are_asked_under_every_mixture(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gym = write_gym(tmp_path / "gym")
    config = write_config(tmp_path / "tiny.yaml", gym)
    short = ("trainer.max_steps=1", "data.validation=none", "data.evaluate=[]")
    run = train(f"{config}+router/private.yaml", "private", *short).path
    answers = {
        (task, row.input): row.outputs[0]
        for task in TASKS
        for row in Gym(gym).rows(task, "test", 100)
    }

    def right_if_alone(self: Predictor, task: str, texts: list[str]) -> list[str]:
        alone = torch.equal(self.model.router.matrix()[0, :, 0], torch.eye(len(TASKS)))
        return [answers[task, text] if alone else "wrong" for text in texts]

    monkeypatch.setattr(Predictor, "predict", right_if_alone)
    scores = dict(benchmark.mixed_scores(run, 2, 1000))
    assert scores == {weights: 100.0 * (weights == (1.0,)) for weights in benchmark.MIXTURES}


def test_other_runs_are_refused(benchmark: ModuleType, tmp_path: Path) -> None:
    config = write_config(tmp_path / "tiny.yaml", write_gym(tmp_path / "gym"))
    short = ("trainer.max_steps=1", "data.validation=none", "data.evaluate=[]")
    run = train(f"{config}+router/shared.yaml", "shared", *short).path
    with pytest.raises(CheckpointError, match="has not one skill for each task"):
        list(benchmark.mixed_scores(run, 2, 4))
