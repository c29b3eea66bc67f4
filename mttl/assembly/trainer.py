"""Build the Lightning trainer of a configuration."""

import math
from collections.abc import Sequence
from typing import Any

from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import Callback, EarlyStopping
from pytorch_lightning.loggers import Logger

from mttl.assembly.model import Built
from mttl.checkpoints.run_callbacks import CheckpointFile, RunLock, SaveBest, SaveLast, SharedSteps
from mttl.checkpoints.run_folder import RunFolder
from mttl.config.babyai_schema import BabyAIConfig, Rl
from mttl.config.plugin_section import PluginSection
from mttl.config.schema import Config
from mttl.config.schema import Trainer as TrainerSection
from mttl.config.skills_schema import Mixture, Router
from mttl.io.errors import ConfigError, raised_as
from mttl.io.reading import exact_fraction
from mttl.runtime.child_process import note_launcher
from mttl.runtime.libraries import check_libraries
from mttl.skills.composed.composed_model import ComposedModel
from mttl.training.callbacks import GracefulStop, TemperatureAnnealing
from mttl.training.distributed import ExpertSharing, ShardedStrategy
from mttl.training.loggers import EXPERIMENT_LOGGERS, MetricsFile, StepMonitor
from mttl.training.monitors import RoutingMonitor, TokenMonitor
from mttl.training.progress import TrainingProgress
from mttl.training.separate import SaveTaskBest
from mttl.training.token_balance import BiasBalancing


def build_trainer(
    config: Config, folder: RunFolder, built: Built, *, resumed_step: int = 0
) -> Trainer:
    """Return the trainer of a run with its callbacks and loggers."""
    callbacks = _callbacks(config, folder, built)
    if config.data.global_batch_size is not None:
        callbacks = [SharedSteps(), *callbacks]
    trainer = _make_trainer(config.trainer, folder, callbacks, resumed_step)
    moe, n_processes = config.moe, trainer.world_size
    if moe is not None and moe.parallel and (n_processes == 1 or moe.n_experts % n_processes):
        raise ConfigError(
            f"moe.parallel cannot distribute {moe.n_experts} experts over {n_processes} "
            "processes; the number of processes must be at least 2 and divide moe.n_experts"
        )
    return trainer


def build_policy_trainer(
    config: BabyAIConfig,
    folder: RunFolder,
    levels: Sequence[str],
    model: ComposedModel,
    monitor: Callback,
    *,
    every_n_steps: int,
    resumed_step: int = 0,
) -> Trainer:
    """Return the trainer of a BabyAI run with its callbacks and loggers."""
    last = SaveLast(folder.last, every_n_steps)
    routing = RoutingMonitor(folder.plots, model.inventory.groups, tuple(levels), every_n_steps)
    monitors = [routing, monitor, *_annealing(config.router)]
    if layers := tuple(model.token_layers()):
        monitors += [TokenMonitor(folder.plots, layers, every_n_steps), BiasBalancing()]
    callbacks: list[Callback] = [TrainingProgress(), *monitors, last, GracefulStop(last)]
    return _make_trainer(config.trainer, folder, callbacks, resumed_step)


def _make_trainer(
    section: TrainerSection, folder: RunFolder, callbacks: list[Callback], resumed_step: int
) -> Trainer:
    if section.loggers:
        check_libraries(*section.loggers)
        callbacks = [*callbacks, StepMonitor(section.log_every_n_steps)]
    loggers: list[Logger] = [MetricsFile(folder.metrics, keep_until=resumed_step)]
    loggers += [EXPERIMENT_LOGGERS[name](folder.path, resumed_step) for name in section.loggers]
    settings = section.model_dump(exclude={"loggers", "early_stopping", "callbacks"})
    interval = settings["val_check_interval"] = _validation_interval(section)
    if section.strategy == "fsdp2":
        # Tensors gathered in inference mode could not be trained afterwards.
        settings |= {"strategy": ShardedStrategy(), "inference_mode": False}
    if isinstance(interval, int):
        # An interval in batches counts over the whole run, not per epoch.
        settings["check_val_every_n_epoch"] = None
    note_launcher()
    return _lightning_trainer(
        **settings,
        default_root_dir=folder.path,
        logger=loggers,
        # Plug-ins come first, because the last callbacks save the state of all.
        callbacks=[RunLock(folder), *(own.make() for own in section.callbacks), *callbacks],
        plugins=[CheckpointFile()],
        # The data module distributes the batches.
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
    )


def _validation_interval(section: TrainerSection) -> int | float:
    """Return the number of batches between validations, or the fraction of an epoch."""
    interval = section.val_check_interval
    if isinstance(interval, int):
        return interval
    if section.max_steps < 1:
        return interval or 1.0
    # Rounded up: 100 steps have three validations, not a fourth after the last step.
    steps = max(1, math.ceil(exact_fraction(interval or 1 / 3, section.max_steps)))
    return steps * section.accumulate_grad_batches


