"""Cosines between the gradients of tasks, of a run that was trained."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.command import read_csv, train
from helpers.gyms import TASKS, write_config, write_gym
from mttl.assembly.model import load_run
from mttl.commands import plot as SCRIPT
from mttl.data.prompt_form import prompt_prefix
from mttl.io.errors import CheckpointError, ConfigError


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gradients")
    gym = write_gym(folder / "gym", sizes=(4, 2, 2), lengths=(2, 2))
    short = ("trainer.max_steps=3", "trainer.val_check_interval=3", "data.evaluate=[]")
    return train(write_config(folder / "tiny.yaml", gym), "run", *short).path


def test_tasks_are_compared_by_their_gradients(run, tmp_path, capsys) -> None:
    """Against a plain backward pass of the backbone's own loss."""
    assert SCRIPT.main([str(run), "--gradients", "--out", str(tmp_path)]) == 0
    found = np.array(
        [[float(row[task]) for task in TASKS] for row in read_csv(tmp_path / "gradients.csv")]
    )
    built = load_run(run)
    directions = []
    for number, task in enumerate(TASKS):
        path = run.parents[1] / "gym" / task / f"{task}_4_100_train.tsv"
        rows = [line.split("\t") for line in path.read_text().splitlines()]
        prompts = built.tokenizer(
            [prompt_prefix(task, "name") + question for question, _ in rows],
            return_tensors="pt",
            padding=True,
        )
        answers = built.tokenizer([answer for _, answer in rows], return_tensors="pt", padding=True)
        labels = answers.input_ids.masked_fill(answers.attention_mask == 0, -100)
        skills = [
            v
            for layer in built.model.skilled_layers().values()
            for v in layer.inventory.parameters()
        ]
        ids = torch.full((len(rows),), number)
        loss = built.model(ids, **prompts, labels=labels).loss
        flat = torch.cat([own.flatten() for own in torch.autograd.grad(loss, skills)])
        directions.append(flat / flat.norm())
    stacked = torch.stack(directions)
    # Single precision; ours are of padded batches, whose sums have other lengths.
    np.testing.assert_allclose(found, (stacked @ stacked.T).numpy(), atol=1e-4)
    assert "Lowest cosines" in capsys.readouterr().out
    assert "cosines of the gradients" in (tmp_path / "gradients.svg").read_text()


def test_runs_without_rows_or_mixed_skills_are_refused(run, tmp_path) -> None:
    gradients = sys.modules["mttl.commands.routing_report.gradients"]
    with pytest.raises(CheckpointError, match=r"has no config\.yaml .* leave --gradients out"):
        gradients.gradient_cosines(tmp_path, 4)
    tokens = train(
        f"{run.parents[1] / 'tiny.yaml'}+router/token_top2.yaml",
        "tokens",
        *("trainer.max_steps=1", "trainer.val_check_interval=1", "data.evaluate=[]"),
    )
    with pytest.raises(CheckpointError, match="no skills that tasks mix"):
        gradients.gradient_cosines(tokens.path, 4)
    with pytest.raises(ConfigError, match="leave --compare and --gradients out"):
        SCRIPT.main([str(run), "--gradients", "--adapted", "somewhere"])
