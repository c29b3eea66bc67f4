"""Skills that are switched off, against models whose rows were written by hand; gradients."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.command import read_csv, train
from helpers.gyms import TASKS, write_config, write_gym
from mttl.analysis.routing_record import read_ablation, read_record
from mttl.analysis.skill_matching import matched
from mttl.assembly.model import load_run
from mttl.commands import ablate as SCRIPT
from mttl.commands import plot
from mttl.commands.ablate_skills import switched_off
from mttl.commands.routing_report.routing_tables import gradient_cosines
from mttl.config.load import load_any_config
from mttl.config.skills_schema import Fusion, NoSkills
from mttl.io.errors import CheckpointError, ConfigError
from mttl.routing import PolytroponRouter
from mttl.routing.task.fixed import FixedRouter, GivenRows
from mttl.runtime.command import run_command

Capture = pytest.CaptureFixture[str]
SHORT = ("trainer.max_steps=3", "trainer.val_check_interval=3", "data.evaluate=[]")
READING = "mttl.commands.routing_report.read_routing"


def ablate(*arguments: object) -> int:
    return run_command(lambda: SCRIPT.main([str(argument) for argument in arguments]))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two heads, and weights of the router far from uniform."""
    folder = tmp_path_factory.mktemp("ablate")
    gym = write_gym(folder / "gym", sizes=(4, 3, 2), lengths=(2, 3))
    router = {"kind": "polytropon", "init_scale": 2.0}
    config = write_config(folder / "tiny.yaml", gym, router=router, skills={"n_heads": 2})
    return train(config, "run", *SHORT, "optim.lr=1.0").path


def loss_with(run: Path, task: str, rows: torch.Tensor) -> float:
    """The mean loss of a task's development rows by a model with given rows of all tasks."""
    built = load_run(run)
    built.model.router = GivenRows(rows)
    path = run.parents[1] / "gym" / task / f"{task}_4_100_dev.tsv"
    losses = []
    for line in path.read_text().splitlines():
        question, answer = line.split("\t")
        encoded = built.tokenizer(f"[{task}] {question}", return_tensors="pt")
        labels = built.tokenizer(answer, return_tensors="pt").input_ids
        ids = torch.tensor([list(TASKS).index(task)])
        with torch.no_grad():
            losses.append(float(built.model(ids, **encoded, labels=labels).loss))
    return float(np.mean(losses))


