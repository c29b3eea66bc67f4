from typing import ClassVar

import pytest
from pydantic import Field

from mttl.config.capabilities import missing_features, require_features
from mttl.config.load import load_config
from mttl.config.section import Section
from mttl.io.errors import CheckpointError, ConfigError
from mttl.routing import PolytroponRouter


class Part(Section):
    kind: str = "one"
    size: int = 2
    form: str = "none"
    on: bool = True
    lacks: ClassVar = {
        "always": "never",
        "sized": ("size > 1", "too large"),
        "formed": ("form", "no form"),
        "both": ("on and not form", "on its own"),
        "named": ("form != none", "a name"),
    }


class Derived(Part):
    lacks: ClassVar = {"always": ("form = x", "because of x")}


class Whole(Section):
    part: Part
    parts: list[Part] = Field(default_factory=list)


@pytest.mark.parametrize(
    ("part", "feature", "message"),
    [
        (Part(), "always", "part.kind 'one': never"),
        (Part(), "sized", "part.size (2): too large"),
        (Part(size=1), "sized", None),
        (Part(), "formed", None),
        (Part(form="x"), "formed", "part.form (x): no form"),
        (Part(), "both", "part.on (true): on its own"),
        (Part(on=False), "both", None),
        (Part(form="x"), "named", "part.form (x): a name"),
        (Derived(), "always", None),
        (Derived(form="x"), "always", "part.form (x): because of x"),
        (Derived(), "sized", "part.size (2): too large"),
        (Part(), "unknown", None),
    ],
)
def test_a_part_lacks_a_feature(part: Part, feature: str, message: str | None) -> None:
    found = missing_features(Whole(part=part), {feature: "it"})
    assert found == ([f"it does not work with {message}"] if message else [])


def test_all_parts_are_reported_at_once() -> None:
    whole = Whole(part=Part(), parts=[Part(size=1), Derived()])
    message = "a does not.*kind 'one': never\na .*parts.kind.*\nb .*part.size.*\nb .*parts.size"
    with pytest.raises(CheckpointError, match=message):
        require_features(whole, {"always": "a", "sized": "b"})


class OneTextRouter(PolytroponRouter):
    lacks: ClassVar = {"packs": "it reads one text"}


def test_a_custom_class_may_lack_features() -> None:
    kind = f"router.kind={__name__}:OneTextRouter"
    with pytest.raises(ConfigError, match=r"data.packed_length \(2048\) .* it reads one text"):
        load_config("crossfit.yaml", [kind, "data.packed_length=2048"])
