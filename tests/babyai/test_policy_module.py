"""Learning from demonstrations, beside a plain loop over levels, episodes and steps."""

import io
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch.func import functional_call

pytest.importorskip("minigrid", reason="needs the extra `babyai`")

from helpers.trainer import quiet_trainer
from mttl.babyai import policy_module
from mttl.babyai.demonstration_loader import DemonstrationLoader, LevelDemonstrations, pad_episodes
from mttl.babyai.policy import Policy
from mttl.babyai.policy_module import EpisodeMonitor, ImitationModule, ImitationMonitor, percentages
from mttl.babyai.rl.learning_curve import EpisodeLog
from mttl.babyai.rollouts import PolicyData
from mttl.config.babyai_schema import Rl
from mttl.config.optim_schema import Adam
from mttl.routing.task.polytropon import PolytroponRouter
from mttl.skills.composed.composed_model import ComposedModel, ModuleInventory

NAMES = ("one", "two")
OPTIMIZATION = Adam(kind="adam", lr=1e-3, schedule="constant", warmup=0)


def make_level(seed: int, longest: int) -> LevelDemonstrations:
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, longest + 1, 6)
    n_frames = int(lengths.sum())
    return LevelDemonstrations(
        images=generator.integers(0, 10, (n_frames, 7, 7, 3)).astype(np.uint8),
        actions=generator.integers(0, 7, n_frames).astype(np.uint8),
        lengths=lengths,
        missions=generator.integers(1, 5, (6, 3)).astype(np.uint8),
    )


LEVELS = [make_level(0, longest=4), make_level(1, longest=9)]
CHOSEN = np.array([[0, 5, 3], [1, 4, 2]])


def make_module(recurrence: int = 3) -> ImitationModule:
    torch.manual_seed(0)
    base = Policy(6, n_channels=4, memory_size=4, instruction_size=4, word_size=4, hidden_size=4)
    inventory = ModuleInventory(base, 2, kind="dense")
    router = PolytroponRouter(inventory.n_groups, len(NAMES), 1, 2, relaxed=False)
    ppo = {"recurrence": recurrence, "n_steps": recurrence}
    rl = Rl.model_validate({"levels": [*NAMES], "ppo": ppo, "imitation": {"entropy_coef": 0.0}})
    return ImitationModule(ComposedModel(base, inventory, router), NAMES, OPTIMIZATION, rl)


def plain_loss(module: ImitationModule) -> torch.Tensor:
    """Follow one demonstration after the other, step by step, without padding."""
    model = module.model
    parameters = model.task_parameters(module.task_ids)
    of_levels = []
    for task, level in enumerate(LEVELS):
        own = {name: value[task] for name, value in parameters.items()}
        starts = level.lengths.cumsum() - level.lengths
        losses = []
        for episode in CHOSEN[task]:
            memory = torch.zeros(1, 8)
            missions = torch.from_numpy(level.missions[episode : episode + 1])
            for step in range(level.lengths[episode]):
                frame = starts[episode] + step
                if step % module.rl.ppo.recurrence == 0:
                    memory = memory.detach()
                image = torch.from_numpy(level.images[frame])[None, None]
                index, begins = torch.zeros(1, 1, dtype=torch.long), torch.full((1, 1), step == 0)
                given = image, missions, index, memory, begins
                logits, _, memory = functional_call(model.base, own, given)
                action = torch.tensor([int(level.actions[frame])])
                losses.append(torch.nn.functional.cross_entropy(logits[0], action))
        of_levels.append(torch.stack(losses).mean())
    return torch.stack(of_levels).mean()


