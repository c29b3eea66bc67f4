"""Descriptions of parts come from their classes."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import pytest

from mttl.plugins.describe import SIGNATURES, collect, describe, to_data
from mttl.plugins.part_settings import OneOf, Positive, ReadFrom
from mttl.routing import PolytroponRouter, TopKRouter
from mttl.skills import LoRAInventory


def test_the_file_of_signatures_is_current() -> None:
    assert SIGNATURES.read_text(encoding="utf-8") == collect(), (
        "run `python -m mttl.plugins.describe`"
    )


@dataclass(frozen=True)
class Within:
    """A group.

    Args:
        share: Share of it.
    """

    share: float = 0.5


class Base:
    """A base.

    Args:
        size: Size of it.
        rate: Rate of it, over
            two lines.
        within: A group.
    """

    lacks: ClassVar = {"packs": "no", "shards": "no"}

    def __init__(
        self, size: int, *, rate: Positive = 1.0, within: Within = Within(), hidden: int = 1
    ) -> None: ...


class Part(Base):
    """A part: :math:`x`.

    Args:
        word: Either ``a`` or b.
        table: A table.
        **settings: Those of `Base`.
    """

    lacks: ClassVar = {"shards": ("rate > 2", "too fast")}
    internal = ("hidden",)

    def __init__(
        self,
        size: int,
        *,
        word: Annotated[str, OneOf("a", "b")] | None = None,
        table: Annotated[object, ReadFrom(list[str])],
        **settings: Any,
    ) -> None: ...


def test_a_class_is_described_with_its_bases() -> None:
    found = describe(Part, given=("size",))
    assert "default" not in found["settings"]["table"]
    assert to_data(found) == {
        "name": "Part",
        "sentence": "A part.",
        "settings": {
            "word": {
                "type": {"any": [{"one_of": ["a", "b"]}, {"type": "none"}]},
                "default": None,
                "sentence": "Either `a` or b.",
            },
            "table": {"type": {"list": {"type": "str"}}, "sentence": "A table."},
            "rate": {
                "type": {"type": "float", "gt": 0},
                "default": 1.0,
                "sentence": "Rate of it, over two lines.",
            },
            "within": {
                "type": {
                    "section": f"{__name__}:Within",
                    "name": "Within",
                    "sentence": "A group.",
                    "settings": {
                        "share": {
                            "type": {"type": "float"},
                            "default": 0.5,
                            "sentence": "Share of it.",
                        }
                    },
                },
                "default": {"share": 0.5},
                "sentence": "A group.",
            },
        },
        "lacks": {"packs": "no", "shards": ("rate > 2", "too fast")},
    }


def test_a_type_that_no_configuration_holds_is_refused() -> None:
    class Odd:
        def __init__(self, *, part: Base) -> None: ...

    with pytest.raises(TypeError, match=" is not supported as the type of a setting"):
        to_data(describe(Odd))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PolytroponRouter(2, 3, 1, 4, temperature=0.0), r"temperature \(0.0\) .* above 0"),
        (lambda: TopKRouter(4, 3, jitter=1.0), r"jitter \(1.0\) must be below 1"),
        (lambda: PolytroponRouter(2, 3, 1, 4, normalise="max"), "one of sum, average_correction"),
        (lambda: TopKRouter(4, 3, top_k=0), r"top_k \(0\) must be above 0"),
        (lambda: LoRAInventory(4, 4, 4, scale=float("nan")), r"scale \(nan\) must be above 0"),
    ],
)
def test_a_constructor_refuses_what_a_configuration_does(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
