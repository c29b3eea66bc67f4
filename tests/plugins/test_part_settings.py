"""Whoever calls the class of a part gets the bounds of its settings, too."""

import pytest

from mttl.routing import PolytroponRouter
from mttl.routing.token.top_k import TopKRouter
from mttl.skills.weights.lora import LoRAInventory

ROUTER, TOKENS, LORA = (
    (PolytroponRouter, (2, 3, 1, 4)),
    (TopKRouter, (4, 3)),
    (LoRAInventory, (4,) * 3),
)


@pytest.mark.parametrize(
    ("part", "settings", "message"),
    [
        (ROUTER, {"temperature": 0.0}, r"temperature \(0.0\) must be above 0"),
        (TOKENS, {"jitter": 1.0}, r"jitter \(1.0\) must be below 1"),
        (ROUTER, {"normalise": "max"}, "must be one of sum, average_correction"),
        (TOKENS, {"top_k": 0}, r"top_k \(0\) must be above 0"),
        (ROUTER, {"temperature": float("nan")}, r"temperature \(nan\) must be above 0"),
        (LORA, {"rank": 0}, r"rank \(0\) must be above 0"),
    ],
)
def test_a_constructor_refuses_what_a_configuration_does(part, settings, message) -> None:
    kind, sizes = part
    with pytest.raises(ValueError, match=message):
        kind(*sizes, **settings)
