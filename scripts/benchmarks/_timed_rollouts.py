"""A training of policies whose rollouts are timed, by part."""

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback

from envs.interface import check_levels
from mttl.babyai.build_policy import build_policies
from mttl.babyai.rollouts import RolloutLoader
from mttl.babyai.train import learning_of
from mttl.config.babyai_schema import BabyAIConfig
from mttl.io.errors import ConfigError


class Stopwatch:
    """Adds up the seconds of each rollout, by part."""

    def __init__(self) -> None:
        self.rollouts: list[dict[str, float]] = []

    def begin(self) -> None:
        """Begin the next rollout."""
        self.rollouts.append(defaultdict(float))

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that adds its time to a part."""

        def call(*given: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*given, **named)
            finally:
                self.rollouts[-1][part] += time.perf_counter() - start

        return call


class Clock(Callback):
    """Measures rollouts as a whole, and their optimisation."""

    def __init__(self, watch: Stopwatch) -> None:
        self.watch = watch

    def on_train_epoch_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Begin a rollout."""
        self.watch.begin()
        self._epoch = time.perf_counter()

    def on_train_batch_start(self, *given: Any) -> None:
        """Begin a minibatch."""
        self._batch = time.perf_counter()

    def on_train_batch_end(self, *given: Any) -> None:
        """End a minibatch."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.watch.rollouts[-1]["optimisation"] += time.perf_counter() - self._batch

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """End a rollout."""
        self.watch.rollouts[-1]["whole"] = time.perf_counter() - self._epoch


def measure(config: BabyAIConfig, n_rollouts: int) -> tuple[Stopwatch, int]:
    """Train for some rollouts, and one before them, and return their times and frames."""
    pl.seed_everything(config.run.seed, verbose=False)
    rl, watch = config.rl, Stopwatch()
    levels = check_levels(rl.levels)
    learning = learning_of(config, build_policies(config, levels), levels)
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            max_epochs=n_rollouts + 1,
            default_root_dir=folder,
            accelerator=config.trainer.accelerator,
            devices=1,
            precision=config.trainer.precision,
            gradient_clip_val=config.trainer.gradient_clip_val,
            callbacks=[Clock(watch), learning.monitor],
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=False,
            log_every_n_steps=1,
        )
        with learning.open_data(trainer) as data:
            if not isinstance(data.loader, RolloutLoader):
                raise ConfigError(
                    "rl.demonstrations must not be set: there are no rollouts to measure"
                )
            loader = data.loader
            environments = loader.environments
            environments.step = watch.timed("environments", environments.step)  # type: ignore
            loader.play = watch.timed("playing", loader.play)  # type: ignore[method-assign]
            trainer.fit(learning.module, datamodule=data)
    return watch, rl.ppo.n_steps * (rl.global_n_slots or rl.n_slots) * len(levels)
