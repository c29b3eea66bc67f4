"""Run a study from its settings file, and keep its scores, table and figure next to it.

python scripts/studies/run.py scripts/studies/unseen_tasks/lexical_default.yaml --out ../lexical
python scripts/studies/run.py STUDY.yaml --out DIR --only-folds 1

Trainings and adaptations go to OUT; what has ended is read, and what was interrupted continues.
Next to NAME.yaml stand NAME.csv, NAME.md and NAME.svg, written again whenever a training has ended.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from methods import ALL
from pydantic import Field, PositiveInt, ValidationError
from searched_rates import SearchedRates

from mttl.commands.comparison.comparison_folder import MethodComparison, carry_out
from mttl.commands.comparison.methods import (
    MODE_VARIANTS,
    AdaptationVariant,
    Method,
    Plan,
    plan,
)
from mttl.commands.comparison.policy_comparison import PolicyComparison
from mttl.commands.comparison.result_tables import write_tables
from mttl.config.babyai_schema import BabyAIConfig
from mttl.config.load import load_any_config
from mttl.config.section import Section, Seeds
from mttl.io.errors import ConfigError
from mttl.io.files import write_text
from mttl.io.yaml12 import read_yaml
from mttl.runtime.command import exit_with, make_console

S = TypeVar("S", bound=Section)


class StudyMethod(Section):
    """A method of a study: a shipped one or a file, with further settings."""

    file: str | None = None
    """Configuration file merged onto the common one; by default that of the shipped method."""
    training: list[str] = []
    """Overrides of training."""
    adaptation: list[str] = []
    """Overrides of adaptation."""

    def method(self, name: str) -> Method:
        """Return the method that is compared.

        Raises:
            ConfigError: If the file is missing and no shipped method has this name.
        """
        if self.file is None and name not in ALL:
            raise ConfigError(
                f"'{name}' is not a built-in method: set methods.{name}.file to a configuration"
            )
        base = ALL[name] if self.file is None else Method(self.file, variants=MODE_VARIANTS)
        return replace(
            base,
            settings=(*base.settings, *self.training),
            adapt_settings=(*base.adapt_settings, *self.adaptation),
            adapts_by_fragment=self.file is not None,
        )


class Study(Section):
    """The settings file of a study."""

    question: str
    """What the study answers."""
    config: str = "crossfit.yaml"
    """Common configuration."""
    methods: Annotated[dict[str, StudyMethod], Field(min_length=1)]
    """What is compared, by name."""
    reference: str
    """The method that the others are compared with."""
    modes: list[str] = []
    """Further adaptation variants."""
    curve: list[int] = []
    """Numbers of training rows: every adaptation variant is repeated with each."""
    seeds: Seeds = [13, 14, 15]
    """Seeds of training and adaptation."""
    folds: PositiveInt | None = None
    """Folds in which every task is unseen once; by default the partition as it is."""
    tasks: str = "test"
    """Unseen tasks, where there are no folds."""
    samples: str | None = None
    """Few-shot samples of every unseen task, joined by commas."""
    examples: PositiveInt | None = None
    """Training rows of every unseen task."""
    steps: PositiveInt = 500
    """Optimizer steps of every training; rollouts of policies."""
    adapt_steps: PositiveInt = 60
    """Optimizer steps of every adaptation; rollouts of policies."""
    score_seen: bool = True
    """Score the trained tasks, too."""
    settings: list[str] = []
    """Overrides of all runs."""
    rates: Literal["fixed", "search"] = "fixed"
    """Adapt with the configured learning rates, or with the best on development tasks."""


def read_settings(path: Path, kind: type[S]) -> S:
    """Return the settings of a file; a `ConfigError` if it is missing or they are wrong."""
    try:
        return kind.model_validate(read_yaml(path, ConfigError))
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise ConfigError(f"'{path}': {wrong}") from error


def read_study(path: Path) -> Study:
    """Return the study of a settings file.

    Raises:
        ConfigError: If the file is missing or its settings are wrong.
    """
    study = read_settings(path, Study)
    if study.reference not in study.methods:
        names = ", ".join(study.methods)
        raise ConfigError(f"'{path}': reference ('{study.reference}') must be one of {names}")
    return study


def prepare(
    study: Study, out: Path, only_folds: list[int] | None
) -> tuple[MethodComparison, list[Plan]]:
    """Return the comparison of a study, and its trainings."""
    methods = {name: given.method(name) for name, given in study.methods.items()}
    if study.curve:
        for name, method in methods.items():
            kept = [variant for variant in method.variants if variant.name in ("all", *study.modes)]
            variants = tuple(
                AdaptationVariant(f"{variant.name}-{n}", (*variant.settings, f"adapt.examples={n}"))
                for variant in kept
                for n in study.curve
            )
            methods[name] = replace(method, variants=variants)
        study = study.model_copy(
            update={"modes": [f"{m}-{n}" for m in ("all", *study.modes) for n in study.curve]}
        )
    kind = SearchedRates if study.rates == "search" else MethodComparison
    if isinstance(load_any_config(study.config, as_written=True), BabyAIConfig):
        if study.rates == "search":
            raise ConfigError("rates ('search') must be fixed for policies")
        kind = PolicyComparison
    comparison = kind(
        out=out,
        config=study.config,
        steps=study.steps,
        adapt_steps=study.adapt_steps,
        tasks=study.tasks,
        samples=study.samples,
        overrides=tuple(study.settings),
        examples=study.examples,
        n_folds=study.folds,
        unseen_only=not study.score_seen,
        methods=methods,
        reference=study.reference,
    )
    folds = (0,) if study.folds is None else range(1, study.folds + 1)
    if only_folds and (wrong := sorted(set(only_folds) - set(folds))):
        raise ConfigError(f"--only-folds {wrong[0]} must be one of the study's {study.folds} folds")
    folds = only_folds or folds
    return comparison, plan(list(methods), study.modes, study.seeds, folds, methods)


def main(arguments: list[str] | None = None) -> int:
    """Run what is missing, and write the results next to the settings."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", type=Path, metavar="FILE", help="settings of the study")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the runs")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="trainings at a time")
    parser.add_argument("--only-folds", type=int, nargs="+", metavar="N", help="of these folds")
    options = parser.parse_args(arguments)
    comparison, plans = prepare(read_study(options.study), options.out, options.only_folds)

    def write() -> str:
        text = write_tables(comparison, plans)
        for made, suffix in (
            ("scores.csv", ".csv"),
            ("table.md", ".md"),
            ("comparison.svg", ".svg"),
        ):
            if (comparison.out / made).is_file():
                text_of = (comparison.out / made).read_text(encoding="utf-8")
                write_text(options.study.with_suffix(suffix), text_of)
        return text

    text = carry_out(comparison, plans, options.workers, write)
    make_console().print(text, markup=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    exit_with(main)
