"""Train the policies of many BabyAI levels: what `pl_train.py` does with a section ``rl``."""

from pathlib import Path

import pytorch_lightning as pl

from envs.errors import LevelError, SimulationError
from envs.vector import check_levels, make_vector_env
from mttl.checkpoint import save_inventory
from mttl.command import make_console
from mttl.config.babyai_schema import BabyAIConfig
from mttl.config.build import build_optimization
from mttl.config.build_policy import (
    build_policies,
    loss_weights,
    policy_settings,
    rollout_settings,
)
from mttl.config.load import dump_config
from mttl.config.trainer import build_policy_trainer
from mttl.data.rollouts import Player, RolloutDataModule, RolloutLoader
from mttl.errors import ConfigError, TrainingError
from mttl.files import write_text
from mttl.rl.episode_log import EpisodeLog
from mttl.training.babyai import BabyAIModule
from mttl.training.evaluate import Result, write_results
from mttl.training.play import episode_results, episode_table, play_levels
from mttl.training.report import composition_table, write_routing
from mttl.training.run_folder import RunFolder, step_to_start_from


def train_babyai(config: BabyAIConfig, *, resume: bool = False) -> list[Result]:
    """Train, evaluate and save.

    Args:
        config: The run.
        resume: Continue an interrupted run of the same name.

    Returns:
        The success rate and mean steps of every level.

    Raises:
        ConfigError: If a setting is wrong.
        TrainingError: If an environment breaks, or the loss is no number any more.
    """
    try:
        return _train(config, resume)
    except LevelError as error:
        raise ConfigError(f"section rl: {error}") from error
    except SimulationError as error:
        raise TrainingError(
            f"{error}. The last checkpoint is kept; continue with --resume"
        ) from error


def _train(config: BabyAIConfig, resume: bool) -> list[Result]:
    pl.seed_everything(config.run.seed, verbose=False)
    console = make_console()
    rl, seed = config.rl, config.run.seed
    levels = check_levels(rl.levels)
    model = build_policies(config, levels)
    folder = RunFolder(Path(config.run.dir) / config.run.name)
    text = dump_config(config)
    step = step_to_start_from(folder, text, resume=resume)
    module = BabyAIModule(model, levels, build_optimization(config.optim), loss_weights(rl.ppo))
    log = EpisodeLog(levels, rl.window)
    trainer = build_policy_trainer(config, folder, log, model.inventory.groups, resumed_step=step)
    if trainer.is_global_zero:
        write_text(folder.config, text)
        console.print(composition_table(model, levels))
    environments = make_vector_env(
        levels,
        rl.n_slots,
        seed=seed,
        backend=rl.backend,
        n_workers=rl.n_workers,
        first_slot=trainer.global_rank * rl.n_slots,
    )
    player_seed = seed + trainer.global_rank
    loader = RolloutLoader(
        Player(model, environments, log, seed=player_seed),
        rollout_settings(rl.ppo),
        seed=player_seed,
    )
    try:
        data = RolloutDataModule(loader)
        trainer.fit(
            module, datamodule=data, ckpt_path=folder.last if resume else None, weights_only=False
        )
    finally:
        environments.close()

    results: list[Result] = []
    if trainer.is_global_zero:  # the same episodes would be played by all
        for choose in rl.evaluation.choose:
            episodes = play_levels(
                model,
                levels,
                n_episodes=rl.evaluation.n_episodes,
                seed=rl.evaluation.seed,
                choose=choose,
            )
            results += episode_results(episodes, levels, choose, seed)
        write_results(folder.results, results)
        save_inventory(
            folder.skills,
            model,
            levels,
            backbone_name="BabyAI policy",
            # Where it is frozen it is random, and random weights come from nowhere else.
            backbone_trained=True,
            settings=policy_settings(config),
        )
        write_routing(folder.plots / "routing.npz", model.router, model.inventory.groups, levels)
        console.print(episode_table(results))
        console.print(f"The run is in {folder.path}", highlight=False)
    return results
