"""One job: seeds, and what it reads."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import mttl.adaptation.job as job_file
from helpers.gyms import TINY_T5, write_gym
from helpers.skills import skilled
from mttl.adaptation.job import job_config, run_job, seeded
from mttl.adaptation.plan import FewShotJob
from mttl.config.load import load_config
from mttl.io.record import as_row
from mttl.models.backbone import build_random, load_tokenizer
from mttl.tasks.folder import Gym

SETTINGS = job_config(
    load_config(
        "crossfit.yaml",
        [
            *("adapt.lr=1e-2", "adapt.router_lr=1e-2", "adapt.max_steps=2", "adapt.eval_every=1"),
            *("adapt.batch_size=4", "data.eval_batch_size=8"),
        ],
    ),
    {"prefix": "name", "descriptions": False, "max_input_length": 24, "max_output_length": 4},
)
JOB = FewShotJob("copy", 100, 13)


def test_a_job_without_test_rows_is_the_same_job_without_its_test_score(tmp_path: Path) -> None:
    gym = write_gym(tmp_path)
    model, tokenizer = skilled(build_random("t5", TINY_T5["config"])), load_tokenizer("byte")
    whole = run_job(model, tokenizer, JOB, Gym(gym), SETTINGS).result
    (gym / "copy" / "copy_16_100_test.tsv").unlink()
    state = torch.get_rng_state()
    blind = run_job(model, tokenizer, JOB, Gym(gym), SETTINGS, score_test=False).result
    assert torch.equal(torch.get_rng_state(), state)
    assert math.isnan(blind.test)
    assert as_row(blind)["test"] is None
    assert (whole.n_answers, blind.n_answers) == (3, 5)  # rows of test, rows of dev
    assert (blind.dev, blind.step, blind.n_trained) == (whole.dev, whole.step, whole.n_trained)


@pytest.mark.parametrize("examples", [None, 0, 1, 4])
def test_as_many_rows_are_read_as_examples_are_given(examples, tmp_path, monkeypatch) -> None:
    gym = write_gym(tmp_path)
    read: dict[str, list[int]] = {"train": [], "dev": []}

    def listing(module: object, training: Any, development: Any, **more: Any) -> tuple:
        for split, batches in (("train", training), ("dev", development)):
            read[split] = [row for batch in batches for row in batch["task_ids"]]
        return 0, 0.5, []

    monkeypatch.setattr(job_file, "fine_tune", listing)
    settings = SETTINGS.model_copy(
        update={"adapt": SETTINGS.adapt.model_copy(update={"examples": examples})}
    )
    model, tokenizer = skilled(build_random("t5", TINY_T5["config"])), load_tokenizer("byte")
    result = run_job(model, tokenizer, JOB, Gym(gym), settings).result
    expected = (16, 5) if examples is None else (examples, examples)
    assert (len(read["train"]), len(read["dev"])) == expected
    assert math.isnan(result.dev) == (examples == 0)
    assert result.n_answers == 3  # all rows of the test


def test_empty_answers_are_counted_where_the_test_is_not_scored(tmp_path, monkeypatch) -> None:
    gym, tokenizer = write_gym(tmp_path), load_tokenizer("byte")
    model = skilled(build_random("t5", TINY_T5["config"]))
    monkeypatch.setattr(tokenizer, "batch_decode", lambda rows, **more: [""] * len(rows))
    blind = run_job(model, tokenizer, JOB, Gym(gym), SETTINGS, score_test=False).result
    assert (blind.n_empty, blind.n_answers) == (5, 5)


def test_a_seed_holds_inside_the_block_only() -> None:
    before = torch.get_rng_state()
    with seeded(7, torch.device("cpu")):
        drawn = torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(drawn, torch.rand(3, generator=torch.Generator().manual_seed(7)))
