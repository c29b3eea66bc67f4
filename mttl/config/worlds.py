"""The worlds that inventories are trained in. Another world is a folder, and an entry here."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mttl.config.babyai_schema import BabyAIConfig
from mttl.config.schema import Config
from mttl.config.section import Section
from mttl.io.errors import ConfigError


@dataclass(frozen=True)
class World:
    """What the commands need of a world."""

    title: str
    schema: type[Section]
    section: str
    whole: str
    commands: Mapping[str, str]

    def run(self, command: str, config: Section, /, **options: Any) -> None:
        """Import a command and run it.

        Raises:
            ConfigError: If the world has no such command.
        """
        if command not in self.commands:
            raise ConfigError(f"{self.title} has no {command}, only {', '.join(self.commands)}")
        module, _, function = self.commands[command].rpartition(".")
        getattr(importlib.import_module(module), function)(config, **options)


WORLDS = (
    World(
        "a policy for BabyAI",
        BabyAIConfig,
        "rl",
        "babyai.yaml",
        {
            "training": "mttl.babyai.train.train_babyai",
            "adaptation": "mttl.babyai.new_levels.adapt_run",
        },
    ),
    World(
        "a model for text-to-text tasks",
        Config,
        "data",
        "crossfit.yaml",
        {
            "training": "mttl.commands.train_tasks.train",
            "adaptation": "mttl.commands.adapt.adapt_run",
            "search": "mttl.adaptation.search_settings.search_run",
        },
    ),
)


def world_of(config: Section) -> World:
    """Return the world of a configuration."""
    return next(world for world in WORLDS if isinstance(config, world.schema))
