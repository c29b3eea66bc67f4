"""A new task begins as the trained task whose routing explains its rows best."""

import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from helpers.gyms import TINY_T5, write_gym
from helpers.skills import skilled
from mttl.adaptation.best_row import task_losses
from mttl.adaptation.few_shot import FewShotJob
from mttl.adaptation.job import best_row, run_job, task_module
from mttl.adaptation.modes import adapted, row_start
from mttl.adaptation.settings import job_config
from mttl.config.load import load_config
from mttl.data.data_module import TextToTextDataModule
from mttl.errors import ConfigError
from mttl.gym.folder import Gym
from mttl.models.backbone import build_random, load_tokenizer
from mttl.routing.task.c_poly import CPolyRouter
from mttl.routing.task.fixed import average_router, private_router, shared_router
from mttl.routing.task.polytropon import PolytroponRouter
from mttl.routing.task.smear import SmearRouter
from mttl.routing.task.task_router import TaskRouter

SETTINGS = job_config(
    load_config(
        "crossfit.yaml",
        [
            *("adapt.max_steps=2", "adapt.eval_every=1", "adapt.batch_size=5"),
            *("adapt.init=best_row", "adapt.mode=zero_shot", "data.eval_batch_size=8"),
        ],
    ),
    {"prefix": "name", "descriptions": False, "max_input_length": 24, "max_output_length": 4},
)
JOB = FewShotJob("copy", 100, 13)


@pytest.fixture
def gym(tmp_path: Path) -> Gym:
    return Gym(write_gym(tmp_path))


def test_losses_are_those_of_a_plain_loop_over_tasks(gym: Gym) -> None:
    """The reference is PyTorch's cross-entropy, of every row alone: 1e-5 is rounding of sums."""
    model, tokenizer = skilled(build_random("t5", TINY_T5["config"])), load_tokenizer("byte")
    module = task_module(model, tokenizer, {"copy": "EM"}, SETTINGS)
    data = TextToTextDataModule(
        gym,
        ["copy"],
        tokenizer,
        SETTINGS.data.model_copy(update={"samples": [100]}),
        decoder_only=False,
        seed=13,
    )
    module.train()
    found = task_losses(module, data.train_dataloader())
    assert module.training
    model.eval()
    for task, loss in enumerate(found.tolist()):
        total, n_tokens = 0.0, 0
        for batch in data.train_dataloader():
            for row in range(len(batch["labels"])):
                own = {
                    name: batch[name][row : row + 1]
                    for name in ("input_ids", "attention_mask", "labels")
                }
                logits = model(torch.tensor([task]), **own).logits
                total += functional.cross_entropy(
                    logits[0], own["labels"][0], ignore_index=-100, reduction="sum"
                ).item()
                n_tokens += int((own["labels"] != -100).sum())
        assert math.isclose(loss, total / n_tokens, rel_tol=1e-5)
    assert len(set(found.tolist())) == model.router.n_tasks  # tasks differ


@pytest.mark.parametrize("mode", ["zero_shot", "all"])
def test_a_job_begins_with_the_best_row(gym: Gym, mode: str) -> None:
    model, tokenizer = skilled(build_random("t5", TINY_T5["config"])), load_tokenizer("byte")
    best = best_row(model, tokenizer, JOB, gym, SETTINGS)
    settings = SETTINGS.model_copy(
        update={"adapt": SETTINGS.adapt.model_copy(update={"mode": mode})}
    )
    rows = []
    whole = run_job(
        *(model, tokenizer, JOB, gym, settings),
        keep=lambda result, answers, course: rows.append(course.rows[0]),
    )
    known = model.router.matrix()[:, [int(best)]]
    assert whole.task == "copy"
    assert (whole.n_trained == 0) == (mode == "zero_shot")
    torch.testing.assert_close(torch.as_tensor(rows[0]).flatten(), known.detach().flatten())
    with adapted(model, "zero_shot", init="best_row", rows=best):
        assert torch.equal(model.router.matrix(), known)


@pytest.mark.parametrize(
    ("asked", "given", "router", "start"),
    [
        ("auto", {}, None, "best_row"),
        ("auto", {"mode": "router_only"}, None, "mean"),
        ("mean", {}, None, "mean"),
        ("fresh", {}, None, "fresh"),
        ("auto", {"mode": "zero_shot"}, None, "mean"),  # no row of the new task is read
        ("auto", {"mode": "from_scratch"}, None, "mean"),
        ("auto", {"mode": "average"}, None, "mean"),
        ("auto", {"examples": 0}, None, "mean"),
        ("auto", {}, shared_router(3, 3), "mean"),  # tasks are routed alike
        ("auto", {}, average_router(3, 3, 3), "mean"),
        ("auto", {}, private_router(3, 3), "best_row"),
        ("auto", {}, SmearRouter(3, 3, 1, 3, n_features=8), "mean"),  # no rows
        ("auto", {}, CPolyRouter(3, 3, 1, 5), "mean"),
    ],
)
def test_a_start_is_decided_by_what_there_is(
    asked: str, given: dict[str, object], router: TaskRouter | None, start: str
) -> None:
    adapt = SETTINGS.adapt.model_copy(update={"mode": "all", "init": asked} | given)
    assert row_start(router or PolytroponRouter(3, 3, 1, 3), adapt) == start


def test_a_router_without_rows_is_refused(gym: Gym) -> None:
    model, tokenizer = skilled(build_random("t5", TINY_T5["config"])), load_tokenizer("byte")
    model.router = SmearRouter(model.router.n_groups, 3, 1, 3, n_features=8)
    with pytest.raises(ConfigError, match="SmearRouter keeps no rows of tasks; use 'mean'"):
        run_job(model, tokenizer, JOB, gym, SETTINGS)
