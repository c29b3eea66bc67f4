"""Settings of custom classes come from their signatures."""

import sys
from pathlib import Path

import pytest

from mttl.config.load import dump_config, load_config
from mttl.config.plugin_section import LEAVE, PluginSection
from mttl.io.errors import ConfigError

ROUTER = """
from typing import Literal
from torch import nn
from mttl.routing.task.fixed import FixedRouter
from mttl.training.loss import TokenLoss
from mttl.metrics.crossfit import TextMetric
from pytorch_lightning import Callback

class MyRouter(FixedRouter):
    def __init__(self, n_groups: int, n_tasks: int, n_heads: int, n_skills: int, *,
                 strength: float, mode: Literal["near", "far"] = "near", sizes: list[int] = [1],
                 label=None, share=0.5, **rest):
        self.given = strength, mode, sizes, label, share

class Typed(FixedRouter):
    def __init__(self, n_groups: int, act: nn.Module = None): ...

class Clash(FixedRouter):
    def __init__(self, granularity: int = 1): ...

class Unknown(FixedRouter):
    def __init__(self, size: "Nothing" = 1): ...

class MyLoss(TokenLoss):
    def __init__(self, power: float = 2.0): ...
    def forward(self, logits, labels): ...

class MyCallback(Callback):
    def __init__(self, every: int = 5):
        self.every = every

class MyMetric(TextMetric):
    def row(self, prediction, accepted): ...
    def score(self, rows): ...
"""


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "mine_parts.py").write_text(ROUTER)
    yield
    sys.modules.pop("mine_parts", None)


def load(text: str, **more):
    Path("mine.yaml").write_text(text)
    return load_config("crossfit.yaml+mine.yaml", **more)


LOSS, CALLBACK = "loss: {kind: 'mine_parts:MyLoss'}", "{kind: 'mine_parts:MyCallback', ever: 1}"
GIVEN = "router: {kind: 'mine_parts:MyRouter', strength: 2, mode: far, granularity: layer}\n"


def test_settings_have_types_and_defaults() -> None:
    config = load(GIVEN)
    router = config.router
    assert isinstance(router, PluginSection)
    assert router.model_dump() == {
        **{"granularity": "layer", "kind": "mine_parts:MyRouter", "strength": 2.0, "mode": "far"},
        **{"sizes": [1], "label": None, "share": 0.5},
    }
    made = router.make(n_groups=1, n_tasks=1, n_heads=1, n_skills=1)
    assert made.given == (2.0, "far", [1], None, 0.5)
    Path("again.yaml").write_text(dump_config(config))
    assert load_config("again.yaml") == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GIVEN.replace("mode", "mod"), r"e\.yaml: router\.mod: section 'router' has no setting"),
        (GIVEN.replace("far", "fra"), r"router\.mode: 'fra' must be one of near, far"),
        (GIVEN.replace("strength: 2,", ""), "router.strength: is missing; it is required"),
        (GIVEN.replace(": 2", ": high"), r"router\.strength: 'high' must be a number"),
        (GIVEN.replace("layer", "x"), r"router\.granularity: 'x' must be one of model"),
        ("router: {kind: polytropn}", r"Did you mean 'polytropon' or 'c_poly'\? A custom class is"),
        ("router: {kind: 'mine_parts:Typed'}", "'act' has the type Module, which a config"),
        ("router: {kind: 'mine_parts:Clash'}", "': rename its argument 'granularity'; the name is"),
        ("router: {kind: 'mine_parts:Unknown'}", "the types of its arguments: .*Nothing"),
        ("skills: {kind: 'mine_parts:MyRouter'}", "a kind of skill must be a subclass"),
        ("loss: {kind: mse}", "loss: 'mse' must be a loss as module:Class"),
        ("loss: {kind: 3}", r"loss: kind \(3\) must be the name of a loss"),
        ("loss: {}", "loss.kind: is missing; it is required"),
        ("loss: {kind: 'mine_parts:MyLoss', powr: 1}", "loss.powr: .*Did you mean 'power'"),
        (f"{LOSS}\noptim: {{label_smoothing: 0.1}}", "label_smoothing must be 0 with a custom"),
        (f"trainer: {{callbacks: [{CALLBACK}]}}", r"callbacks\.0\.ever: .* Did you mean 'every'"),
        ("data: {metrics: {verb_past: 'mine_parts:MyLoss'}}", "; a metric must be a subclass of "),
    ],
)
def test_mistakes_are_answered(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(text)


def test_all_families_are_read() -> None:
    config = load(
        "loss: {kind: 'mine_parts:MyLoss', power: 3}\n"
        "data: {metrics: {verb_past: 'mine_parts:MyMetric'}}\n"
        "trainer: {callbacks: [{kind: 'mine_parts:MyCallback'}]}\n"
    )
    assert config.loss is not None
    assert config.loss.power == 3.0
    assert config.trainer.callbacks[0].make().every == 5
    Path("again.yaml").write_text(dump_config(config))
    assert load_config("again.yaml") == config
    assert "loss" not in dump_config(load(GIVEN)).split()  # older runs resume


def test_a_file_of_a_run_is_read_without_its_code() -> None:
    with pytest.raises(ConfigError, match="' is code named by a saved file, which is not run"):
        load(GIVEN, plugins=None)
    config = load(GIVEN + "data: {metrics: {a: 'mine_parts:MyMetric'}}", plugins=LEAVE)
    assert config.router.kind == "mine_parts:MyRouter"
    assert "mine_parts" not in sys.modules
    load(GIVEN)
    assert load(GIVEN, plugins=None).router.kind == "mine_parts:MyRouter"  # imported by now
