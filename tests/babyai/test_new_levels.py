"""`mttl adapt` with a section rl: new levels, in every mode."""

import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from helpers.babyai import TINY
from helpers.command import column, load_recipe
from mttl.io import yaml12

pytest.importorskip("minigrid", reason="needs the extra `babyai`")

import mttl.babyai.new_levels as adaptation
from envs.demonstrations import record_demonstrations, save_demonstrations
from mttl.adaptation.modes import TRAINED_ROLES
from mttl.adaptation.plan import FewShotJob
from mttl.analysis.routing_record import read_record
from mttl.babyai.build_policy import fresh_policies, load_policies
from mttl.babyai.evaluate import play_levels
from mttl.babyai.new_levels import adapt_policies
from mttl.commands import adapt
from mttl.commands.routing_report.read_routing import with_adapted
from mttl.config.section import AdaptMode
from mttl.io.errors import ConfigError, DivergedError, TaskError
from mttl.routing.task.fixed import SharedRouter
from mttl.training.monitors import as_rows

ADAPTING = {
    **TINY,
    "adapt": {"levels": ["GoToObj"], "n_updates": 2, "seeds": [1, 2]},
    "trainer": {**TINY["trainer"], "max_epochs": 1},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapt")
    (folder / "tiny.yaml").write_text(yaml12.dump({**ADAPTING, "run": {"dir": str(folder)}}))
    assert load_recipe().main(["-c", str(folder / "tiny.yaml"), "-k", "run.name=run"]) == 0
    return folder / "run"


def finetune(run: Path, *arguments: str) -> int:
    return adapt.main(["-c", str(run.parent / "tiny.yaml"), "--from", str(run), *arguments])


@pytest.mark.slow
def test_finished_jobs_are_kept_and_never_repeated(run, monkeypatch, capsys) -> None:
    out = run.parent / "twice"
    real, played = adaptation._run_job, []

    def stopping(*given: Any) -> Any:
        if played:
            raise KeyboardInterrupt
        played.append(given[3])
        return real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(adaptation, "_run_job", stopping)
        with pytest.raises(KeyboardInterrupt):
            finetune(run, "--out", str(out))
    (first,) = (out / "results.jsonl").read_text().splitlines()
    with (out / "results.jsonl").open("a") as file:
        file.write('{"level": "cut o')  # as a crash leaves it
    assert finetune(run, "--out", str(out)) == 0
    lines = (out / "results.jsonl").read_text().splitlines()
    assert lines[0] == first
    rows = [json.loads(line) for line in lines]
    assert [(row["level"], row["seed"]) for row in rows] == [("GoToObj", 1), ("GoToObj", 2)]
    assert all(row["frames"] == 2 * 8 * 3 for row in rows)  # rollouts × steps × slots
    assert (out / "curves" / "GoToObj-1.csv").is_file()
    assert "GoToObj" in capsys.readouterr().out


def test_a_job_that_diverges_has_no_result_and_the_others_go_on(run, monkeypatch) -> None:
    real = adaptation._learn

    def learn(config: Any, model: Any, job: FewShotJob, *rest: Any) -> None:
        if job.seed == 1:
            rates = config.adapt.model_copy(update={"lr": 1e30})
            config = config.model_copy(update={"adapt": rates})
        real(config, model, job, *rest)

    monkeypatch.setattr(adaptation, "_learn", learn)
    out = run.parent / "diverged"
    with pytest.raises(DivergedError, match="diverged and have no result:\nGoToObj, seed 1"):
        finetune(run, "--out", str(out))
    (kept,) = (out / "results.jsonl").read_text().splitlines()
    assert json.loads(kept)["seed"] == 2


@pytest.mark.every(2)
@pytest.mark.parametrize("mode", ["all", "average", "from_scratch", "full"])
def test_a_saved_policy_plays_as_it_did_after_adaptation(run: Path, mode: AdaptMode) -> None:
    out = run.parent / f"saved-{mode}"
    given = ["--out", str(out), "--save", "-k", f"adapt.mode={mode}", "adapt.seeds=[1]"]
    assert finetune(run, *given, "rl.evaluation.n_episodes=4") == 0
    result = json.loads((out / "results.jsonl").read_text())
    model, levels = load_policies(out / "models" / "GoToObj-1")
    for choose in ("greedy", "sampled"):
        played = play_levels(model, levels, n_episodes=4, seed=1, choose=choose)
        assert played.steps.mean() == result[f"{choose}_steps"]
    joined = with_adapted(read_record(run), [str(out / "models" / "GoToObj-1")], None)
    np.testing.assert_array_equal(joined.weights[:, -1:], as_rows(model.router.matrix()))


@pytest.mark.parametrize("mode", get_args(AdaptMode))
def test_every_mode_trains_exactly_what_it_names(run: Path, mode: AdaptMode) -> None:
    """Bit for bit: what changes in a step of gradient descent belongs to the mode's roles."""
    trained, _ = load_policies(run)
    model = (
        fresh_policies(run, ["new"]) if mode == "from_scratch" else adapt_policies(trained, mode)
    )
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    parts = {"skills": "inventory.", "router": "router.", "backbone": "base."}
    wanted = set(TRAINED_ROLES[mode]) - {"heads"} | (
        {"backbone"} if mode == "from_scratch" else set()
    )
    allowed = tuple(parts[role] for role in wanted)
    for name, value in model.named_parameters():
        assert value.requires_grad == name.startswith(allowed), name
    images = torch.randint(0, 5, (1, 2, 3, 7, 7, 3))
    missions = torch.randint(1, 9, (1, 2, 4))
    index, memory = torch.zeros(1, 2, 3, dtype=torch.long), torch.zeros(1, 3, 16)
    begins = torch.zeros(1, 2, 3, dtype=torch.bool)
    logits, values, _ = model(torch.tensor([0]), images, missions, index, memory, begins)
    loss = logits.square().sum() + values.square().sum()
    if not wanted:
        assert not loss.requires_grad
        return
    loss.backward()
    with torch.no_grad():
        for value in model.parameters():
            if value.grad is not None:
                value -= 0.1 * value.grad
    changed = {name for name, value in model.named_parameters() if not value.equal(before[name])}
    assert {name.split(".")[0] + "." for name in changed} == set(allowed)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["--tasks", "GoToObjS4"], TaskError, "was trained on GoToObjS4.* --allow-seen"),
        (["--tasks", "GoToObjj"], ConfigError, "--tasks: .*GoToObjj.*GoToObj"),
        (["-k", "adapt.levels=[]"], ConfigError, "adapt.levels: no level given"),
        (["--samples", "13"], ConfigError, "--samples is only for text-to-text tasks"),
        (["--shard", "1/2"], ConfigError, "--shard is only for text-to-text tasks"),
    ],
)
def test_mistakes_are_explained(run, arguments, error, message) -> None:
    with pytest.raises(error, match=message):
        finetune(run, *arguments)


