"""Training of the policies of many BabyAI levels: `mttl train` with a section ``rl``."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from rich.console import Console

from envs.interface import SimulationError, check_levels
from envs.levels import LevelError
from envs.vector import make_vector_env
from mttl.analysis.token_record import write_token_record
from mttl.assembly.trainer import build_policy_trainer, with_shared_slots
from mttl.babyai.build_policy import build_policies, policy_settings
from mttl.babyai.cell_choices import CellChoices, cell_text
from mttl.babyai.demonstration_loader import DemonstrationLoader, read_demonstrations
from mttl.babyai.evaluate import episode_results, episode_table, play_levels
from mttl.babyai.policy_module import (
    EpisodeMonitor,
    ImitationModule,
    ImitationMonitor,
    PolicyModule,
    PpoModule,
)
from mttl.babyai.rl.learning_curve import EpisodeLog
from mttl.babyai.rollouts import PolicyData, RolloutLoader, check_words
from mttl.checkpoints.run_folder import RunFolder, check_still_there, step_to_start_from
from mttl.checkpoints.saved_inventory import save_inventory
from mttl.config.babyai_schema import BabyAIConfig
from mttl.config.load import dump_config
from mttl.io.errors import ConfigError, TrainingError, raised_as
from mttl.io.files import write_text
from mttl.runtime.child_process import forget_launcher
from mttl.runtime.command import make_console
from mttl.skills.composed.composed_model import ComposedModel
from mttl.training.loggers import close_loggers, open_loggers
from mttl.training.predictions import Result, write_results
from mttl.training.report import composition_table, write_routing

ROLLOUTS_BETWEEN_CHECKPOINTS = 10
BATCHES_BETWEEN_CHECKPOINTS = 200  # of demonstrations


@contextmanager
def environment_errors(advice: str) -> Iterator[None]:
    """Raise errors of environments as ConfigError, or as TrainingError with an advice."""
    with raised_as(ConfigError, "section rl", LevelError, ImportError):
        try:
            yield
        except SimulationError as error:
            raise TrainingError(f"{error}. {advice}") from error


@environment_errors("The last checkpoint is kept; continue with --resume")
def train_babyai(config: BabyAIConfig, *, resume: bool = False) -> list[Result]:
    """Train, evaluate and save policies; return success rate and mean steps of every level."""
    pl.seed_everything(config.run.seed, verbose=False)
    levels = check_levels(config.rl.levels)
    make_vector_env(levels, 1, seed=0).close()  # rejects unsuitable environments
    model = build_policies(config, levels)
    learning = learning_of(config, model, levels)
    folder = RunFolder(Path(config.run.dir) / config.run.name)
    text = dump_config(config)
    step = step_to_start_from(folder, text, resume=resume)
    trainer = build_policy_trainer(
        *(config, folder, levels, model, learning.monitor),
        every_n_steps=learning.every_n_steps,
        resumed_step=step,
    )
    with_shared_slots(config.rl, trainer.world_size)
    # Nothing is written before these checks.
    open_loggers(trainer, text)
    if trainer.is_global_zero:
        write_text(folder.config, text)
        make_console().print(composition_table(model, levels))
    with learning.open_data(trainer) as data:
        trainer.fit(
            learning.module,
            datamodule=data,
            ckpt_path=folder.last if step else None,
            weights_only=True,
        )
    forget_launcher()
    # Only one process evaluates, since all would play the same episodes.
    results = _finish(config, model, levels, folder) if trainer.is_global_zero else []
    close_loggers(trainer, results)
    return results


class Learning(NamedTuple):
    """The parts of training that depend on the method: rollouts or demonstrations."""

    module: PolicyModule
    monitor: Callback
    every_n_steps: int  # between checkpoints
    open_data: Callable[[pl.Trainer], AbstractContextManager[PolicyData]]


def learning_of(config: BabyAIConfig, model: ComposedModel, levels: Sequence[str]) -> Learning:
    """Return the training parts for demonstrations if configured, otherwise for rollouts."""
    learn = _from_demonstrations if config.rl.demonstrations else _from_rollouts
    return learn(config, model, levels)


def _from_rollouts(config: BabyAIConfig, model: ComposedModel, levels: Sequence[str]) -> Learning:
    rl = config.rl
    log = EpisodeLog(levels, rl.window)

    @contextmanager
    def open_data(trainer: pl.Trainer) -> Iterator[PolicyData]:
        seed = config.run.seed + trainer.global_rank
        own = with_shared_slots(rl, trainer.world_size)
        environments = make_vector_env(
            levels,
            own.n_slots,
            seed=config.run.seed,
            backend=rl.backend,
            n_workers=rl.n_workers,
            first_slot=trainer.global_rank * own.n_slots,
        )
        how = {"seed": seed, "arithmetic": trainer.precision_plugin.forward_context}
        try:
            yield PolicyData(RolloutLoader(model, environments, log, rl.ppo, **how))
        finally:
            environments.close()

    monitor = EpisodeMonitor(log, rl, Console(stderr=True))
    every_n_steps = ROLLOUTS_BETWEEN_CHECKPOINTS * rl.ppo.n_epochs * rl.ppo.n_minibatches
    module = PpoModule(model, levels, config.optim, rl)
    return Learning(module, monitor, every_n_steps, open_data)


def _from_demonstrations(
    config: BabyAIConfig, model: ComposedModel, levels: Sequence[str]
) -> Learning:
    rl = config.rl
    assert rl.demonstrations is not None
    record = read_demonstrations(rl.demonstrations, levels)
    for level in record:
        check_words(level.missions, model)
    module = ImitationModule(model, levels, config.optim, rl)

    def open_data(trainer: pl.Trainer) -> AbstractContextManager[PolicyData]:
        ranks = {"rank": trainer.global_rank, "n_ranks": trainer.world_size}
        size, seed = rl.imitation.batch_size, config.run.seed
        return nullcontext(PolicyData(DemonstrationLoader(record, size, seed=seed, **ranks)))

    monitor = ImitationMonitor(Console(stderr=True))
    return Learning(module, monitor, BATCHES_BETWEEN_CHECKPOINTS, open_data)


def _finish(
    config: BabyAIConfig, model: ComposedModel, levels: Sequence[str], folder: RunFolder
) -> list[Result]:
    """Evaluate, save the run, and return the results."""
    console, results = make_console(), list[Result]()
    played = config.rl.evaluation.model_dump(exclude={"choose"})
    choices = CellChoices(model) if model.token_layers() else None
    for choose in config.rl.evaluation.choose:
        status = Console(stderr=True)
        episodes = play_levels(model, levels, status, choose=choose, choices=choices, **played)
        results += episode_results(episodes, levels, choose, config.run.seed)
    write_results(folder.results, results)
    save_inventory(
        folder.skills,
        model,
        levels,
        backbone_name="BabyAI policy",
        # Frozen weights are random, so they must be saved, too.
        backbone_trained=True,
        settings=policy_settings(config).model_dump(mode="json"),
    )
    write_routing(folder.plots / "routing.npz", model.router, model.inventory.groups, levels)
    if choices:
        names = {"layers": choices.layers, "tasks": tuple(levels), "text_of": cell_text}
        write_token_record(folder.plots / "token_routing.npz", choices.counts, **names)
    check_still_there(folder)
    console.print(episode_table(results))
    console.print(f"The run is in {folder.path}", highlight=False)
    return results