@pytest.mark.every(2)
@pytest.mark.parametrize("share", [False, True])
def test_losses_are_those_of_rows_with_a_hole(run, tmp_path, share, capsys) -> None:
    assert ablate(run, "--loss", "--out", tmp_path, *(["--share"] if share else [])) == 0
    found = read_ablation(tmp_path / "ablation.npz")
    assert found is not None
    assert (found.tasks, found.layers, found.scores) == (tuple(TASKS), ("all layers",), None)
    assert " groups of layers: mean correlation of their use " in capsys.readouterr().out
    weights = load_run(run).model.router.matrix().detach()
    file = np.load(tmp_path / "ablation.npz")
    for task, skill in (("copy", 0), ("reverse", 2)):
        rows = weights.clone()
        for group, own in enumerate(found.pairs[:, skill]):  # heads are groups of their own
            rows[group // 2, :, group % 2, own] = 0
        if share:
            rows /= rows.sum(-1, keepdim=True)
        number = found.tasks.index(task)
        before = loss_with(run, task, weights)
        # Single precision; padded batches have sums of other lengths.
        assert file["losses_before"][number] == pytest.approx(before, abs=1e-4)
        change = loss_with(run, task, rows) - before
        assert abs(change) > 1e-3
        assert found.losses[0, number, skill] == pytest.approx(change, abs=2e-4)


@pytest.mark.slow
def test_an_interrupted_command_goes_on_and_scores_are_kept(run: Path, capsys: Capture) -> None:
    assert ablate(run, "--rows", 2) == 0
    folder = run / "ablation"
    whole = read_ablation(run)
    assert whole is not None
    assert whole.scores is not None
    assert whole.quantity == "score"
    printed = " ".join(capsys.readouterr().out.split())
    harm = matched(read_record(run).weights, whole.pairs).mean(0).argmax(1) == (
        (-whole.scores[0]).argmax(1)
    )
    assert (
        f"; for {harm.sum()} of 3 tasks the skill with the largest weight also has the" in printed
    )
    assert (folder / "ablation.svg").is_file()
    # Weights in the figure are of the common order.
    record = read_record(run)
    assert whole.groups == record.groups
    assert matched(record.weights, whole.pairs).shape == record.weights.shape

    lines = (folder / "results.jsonl").read_text().splitlines(keepends=True)
    assert [json.loads(line)["job"][1] for line in lines] == [-1, 0, 1, 2]
    (folder / "results.jsonl").write_text("".join(lines[:2]) + lines[2][:20])
    (folder / "ablation.npz").unlink()
    assert ablate(run, "--rows", 2) == 0
    again = read_ablation(run)
    assert again is not None
    np.testing.assert_array_equal(again.losses, whole.losses)
    assert (folder / "results.jsonl").read_text() == "".join(lines)

    capsys.readouterr()
    assert ablate(run, "--rows", 3) == 2
    assert "made with other settings: rows (2 before, 3 now)" in capsys.readouterr().err


@pytest.mark.slow
def test_one_group_at_a_time(run: Path, tmp_path: Path) -> None:
    assert ablate(run, "--per-group", "--loss", "--rows", 1, "--out", tmp_path) == 0
    found = read_ablation(tmp_path / "ablation.npz")
    assert found is not None
    assert found.layers == found.groups == read_record(run).groups
    assert found.losses.shape == (len(found.groups), 3, 3)
    assert not (tmp_path / "ablation.svg").exists()


@pytest.mark.slow
def test_a_skill_that_a_task_does_not_use_changes_nothing_and_is_not_computed(tmp_path) -> None:
    gym = write_gym(tmp_path / "gym", sizes=(4, 2, 2))
    config = write_config(
        *(tmp_path / "tiny.yaml", gym), router={"kind": "private"}, skills={"n_skills": "per_task"}
    )
    run = train(config, "run", *SHORT, "optim.lr=1.0").path
    assert ablate(run, "--loss") == 0
    found = read_ablation(run)
    assert found is not None
    touched = found.losses[0] != 0
    np.testing.assert_array_equal(touched, matched(read_record(run).weights, found.pairs)[0] > 0)
    lines = (run / "ablation" / "results.jsonl").read_text().splitlines()
    assert [len(json.loads(line)["losses"]) for line in lines] == [3, 1, 1, 1]


def test_weights_are_as_before_outside_of_the_block() -> None:
    router, ids = PolytroponRouter(2, 3, 1, 4).eval(), torch.arange(3)
    before = router(ids)
    cells = torch.ones(2, 4)
    cells[0, 1] = cells[1, 3] = 0
    with switched_off(router, cells):
        inside = router(ids)
    torch.testing.assert_close(inside, before * cells[:, None, None])
    with switched_off(router, cells, share=True):
        torch.testing.assert_close(router(ids).sum(-1), torch.ones(2, 3, 1))
    torch.testing.assert_close(router(ids), before, rtol=0, atol=0)
    # A row without another skill has nobody to give its weight to.
    alone = FixedRouter(torch.eye(4)[:1], 2)
    with switched_off(alone, torch.tensor([[0.0, 1, 1, 1]] * 2), share=True):
        assert not alone(ids[:1]).any()


def test_runs_without_skills_of_tasks_are_refused(run, tmp_path, monkeypatch, refused) -> None:
    given = (SCRIPT.main, run, "--out", tmp_path)
    built, config = load_run(run), load_any_config([str(run / "config.yaml")])
    monkeypatch.setattr(f"{READING}.load_run", lambda *_, **__: built)
    for section, message in (
        ({"skills": NoSkills(kind="none")}, "the run has no skills, only experts"),
        ({"aggregation": Fusion(kind="fusion", source="x")}, "skills are mixed per token; use the"),
    ):
        other = config.model_copy(update=section)
        monkeypatch.setattr(f"{READING}.load_any_config", lambda *_, found=other, **__: found)
        assert message in refused(*given)
    monkeypatch.setattr(f"{READING}.load_any_config", lambda *_, **__: None)
    assert "' has no config.yaml of text-to-text tasks, so its rows are unknown:" in refused(*given)


# Cosines between the gradients of tasks.


def test_tasks_are_compared_by_their_gradients(run, tmp_path, monkeypatch, capsys) -> None:
    """Against a plain backward pass of the backbone's own loss; other figures are left out."""
    monkeypatch.setattr("mttl.analysis.figures.catalogue.drawings", lambda *_, **__: ())
    assert plot.main([str(run), "--gradients", "--out", str(tmp_path)]) == 0
    found = np.array(
        [[float(row[task]) for task in TASKS] for row in read_csv(tmp_path / "gradients.csv")]
    )
    built = load_run(run)
    directions = []
    for number, task in enumerate(TASKS):
        path = run.parents[1] / "gym" / task / f"{task}_4_100_train.tsv"
        rows = [line.split("\t") for line in path.read_text().splitlines()]
        prompts = built.tokenizer(
            [f"[{task}] {question}" for question, _ in rows], return_tensors="pt", padding=True
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


def test_gradients_need_rows_and_mixed_skills(run, tmp_path, monkeypatch) -> None:
    with pytest.raises(CheckpointError, match=r"has no config\.yaml .* remove --gradients"):
        gradient_cosines(tmp_path, 4)
    built = load_run(run)
    built.model.skilled_layers = dict
    monkeypatch.setattr(f"{READING}.load_run", lambda *_, **__: built)
    with pytest.raises(CheckpointError, match="' has no skills, only experts that tokens choose;"):
        gradient_cosines(run, 4)
    with pytest.raises(ConfigError, match="--adapted does not work with --compare and"):
        plot.main([str(run), "--gradients", "--adapted", "somewhere"])
