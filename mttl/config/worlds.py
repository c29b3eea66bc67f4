"""Worlds (kinds of tasks) with their schemas and commands; a new world adds an entry here."""

import pkgutil
from collections.abc import Mapping
from typing import Any, NamedTuple

from mttl.config.babyai_schema import BabyAIConfig
from mttl.config.schema import Config
from mttl.config.section import Section


class World(NamedTuple):
    """Title, schema, identifying section, default configuration and commands of a world."""

    title: str
    schema: type[Section]
    section: str
    whole: str
    commands: Mapping[str, str]

    def run(self, command: str, config: Section, *given: Any, **options: Any) -> None:
        """Import and run a command."""
        pkgutil.resolve_name(self.commands[command])(config, *given, **options)


POLICY_COMMANDS = {
    "training": "mttl.babyai.train:train_babyai",
    "dry run": "mttl.commands.dry_run_policies:dry_run",
    "adaptation": "mttl.babyai.new_levels:adapt_run",
    "search": "mttl.adaptation.search:search_run",
}
TEXT_COMMANDS = {
    "training": "mttl.commands.train_tasks:train",
    "dry run": "mttl.commands.dry_run:dry_run",
    "adaptation": "mttl.commands.adapt:adapt_run",
    "search": "mttl.adaptation.search:search_run",
}
WORLDS = (
    World("a policy for BabyAI", BabyAIConfig, "rl", "babyai.yaml", POLICY_COMMANDS),
    World("a model for text-to-text tasks", Config, "data", "crossfit.yaml", TEXT_COMMANDS),
)


def world_of(config: Section) -> World:
    """Return the world of a configuration."""
    return next(world for world in WORLDS if isinstance(config, world.schema))
