"""A comparison in which every method is adapted with the learning rates that suit it best.

They are searched on development tasks, which are neither trained nor unseen.
"""

import json
import random
from collections import Counter
from functools import cached_property

from mttl.commands.comparison.comparison_folder import FOLD_SEED, MethodComparison
from mttl.commands.comparison.methods import AdaptationVariant, Plan
from mttl.config.load import load_config
from mttl.io import yaml12
from mttl.io.errors import ConfigError, MttlError
from mttl.io.reading import read_text
from mttl.tasks.partition import Partition, select_tasks

# Factors on the configured rates; the first is taken if others are not better.
FACTORS = (1.0, 0.3, 3.0)
N_DEV = 4  # development tasks of a fold


class SearchedRates(MethodComparison):
    """A comparison with a search for the rates of every adaptation variant that trains."""

    @cached_property
    def partitions(self) -> list[Partition]:
        """The partitions; with folds, each sets tasks of the following fold aside."""
        found = super().partitions
        if self.n_folds is None:
            return found
        rng, folds = random.Random(FOLD_SEED), [own.test for own in found]
        made = []
        for number, own in enumerate(found):
            following = folds[(number + 1) % len(folds)]
            if len(following) < N_DEV or len(own.train) <= N_DEV:
                raise ConfigError(
                    f"{N_DEV} development tasks cannot be set aside from a fold of "
                    f"{len(following)} tasks; take fewer folds"
                )
            dev = rng.sample(list(following), N_DEV)
            train = tuple(task for task in own.train if task not in dev)
            made.append(own.model_copy(update={"train": train, "dev": tuple(dev)}))
        return made

    def check(self, plans: list[Plan]) -> None:
        """Check that everything can run, and that there are development tasks."""
        super().check(plans)
        dev = [task for own in self.partitions for task in own.dev]
        if not dev:
            partition = self.common.data.partition
            raise ConfigError(f"rates: search needs development tasks; '{partition}' has none")
        select_tasks(dev, self.gym, self.common.data.skip_missing)

    def shared_settings(self) -> dict[str, object]:
        """Return what all runs share."""
        return {**super().shared_settings(), "search_rates": True}

    def stages(self, variant: AdaptationVariant) -> list[str]:
        """Return the names of the stages of an adaptation variant."""
        trains = "adapt.mode=zero_shot" not in variant.settings
        return [*([f"search-{variant.name}"] if trains else []), *super().stages(variant)]

    def command(self, item: Plan, variant: AdaptationVariant | None, stage: str) -> list[str]:
        """Return the command of a stage of adaptation, or of training without a variant."""
        if variant is None:
            return super().command(item, variant, stage)
        if stage.startswith("adapt-"):
            return [*super().command(item, variant, stage), *self.rates(item, variant)]
        run, given, files = (
            self.run_folder(item),
            self.adaptation(item, variant),
            self.adapt_files(item),
        )
        config = load_config(files, given)
        adapt = config.adapt
        points = [
            {
                "adapt.lr": float(f"{factor * adapt.lr:.3g}"),
                "adapt.router_lr": float(f"{factor * (adapt.router_lr or adapt.lr):.3g}"),
            }
            for factor in FACTORS
        ]
        command = ["-m", "mttl", "search", "-c", files, "--from", str(run), "--tasks", "dev"]
        command += ["--samples", str(config.data.samples[0]), "--out", str(run / stage)]
        return [*command, "-k", *given, f"search.points={json.dumps(points)}"]

    def rates(self, item: Plan, variant: AdaptationVariant) -> list[str]:
        """Return the settings that the search of an adaptation variant has found."""
        if f"search-{variant.name}" not in self.stages(variant):
            return []
        path = self.run_folder(item) / f"search-{variant.name}" / "best.yaml"
        found = yaml12.parse(read_text(path, MttlError))["adapt"]
        return [f"adapt.{name}={float(found[name])}" for name in ("lr", "router_lr")]

    def note(self, plans: list[Plan]) -> str:
        """Return the rates of skills and router that were chosen, with how often."""
        found: dict[str, Counter[str]] = {}
        for item in plans:
            for variant in item.variants:
                if self.cost(item, f"adapt-{variant.name}").ended:
                    rates = self.rates(item, variant)
                    text = " / ".join(f"{float(rate.partition('=')[2]):g}" for rate in rates)
                    found.setdefault(f"{item.name}: {variant.name}", Counter())[text or "none"] += 1
        named = "; ".join(
            f"`{name}` " + ", ".join(f"{text} ({n})" for text, n in counts.most_common())
            for name, counts in found.items()
        )
        return (
            " Each method was adapted with its best rates of skills and router: the configured "
            f"ones times {', '.join(f'{x:g}' for x in FACTORS)}, by the development rows of "
            f"development tasks. Chosen rates, with the number of trainings: {named}."
        )
