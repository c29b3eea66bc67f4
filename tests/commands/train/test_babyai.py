"""`mttl train` with a section rl: what a run leaves behind, stops, resumes, and mistakes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.babyai import LEVELS, TINY
from helpers.command import load_recipe, read_csv, start, train
from mttl.io import yaml12

pytest.importorskip("minigrid", reason="needs the extra `babyai`")

import mttl.babyai.train as world
from envs.demonstrations import load_demonstrations
from envs.local import LocalVectorEnv
from helpers.interruption import assert_same_run, interrupted
from mttl.analysis.routing_record import read_record
from mttl.assembly.trainer import with_shared_slots
from mttl.babyai.build_policy import load_policies
from mttl.checkpoints.run_folder import RunFolder
from mttl.commands import babyai_record, show
from mttl.config.babyai_schema import BabyAIConfig
from mttl.config.load import load_any_config, load_config
from mttl.io.errors import ConfigError, TrainingError

STEPS = 4 * 4  # rollouts × minibatches


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("babyai")
    path = folder / "tiny.yaml"
    path.write_text(yaml12.dump({**TINY, "run": {"dir": str(folder / "runs")}}))
    return path


@pytest.fixture(scope="module")
def whole(config: Path) -> RunFolder:
    return train(config, "whole")


@pytest.mark.slow
def test_a_run_leaves_everything_behind(whole: RunFolder) -> None:
    rows = read_csv(whole.results)
    assert list(rows[0]) == ["task", "split", "sample", "seed", "metric", "score", "n"]
    assert {(row["task"], row["sample"], row["metric"]) for row in rows} == {
        (level, sample, metric)
        for level in (*LEVELS, "mean")
        for sample in ("greedy", "sampled")
        for metric in ("success", "steps")
    }
    last = read_csv(whole.metrics)[-1]
    assert int(last["step"]) == STEPS
    assert float(last["frames"]) == 4 * 8 * 3 * 2  # rollouts × steps × slots × levels
    assert {"train/loss", "train/entropy", "routing/discreteness"} <= set(last)
    assert load_any_config([str(whole.config)]).run.name == "whole"
    assert json.loads((whole.skills / "tasks.json").read_text()) == LEVELS
    record = read_record(whole.path)
    assert (record.tasks, record.groups, record.weights.shape) == (
        *(tuple(LEVELS), ("model",)),
        (1, 2, 3),
    )
    assert record.history is not None


def test_a_run_is_shown_with_success_and_steps(whole: RunFolder, capsys) -> None:
    assert show.main([str(whole.path)]) == 0
    cells = [line.split("│")[1:-1] for line in capsys.readouterr().out.splitlines() if "│" in line]
    shown = {(row[0].strip(), row[1].strip()): [*map(str.strip, row[2:])] for row in cells}
    for row in read_csv(whole.results):
        factor = 100 if row["metric"] == "success" else 1
        place = ["greedy", "sampled"].index(row["sample"])
        found = shown[row["task"], row["metric"]][place]
        assert found == f"{factor * float(row['score']):.1f}"


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "step",
    [
        pytest.param(0, id="first", marks=pytest.mark.slow),
        pytest.param(2, id="within a rollout"),
        pytest.param(3, id="last of a rollout"),
        pytest.param(9, id="second pass", marks=pytest.mark.slow),
        pytest.param(STEPS - 1, id="last", marks=pytest.mark.slow),
    ],
)
def test_a_run_continues_as_if_it_had_never_stopped(config, whole, monkeypatch, step) -> None:
    """Bit for bit: environments, memories, the rollout and random numbers all go on."""
    name = f"stopped-{step}"
    with interrupted(step, monkeypatch):
        train(config, name)
    assert_same_run(train(config, name, resume=True), whole)


@pytest.mark.parametrize(
    "method",
    [
        *("polytropon_ibp", "private"),
        *(pytest.param(m, marks=pytest.mark.slow) for m in ("dense", "shared", "expert", "moe")),
    ],
)
def test_every_method_trains(config: Path, method: str) -> None:
    both = f"{config}+babyai/{method}.yaml"
    name = ["-k", f"run.name={method}", "trainer.max_epochs=1", "rl.evaluation.n_episodes=1"]
    assert load_recipe().main(["-c", both, *name]) == 0
    model, _ = load_policies(config.parent / "runs" / method)
    assert (model.router.n_skills == 2) == (method == "private")


def test_commands_for_text_refuse_a_policy(config: Path) -> None:
    with pytest.raises(ConfigError, match="has a section 'rl', which describes a policy for"):
        load_config(str(config))


def test_a_resumed_run_must_keep_its_levels(config: Path, whole: RunFolder) -> None:
    with pytest.raises(ConfigError, match=r"other settings: rl.levels"):
        train(config, "whole", "rl.levels=[GoToObj, GoToObjS4]", resume=True)


def test_a_loss_that_is_no_number_ends_the_run_and_keeps_the_checkpoint(config, monkeypatch):
    with interrupted(9, monkeypatch):
        train(config, "broken")
    run = RunFolder(config.parent / "runs" / "broken")
    kept = run.last.read_bytes()
    real = world.PpoModule.training_step

    def poisoned(self: Any, batch: Any, batch_idx: int) -> torch.Tensor:
        with torch.no_grad():
            next(self.model.base.parameters()).fill_(float("nan"))
        return real(self, batch, batch_idx)

    monkeypatch.setattr(world.PpoModule, "training_step", poisoned)
    with pytest.raises(TrainingError, match=r"the loss is nan at step 10: .* last checkpoint"):
        train(config, "broken", resume=True)
    assert run.last.read_bytes() == kept


def test_an_environment_that_raises_ends_the_run_clearly(config, monkeypatch) -> None:
    class Broken:
        def step(self, action: int) -> None:
            raise RuntimeError("out of cheese")

    real = LocalVectorEnv.reset

    def reset(self: Any) -> Any:
        seen = real(self)
        self._games[0, 1].env.step = Broken().step
        return seen

    monkeypatch.setattr(LocalVectorEnv, "reset", reset)
    with pytest.raises(TrainingError, match=r"level 'GoToObjS4', slot 1.*out of cheese.*--resume"):
        train(config, "raises")


@pytest.mark.parametrize("n_processes", [1, 2, 4, 8])
def test_the_paper_has_64_environments_on_any_number_of_processes(n_processes: int) -> None:
    config = load_any_config("babyai_paper.yaml")
    assert isinstance(config, BabyAIConfig)
    shared = with_shared_slots(config.rl, n_processes)
    assert n_processes * shared.n_slots * len(config.rl.levels) == 64


def test_environments_of_all_processes_are_those_of_one(config: Path, whole: RunFolder) -> None:
    other = train(config, "global", "rl.global_n_slots=3", "rl.n_slots=7")
    assert other.metrics.read_bytes() == whole.metrics.read_bytes()


@pytest.mark.slow
def test_two_processes_share_the_environments_and_continue(config: Path) -> None:
    """Frames of both are counted, one of them speaks, and a stopped run goes on."""
    two = ("trainer.devices=2", "trainer.strategy=ddp", f"run.dir={config.parent / 'runs'}")
    two += ("rl.global_n_slots=6",)  # three of each process
    process = start(config, "two", *two)
    printed, said = process.communicate(timeout=250)
    assert process.returncode == 0, said
    folder = RunFolder(config.parent / "runs" / "two")
    assert read_csv(folder.metrics)[-1]["frames"] == str(float(2 * 4 * 8 * 3 * 2))
    assert len(read_csv(folder.results)) == 2 * 2 * (len(LEVELS) + 1)
    assert (printed + said).count("GoToObjS4") == (printed + said).count("GoToRedBallNoDists")
    assert sum("384 frames" in line for line in said.splitlines()) == 1
    more = start(config, "two", *two, "trainer.max_epochs=6", resume=True)
    _, said = more.communicate(timeout=250)
    assert more.returncode == 0, said
    assert read_csv(folder.metrics)[-1]["frames"] == str(float(2 * 6 * 8 * 3 * 2))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["rl.levels=[GoToRedBal]"], r"section rl: .*GoToRedBal.*GoToRedBall"),
        (["rl.levels=[GoToObj, GoToObj]"], "rl.levels: .* must not contain an entry twice"),
        (["rl.demonstrations=x.npz", "rl.stop_when_solved=true"], "stop_when_solved must be false"),
        (["rl.imitation.entropy=1"], "section 'rl.imitation' has no setting 'entropy'. Did you"),
        (["rl.ppo.recurrence=3"], r"n_steps \(8\) must be a multiple of recurrence \(3\)"),
        (["rl.ppo.n_minibatches=5"], r"ppo.n_minibatches \(5\) must divide the 6 sequences"),
        (["rl.backend=envpool", "rl.n_workers=1"], "n_workers must be 0 with backend 'envpool'"),
        (["adapt.mode=in_context"], "adapt: mode 'in_context' needs text examples"),
        (["rl.n_workers=4"], r"n_workers \(4\) must not exceed n_slots \(3\)"),
        (["rl.global_n_slots=6", "trainer.devices=4", "trainer.strategy=ddp"], "a multiple of 4"),
        (
            ["rl.global_n_slots=4", "trainer.devices=2", "rl.ppo.n_minibatches=8"],
            "gives each process 2 of a level: ppo.n_minibatches .8. must divide the 4 sequences",
        ),
        (["router.kind=random"], r"with router.consistency \(1.0\): its loss compares tokens"),
        (["router.kind=score_function"], "policy .* with router.kind 'score_function': it learns"),
        (["router.granularity=block"], r"router.granularity \(block\) must be model or layer"),
        (["optim.label_smoothing=0.1"], "optim.label_smoothing must be 0"),
        (["trainer.strategy=fsdp2"], "trainer.strategy 'fsdp2' is for language models; use auto"),
        (["trainer.max_epochs=null", "trainer.max_steps=3"], "trainer.max_epochs must be set: the"),
        (["trainer.early_stopping=3"], "trainer.early_stopping is only for text-to-text tasks"),
        (["skills.n_skills=per_task"], "skills.n_skills 'per_task' is for the private"),
        (["skills.n_heads=2"], "skills.n_heads: '2' must be 1"),
        (["router.kind=none"], "with router.kind 'none': it gives skills no weights"),
        (["router.kind=smear"], "with router.kind 'smear': it reads prompts of text"),
        (["moe.router.kind=hash", "moe.experts.kind=adapter"], "have no vocabulary entries"),
        (["moe.router.kind=top_k", "moe.experts.kind=feed_forward"], "no feed-forward blocks"),
        (["moe.router.kind=top_k", "moe.experts.kind=ia3"], "it rescales outputs of layers"),
    ],
)
def test_mistakes_are_explained(config: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train(config, "mistake", *overrides)
    assert not (config.parent / "runs" / "mistake").exists()


# Demonstrations.


def test_levels_are_recorded_to_one_file(tmp_path, capsys, refused) -> None:
    out = tmp_path / "record.npz"
    given = ["--levels", "GoToObj", "PickupLoc", "--episodes", "3", "--out", str(out)]
    assert babyai_record.main(given) == 0
    record = load_demonstrations(out)
    assert [one.level for one in record] == ["GoToObj"] * 3 + ["PickupLoc"] * 3
    printed = capsys.readouterr().out
    assert (
        f"6 demonstrations with {sum(len(one.actions) for one in record)} steps are in " in printed
    )
    before = out.read_bytes()
    assert "record.npz' already exists" in refused(babyai_record.main, *given)
    assert out.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--out": "record.zip"}, "record.zip' must end in .npz"),
        ({"--levels": "KeyInBox"}, "bot cannot play level 'KeyInBox'"),
    ],
)
def test_mistakes_of_recording_leave_no_file(tmp_path, refused, monkeypatch, change, message):
    monkeypatch.chdir(tmp_path)
    options = {"--levels": "GoToObj", "--episodes": "2", "--out": "record.npz", **change}
    assert message in refused(
        babyai_record.main, *(part for each in options.items() for part in each)
    )
    assert not list(tmp_path.iterdir())