def with_shared_batches(config: Config, n_processes: int | None = None) -> Config:
    """Return a configuration with the rows of each process for ``data.global_batch_size``.

    It sets the batch size, the batches per optimizer step, and the validation interval in batches.
    The default number of processes comes from the section trainer. Raises a `ConfigError` if the
    rows cannot be divided equally, or the section trainer requests devices that do not exist.
    """
    n_rows, section = config.data.global_batch_size, config.trainer
    if n_rows is None:
        return config
    if n_processes is None:
        n_processes = count_processes(section)
    own = _share("data.global_batch_size", n_rows, n_processes)
    n_parts = math.ceil(own / config.data.batch_size)
    interval = section.val_check_interval
    trainer = {
        "accumulate_grad_batches": n_parts,
        "val_check_interval": interval * n_parts if isinstance(interval, int) else interval,
    }
    return config.model_copy(
        update={
            "data": config.data.model_copy(update={"batch_size": math.ceil(own / n_parts)}),
            "trainer": section.model_copy(update=trainer),
        }
    )


def with_shared_slots(rl: Rl, n_processes: int) -> Rl:
    """Return a section with the environments of each process for ``rl.global_n_slots``.

    Raises a `ConfigError` if they cannot be divided equally, or a process has too few.
    """
    if rl.global_n_slots is None:
        return rl
    own = _share("rl.global_n_slots", rl.global_n_slots, n_processes)
    rl = rl.model_copy(update={"n_slots": own, "global_n_slots": None})
    for problem in rl.problems():
        raise ConfigError(f"rl.global_n_slots gives each process {own} of a level: {problem}")
    return rl


def count_processes(section: TrainerSection) -> int:
    """Return the number of processes that a section trainer requests.

    Raises a `ConfigError` if it requests devices that do not exist.
    """
    shared = {"accelerator", "devices", "num_nodes", "strategy", "precision"}
    settings = section.model_dump(include=shared)
    if section.strategy == "fsdp2":  # same number of processes
        settings |= {"strategy": "ddp", "precision": "32-true"}
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return _lightning_trainer(**settings, **quiet).world_size


def processes_of(section: TrainerSection) -> tuple[int, str]:
    """Return the number of processes, and why they cannot run on this machine, if so."""
    try:
        return count_processes(section), ""
    except ConfigError as error:
        devices = section.devices
        own = len(devices) if isinstance(devices, list) else devices
        own = own if isinstance(own, int) and own > 0 else 1
        return section.num_nodes * own, str(error)


def _share(setting: str, total: int, n_processes: int) -> int:
    """Return the share of each process; raises a `ConfigError` if it is not a whole number."""
    own, rest = divmod(total, n_processes)
    if rest or not own:
        near = [parts * n_processes for parts in (own, own + 1) if parts]
        raise ConfigError(
            f"{setting} ({total}) must be a multiple of {n_processes}, the number of "
            "processes (trainer.devices on each of trainer.num_nodes machines); use "
            f"{' or '.join(map(str, near))}, or other devices"
        )
    return own


def _lightning_trainer(**settings: Any) -> Trainer:
    refusals = ValueError, TypeError, ImportError, RuntimeError, MisconfigurationException
    with raised_as(ConfigError, "section trainer", *refusals):
        return Trainer(**settings, enable_model_summary=False)


def _annealing(router: Router) -> list[Callback]:
    last = getattr(router, "final_temperature", None)
    if last is None or isinstance(router, PluginSection):
        return []
    return [TemperatureAnnealing(router.temperature, last)]


def _callbacks(config: Config, folder: RunFolder, built: Built) -> list[Callback]:
    callbacks: list[Callback] = [TrainingProgress()]
    mixes = isinstance(config.aggregation, Mixture) and not built.model.router.weighs_tokens
    if built.attachment.groups and mixes:  # a trained router of tasks
        callbacks.append(RoutingMonitor(folder.plots, built.attachment.groups, built.tasks))
    callbacks += _annealing(config.router)
    if config.moe is not None:
        layers = tuple(built.model.token_layers())
        callbacks.append(TokenMonitor(folder.plots, layers, config.trainer.log_every_n_steps))
        if config.moe.balance.bias:
            callbacks.append(BiasBalancing())
        if config.moe.parallel:
            callbacks.append(ExpertSharing())
    if config.data.validation != "none":
        # Directly after a validation, so that its state is saved next.
        best = SaveBest(folder.best)
        if config.optim.separate:
            best = SaveTaskBest(folder.best, built.tasks)
        callbacks.append(best)
        if (patience := config.trainer.early_stopping) is not None:
            stop = EarlyStopping(
                "val/score", mode="max", patience=patience, check_on_train_epoch_end=False
            )
            callbacks.append(stop)
    # Last, so that they save the state of all others.
    last = SaveLast(folder.last)
    return [*callbacks, last, GracefulStop(last)]
