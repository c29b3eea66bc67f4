"""Where the time of a BabyAI training goes: environments, policy, optimisation, Lightning.

    python scripts/benchmarks/babyai_loop.py [-c babyai.yaml] [--rollouts 8] [--json FILE]

The training of the configuration runs for some rollouts after one that is not counted. Times are
wall-clock; "environments" is all that happens in their step, "policy" the rest of playing a
rollout, "optimisation" forward, backward and the optimizer's step on minibatches, "loop" what
Lightning and the callbacks add. The floor is the whole.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from rich.console import Console
from rich.table import Table

from envs.errors import LevelError
from envs.interface import check_levels
from mttl.babyai.build_policy import build_policies
from mttl.babyai.rollouts import RolloutDataModule
from mttl.babyai.train import learning_of
from mttl.command import add_overrides, positive
from mttl.config.babyai_schema import BabyAIConfig
from mttl.config.load import load_any_config
from mttl.errors import ConfigError, MttlError

PARTS = ("whole", "environments", "policy", "optimisation", "loop")


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


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description="Where the time of a BabyAI training goes.")
    parser.add_argument("-c", "--config", default="babyai.yaml", help="(%(default)s)")
    add_overrides(parser, "settings that override the file")
    parser.add_argument("--rollouts", type=positive, default=8, help="(%(default)s)")
    parser.add_argument("--threads", type=positive, default=1, help="of PyTorch (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    settings = parser.parse_args(argv)
    torch.set_num_threads(settings.threads)
    try:
        config = load_any_config(settings.config, settings.override)
        if not isinstance(config, BabyAIConfig):
            raise ConfigError(f"'{settings.config}' has no section rl")
        watch, n_frames = measure(config, settings.rollouts)
    except (MttlError, LevelError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    rows = summarise(watch.rollouts[1:])
    report(rows, n_frames, config, settings)
    return 0


def measure(config: BabyAIConfig, n_rollouts: int) -> tuple[Stopwatch, int]:
    """Train for some rollouts, and one before them, and return their times and frames."""
    pl.seed_everything(config.run.seed, verbose=False)
    rl, watch = config.rl, Stopwatch()
    levels = check_levels(rl.levels)
    learning = learning_of(config, build_policies(config, levels), levels)
    with tempfile.TemporaryDirectory() as folder, learning.open_data(0) as data:
        if not isinstance(data, RolloutDataModule):
            raise ConfigError("rl.demonstrations must not be set: there are no rollouts to measure")
        collector = data.loader.collector
        environments = collector.environments
        environments.step = watch.timed("environments", environments.step)  # type: ignore
        collector.play = watch.timed("playing", collector.play)  # type: ignore[method-assign]
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
        trainer.fit(learning.module, datamodule=data)
    return watch, rl.ppo.n_steps * rl.n_slots * len(levels)


def summarise(rollouts: list[dict[str, float]]) -> list[dict[str, Any]]:
    """Return a row per part: milliseconds of a rollout and their share of the whole."""
    times: dict[str, list[float]] = defaultdict(list)
    for row in rollouts:
        playing, environments = row["playing"], row["environments"]
        times["whole"].append(row["whole"])
        times["environments"].append(environments)
        times["policy"].append(playing - environments)
        times["optimisation"].append(row["optimisation"])
        times["loop"].append(row["whole"] - playing - row["optimisation"])
    whole = np.array(times["whole"])
    return [
        {
            "name": part,
            "median": 1000 * float(np.median(times[part])),
            "min": 1000 * min(times[part]),
            "max": 1000 * max(times[part]),
            "ratio": float(np.median(np.array(times[part]) / whole)),
        }
        for part in PARTS
    ]


def report(
    rows: list[dict[str, Any]], n_frames: int, config: BabyAIConfig, settings: argparse.Namespace
) -> None:
    """Print the table, and write it where ``--json`` says."""
    speed = 1000 * n_frames / rows[0]["median"]
    table = Table(title=f"{settings.config}: {n_frames:,} frames a rollout, {speed:,.0f} a second")
    table.add_column("part")
    table.add_column("ms: min / median / max", justify="right")
    table.add_column("ratio to whole", justify="right")
    for row in rows:
        spread = f"{row['min']:.0f} / {row['median']:.0f} / {row['max']:.0f}"
        table.add_row(row["name"], spread, f"{row['ratio']:.3f}")
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    if settings.json:
        shown = {key: str(value) for key, value in vars(settings).items() if key != "json"}
        shown |= {"frames_per_second": speed, "backend": config.rl.backend, "unit": "ms"}
        text = json.dumps({"rows": rows, "settings": shown}, indent=2)
        settings.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
