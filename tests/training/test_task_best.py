"""The best validated weights of each task."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from checkpoints.test_run_callbacks import Scored, fit
from mttl.training.separate import SaveTaskBest

# By validation: the first task is best at step 2 and again, later, at 4; the second at 1, since
# equal scores keep the first; an undefined score counts as 0; the last has no validation rows.
SCORES = {
    "a": [0.1, 0.3, 0.2, 0.4],
    "b": [0.5, 0.1, 0.5, 0.2],
    "c": [torch.nan, -0.1, 0.2, torch.nan],
}
TASKS = [*SCORES, "unseen"]


class Stacked(Scored):
    """Adds 1 to the slice of every task in each step."""

    def __init__(self) -> None:
        super().__init__([])
        self.steps = torch.nn.Parameter(torch.zeros(len(TASKS), 2))

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return -self.steps.sum()

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        for task, scores in SCORES.items():
            self.log(f"val/{task}/score", scores[self.global_step - 1])


def run(folder: Path, n_steps: int, resume: bool = False) -> tuple[SaveTaskBest, Stacked]:
    best, module = SaveTaskBest(folder / "best.ckpt", TASKS), Stacked()
    fit(folder, module, best, n_steps, resume)
    return best, module


@pytest.mark.parametrize("stop", [0, 1, 2, 3])
def test_each_task_keeps_its_best_step_also_in_a_resumed_run(tmp_path: Path, stop: int) -> None:
    if stop:
        run(tmp_path, stop)
    best, module = run(tmp_path, 4, resume=stop > 0)
    kept = torch.load(tmp_path / "best.ckpt", weights_only=False)["state_dict"]["steps"]
    assert kept[:, 0].tolist() == kept[:, 1].tolist() == best.steps.tolist() == [4, 1, 3, 4]
    assert best.scores[:3].tolist() == pytest.approx([0.4, 0.5, 0.2])
    assert module.steps[:, 0].tolist() == [4] * 4  # training goes on with all slices
    assert best.kept(0) == (
        "Kept each task at its best of 4 validations, by step: a 4, b 1, c 3, unseen 4"
    )


def test_scores_without_their_weights_are_forgotten(tmp_path: Path) -> None:
    run(tmp_path, 3)
    (tmp_path / "best.ckpt").unlink()
    best, _ = run(tmp_path, 4, resume=True)
    assert best.steps.tolist() == [4] * 4
    kept = torch.load(tmp_path / "best.ckpt", weights_only=False)["state_dict"]["steps"]
    assert kept[:, 0].tolist() == [4] * 4
