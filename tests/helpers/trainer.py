"""A trainer that says and writes nothing."""

from typing import Any

import pytorch_lightning as pl


def quiet_trainer(**settings: Any) -> pl.Trainer:
    """Return a trainer on the CPU, without a logger, a bar, a summary and checkpoints."""
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    return pl.Trainer(
        **{"accelerator": "cpu", "devices": 1, **dict.fromkeys(off, False)} | settings
    )
