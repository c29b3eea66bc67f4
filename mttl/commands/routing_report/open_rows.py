"""A trained run with the rows of its tasks."""

from pathlib import Path
from typing import Any

from mttl.assembly.model import load_run
from mttl.config.load import load_any_config
from mttl.config.plugin_section import LEAVE
from mttl.config.schema import Config
from mttl.data.chosen_tasks import open_gym
from mttl.data.data_module import TextToTextDataModule
from mttl.io.errors import CheckpointError
from mttl.models.backbone import is_decoder_only
from mttl.runtime.gpus import device_of
from mttl.training.text_to_text import TextToTextModule


def text_config(run: Path, advice: str) -> Config:
    """Return the configuration of a training on text."""
    path = run / "config.yaml"
    config = load_any_config([str(path)], plugins=LEAVE) if path.is_file() else None
    if not isinstance(config, Config):
        raise CheckpointError(
            f"'{run}' has no config.yaml of a training on text, so its rows are not known: {advice}"
        )
    return config


def open_rows(
    run: Path, option: str, **settings: Any
) -> tuple[TextToTextModule, TextToTextDataModule]:
    """Return the model of a run, in evaluation mode, and the rows of its tasks."""
    config = text_config(run, f"leave {option} out")
    built = load_run(run)
    module = TextToTextModule(built.model, built.tokenizer, dict.fromkeys(built.tasks, "EM"))
    data = TextToTextDataModule(
        *(open_gym(config), list(built.tasks), built.tokenizer),
        config.data.model_copy(update={"cache_dir": None} | settings),
        decoder_only=is_decoder_only(built.model.backbone),
        seed=0,
    )
    return module.to(device_of()).eval(), data