@pytest.mark.parametrize(
    ("recurrence", "over_tasks"), [(1, "loop"), (3, "loop"), (3, "vmap"), (20, "loop")]
)
def test_loss_and_gradients_are_those_of_a_plain_loop(recurrence: int, over_tasks: str) -> None:
    module = make_module(recurrence)
    module.model.over_tasks = over_tasks
    expected = plain_loss(module)
    names = [name for name, _ in module.named_parameters()]
    parameters = list(module.parameters())
    expected_gradients = torch.autograd.grad(expected, parameters, allow_unused=True)
    loss = module.training_step(pad_episodes(LEVELS, CHOSEN), 0)
    gradients = torch.autograd.grad(loss, parameters)
    # Sums in another order: a few units in the last of 24 bits.
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    for name, gradient, other in zip(names, gradients, expected_gradients, strict=True):
        if other is None:  # the critic: a gradient, but of zero
            assert "critic" in name
            assert not gradient.any()
        else:
            torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-6)


def test_lines_come_at_times_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([20.0, 20.0, 21.0, 34.9, 35.0, 35.0, 36.0, 37.0])
    monkeypatch.setattr(policy_module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    lines: list[str] = []
    console: Any = SimpleNamespace(print=lambda line, **style: lines.append(line))
    data = PolicyData(DemonstrationLoader(LEVELS, 3, seed=0))
    quiet_trainer(max_epochs=5, callbacks=[ImitationMonitor(console)]).fit(make_module(), data)
    assert [line.split(";")[0] for line in lines] == ["pass 1", "pass 4", "pass 5"]
    assert lines[0].startswith("pass 1; actions as demonstrated (%): one ")


def trainer(**changed: Any) -> Any:
    class Rows:
        rows: list[dict[str, float]] = []  # noqa: RUF012

        def log_metrics(self, row: dict[str, float], step: int) -> None:
            self.rows.append(row)

    values = {
        **{"loggers": [Rows()], "world_size": 1, "is_global_zero": True, "global_step": 7},
        **{"current_epoch": 0, "max_epochs": 100, "should_stop": False},
    }
    return SimpleNamespace(**{**values, **changed})


def play(log: EpisodeLog, *won: bool) -> None:
    """End an episode of every level."""
    ended = np.ones((len(won), 1), bool)
    reward = np.array(won, np.float32)[:, None]
    log.update(ended, ~ended, reward, np.full((len(won), 1), 5))


def test_training_ends_once_every_level_was_solved_in_ten_rollouts() -> None:
    log, text = EpisodeLog(["A", "B"], 2), io.StringIO()
    rl = Rl(levels=["A", "B"], success_rate=0.96, stop_when_solved=True)
    monitor = EpisodeMonitor(log, rl, Console(file=text, width=120))
    run = trainer()
    for number in range(12):
        play(log, True, number > 0)
        monitor.on_train_epoch_end(run, None)  # type: ignore[arg-type]
        # The second row is the first with two episodes; B has won both from the third on.
        assert run.should_stop == (number >= 11), number
        if run.should_stop:
            break
    assert "The success rate of every level is 96% or more over 2 episodes:" in text.getvalue()


def test_rows_leave_out_what_is_not_known_yet() -> None:
    log, run = EpisodeLog(["A", "B"], 1), trainer()
    ended = np.array([[True], [False]])
    log.update(ended, ended & False, ended.astype(np.float32), np.ones((2, 1), int))
    monitor = EpisodeMonitor(log, Rl(levels=["A", "B"]), Console(quiet=True))
    monitor.on_train_epoch_end(run, None)  # type: ignore[arg-type]
    (row,) = run.loggers[0].rows
    assert row["success/A"] == 1.0
    assert "success/B" not in row
    assert percentages({"A": 0.456, "B": float("nan")}) == "A 46  B –"


def test_counts_of_several_processes_are_added_up() -> None:
    """The reduction stands in for two processes of which the other has played nothing."""
    log = EpisodeLog(["A"], 1)
    play(log, True)
    strategy = SimpleNamespace(root_device="cpu", reduce=lambda values, reduce_op: values / 2)
    monitor = EpisodeMonitor(log, Rl(levels=["A"]), Console(quiet=True))
    row = monitor.row(trainer(world_size=2, strategy=strategy))
    assert (row["episodes"], row["frames"]) == (1.0, 1.0)
    assert row["success/A"] == pytest.approx(0.5)
