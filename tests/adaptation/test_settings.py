"""The settings of adaptation that a configuration describes."""

import re

import pytest

from mttl.adaptation.job import job_config, with_settings
from mttl.config.load import load_config
from mttl.io.errors import ConfigError


def test_rates_come_from_adapt_and_the_optimizer_from_optim() -> None:
    config = load_config("crossfit.yaml", ["adapt.lr=3e-3", "optim.label_smoothing=0.1"])
    settings = job_config(config, {"prefix": "none"})
    assert (settings.optim.lr, settings.optim.backbone_lr, settings.optim.router_lr) == (
        3e-3,
        3e-3,
        0.1,
    )
    assert settings.optim.betas == [0.9, 0.98]
    assert settings.optim.label_smoothing == 0.1
    assert settings.data.prefix == "none"


def test_settings_change_by_name() -> None:
    config = load_config("crossfit.yaml")
    changed = with_settings(config, {"adapt.lr": 0.5, "data.dir": "elsewhere"})
    assert (changed.adapt.lr, changed.data.dir) == (0.5, "elsewhere")
    assert config.adapt.lr != 0.5
    assert with_settings(config, {}) == config


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"adapt.rl": 1}, "adapt.rl: section 'adapt' has no 'rl'. Did you mean 'lr'"),
        ({"adapt.lr": "fast"}, "adapt.lr: 'fast' must be a number"),
        ({"adapt.seeds": [13, 14, 13]}, "adapt.seeds: [13, 14, 13] must name each only once"),
    ],
)
def test_mistakes_are_answered(values: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        with_settings(load_config("crossfit.yaml"), values)


def test_the_precision_is_that_of_the_trainer_and_half_weights_are_refused() -> None:
    config = with_settings(load_config("crossfit.yaml"), {"trainer.precision": "bf16-mixed"})
    assert job_config(config, {}).trainer.precision == "bf16-mixed"
    half = with_settings(config, {"trainer.precision": "bf16-true"})
    with pytest.raises(ConfigError, match=r"trainer.precision \(bf16-true\) is not for adaptation"):
        job_config(half, {})
