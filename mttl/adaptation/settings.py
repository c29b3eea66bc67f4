"""From a configuration to the settings of adaptation, and small changes to one."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from mttl.config.config_errors import format_errors
from mttl.config.data_schema import Data
from mttl.config.load import Tree, with_value
from mttl.config.schema import Config
from mttl.io.errors import ConfigError
from mttl.training.precision import PRECISIONS


def job_config(config: Config, form: Mapping[str, Any]) -> Config:
    """Return the configuration of jobs: rates of the section adapt, the prompt form of training."""
    adapt, data, precision = config.adapt, config.data, config.trainer.precision
    if precision not in PRECISIONS:
        raise ConfigError(
            f"trainer.precision ({precision}) is not for adaptation, whose steps are too small for "
            f"weights in half precision; set one of {', '.join(PRECISIONS)} with "
            "-k trainer.precision=…"
        )
    rates = {"backbone_lr": adapt.lr, "token_router_lr": adapt.lr, "schedule": "linear"}
    rates |= adapt.model_dump(include={"lr", "router_lr", "up_lr_ratio", "weight_decay", "warmup"})
    sizes = {"eval_batch_size", "max_rows", "max_eval_rows", "dir", "tasks", "partition", "metrics"}
    rows = Data(**data.model_dump(include=sizes), batch_size=adapt.batch_size, **form)
    return config.model_copy(update={"optim": config.optim.model_copy(update=rates), "data": rows})


def with_settings(config: Config, values: Mapping[str, Any]) -> Config:
    """Return a configuration with some values changed."""
    tree: Tree = config.model_dump(mode="json")
    for name, value in values.items():
        tree = with_value(tree, name, value)
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(format_errors(error, tree, {}, Config)) from None
