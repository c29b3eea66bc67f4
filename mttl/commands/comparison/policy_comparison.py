"""Comparison of methods that train policies for BabyAI's levels."""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from mttl.commands.comparison.comparison_folder import OWN_SETTINGS, MethodComparison
from mttl.commands.comparison.methods import AdaptationVariant, Plan
from mttl.commands.comparison.tables import TaskScore
from mttl.commands.name_checks import check_levels
from mttl.config.babyai_schema import BabyAIConfig, PolicyAdapt
from mttl.config.load import load_any_config
from mttl.config.section import Section
from mttl.io.errors import ConfigError


class PolicyComparison(MethodComparison):
    """A comparison whose tasks are levels; steps are rollouts, or passes over demonstrations."""

    unit: ClassVar[str] = "rollouts"
    adapt: ClassVar[type[Section]] = PolicyAdapt
    own_settings: ClassVar[Mapping[str, str]] = {
        **OWN_SETTINGS,
        "trainer.max_epochs": " (--steps)",
        "adapt.n_updates": " (--adapt-steps)",
    }

    def training(self, item: Plan) -> list[str]:
        """Return the settings of one training."""
        settings = *self.overrides, *self.methods[item.name].settings
        return [*self.place(item), f"trainer.max_epochs={self.steps}", *settings]

    def adaptation(self, item: Plan, variant: AdaptationVariant) -> list[str]:
        """Return the settings of one adaptation."""
        budget = f"adapt.seeds=[{item.seed}]", f"adapt.n_updates={self.adapt_steps}"
        return [*budget, *self.of_adaptation(self.overrides, item, variant)]

    def check(self, plans: list[Plan]) -> None:
        """Check all settings and levels before the first training begins."""
        self.check_overrides()
        if problem := next(self._problems(plans), None):
            raise ConfigError(problem)

    def _problems(self, plans: list[Plan]) -> Iterator[str]:
        of_text = {"--samples": self.samples, "--examples": self.examples, "--folds": self.n_folds}
        for option, given in {**of_text, "--unseen-only": self.unseen_only or None}.items():
            if given is not None:
                yield f"{option} is only for text-to-text tasks; leave it out"
        for item in {item.name: item for item in plans}.values():
            config = load_any_config(self.files(item), self.training(item))
            assert isinstance(config, BabyAIConfig)
            seen = check_levels(config.rl.levels, "rl.levels")
            levels, where = self.tasks.split(","), "--tasks"
            if self.tasks in ("test", "dev"):
                levels, where = config.adapt.levels, "adapt.levels"
            unseen = check_levels(levels, where)
            if not unseen:
                yield "adapt.levels is empty: name new levels there, or by --tasks"
            if both := [level for level in unseen if level in seen]:
                yield f"{', '.join(both)} is trained on: name new levels by --tasks or adapt.levels"
            for variant in item.variants:
                load_any_config(self.adapt_files(item), self.adaptation(item, variant))

    def check_scored_rows(self, scores: Sequence[TaskScore]) -> None:
        """Check nothing: the episodes of a level follow from its name and `rl.evaluation`."""
