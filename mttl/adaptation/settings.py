"""From a configuration to the settings of adaptation, and small changes to one."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from mttl.adaptation.job import FewShotSettings
from mttl.build.model import build_optimization
from mttl.config.explain import explain
from mttl.config.schema import Config
from mttl.config.tree import Tree, merge, nested
from mttl.errors import ConfigError
from mttl.training.precision import PRECISIONS


def few_shot_settings(config: Config, form: Mapping[str, Any]) -> FewShotSettings:
    """Return the settings of adaptation jobs.

    Args:
        config: Its sections data, generation, optim and adapt are read, and the precision.
        form: How rows become text.

    Raises:
        ConfigError: If the weights would be in half precision.
    """
    settings, precision = config.adapt, config.trainer.precision
    if precision not in PRECISIONS:
        raise ConfigError(
            f"trainer.precision ({precision}) is not for adaptation, whose steps are too small for "
            f"weights in half precision; set one of {', '.join(PRECISIONS)} with "
            "-k trainer.precision=…"
        )
    return FewShotSettings(
        mode=settings.mode,
        init=settings.init,
        optimization=replace(
            build_optimization(config.optim),
            lr=settings.lr,
            router_lr=settings.router_lr,
            backbone_lr=settings.lr,
            token_router_lr=settings.lr,
            weight_decay=settings.weight_decay,
            schedule="linear",
            warmup=settings.warmup,
        ),
        label_smoothing=config.optim.label_smoothing,
        max_steps=settings.max_steps,
        eval_every=settings.eval_every,
        batch_size=settings.batch_size,
        eval_batch_size=config.data.eval_batch_size,
        gradient_clip_val=settings.gradient_clip_val,
        num_beams=config.generation.num_beams,
        length_penalty=config.generation.length_penalty,
        precision=precision,
        max_rows=config.data.max_rows,
        max_eval_rows=config.data.max_eval_rows,
        form=form,
    )


def with_settings(config: Config, values: Mapping[str, Any]) -> Config:
    """Return a configuration with some values changed.

    Args:
        config: Stays as it is.
        values: By dotted name: ``{"adapt.lr": 1e-3}``.

    Raises:
        ConfigError: If a name is unknown or a value not allowed; the message says what is.
    """
    tree: Tree = config.model_dump(mode="json")
    for name, value in values.items():
        tree = merge(tree, nested(name, value), "", {})
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(explain(error, tree, {}, Config)) from None