def test_results_are_tied_to_settings(run: Path) -> None:
    out = str(run.parent / "tied")
    quick = ["-k", "adapt.mode=zero_shot", "adapt.seeds=[1]"]
    assert finetune(run, "--out", out, *quick) == 0
    row = json.loads((Path(out) / "results.jsonl").read_text())
    assert (row["n_trained"], row["episodes"], row["solved_after"]) == (0, 0, None)
    with pytest.raises(ConfigError, match=r"made with other settings: adapt\.lr"):
        finetune(run, "--out", out, *quick, "adapt.lr=0.5")


def test_adaptation_by_imitation(run: Path) -> None:
    """The loss of the last pass is below that of the first; nothing is played to learn."""
    record = run.parent / "bot.npz"
    save_demonstrations(record_demonstrations(["GoToObj"], 12), record)
    out = run.parent / "imitated"
    quick = ["adapt.seeds=[1]", "adapt.n_updates=8", "adapt.lr=1e-2"]
    finetune(run, "--out", str(out), "-k", f"rl.demonstrations={record}", *quick)
    row = json.loads((out / "results.jsonl").read_text())
    assert (row["episodes"], row["solved_after"]) == (0, None)
    losses = list(column(out / "curves" / "GoToObj-1.csv", "train/cross_entropy").values())
    assert losses[-1] < losses[0]


def test_a_new_level_of_c_poly_has_a_fresh_skill_of_its_own(run: Path) -> None:
    fragment = run.parent / "c_poly.yaml"
    fragment.write_text("router: {kind: c_poly, granularity: model}\nskills: {n_skills: 2}\n")
    given = ["-c", f"{run.parent / 'tiny.yaml'}+{fragment}", "-k", "run.name=c_poly"]
    assert load_recipe().main(given) == 0
    known, levels = load_policies(run.parent / "c_poly")
    assert known.router.n_skills == 2 + len(levels)
    before = {name: value.clone() for name, value in known.inventory.named_parameters()}
    for mode, skills in (("router_only", [0, 1]), ("all", [0, 1, 2])):
        model, _ = load_policies(run.parent / "c_poly")
        adapt_policies(model, mode)
        assert model.router.allowed[0].nonzero().flatten().tolist() == skills
        for name, value in model.inventory.named_parameters():
            stays = [torch.equal(*pair) for pair in zip(value, before[name], strict=True)]
            assert stays == [True, True, mode == "router_only", True] or not value.any(), name
    alone = fresh_policies(run.parent / "c_poly", ["GoToObj"])
    assert alone.router.n_skills == 3
    known.router = SharedRouter(1, 2)
    with pytest.raises(ConfigError, match=r"does not have. Use 'skills_only', or a run with a"):
        adapt_policies(known, "router_only")
