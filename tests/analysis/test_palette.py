"""Every category looks different, also to colour-blind readers, and its text can be read."""

from mttl.analysis.palette import COLOURS, UNKNOWN, category_looks
from mttl.tasks.table import crossfit


def test_no_two_categories_of_crossfit_look_alike() -> None:
    looks = category_looks([task.category for task in crossfit().values()])
    assert len(looks) > len(COLOURS)
    assert len({(look.fill, look.marker) for look in looks.values()}) == len(looks)


def test_looks_depend_on_the_set_of_categories_only() -> None:
    assert category_looks(["b", "a", "b"]) == category_looks(["a", "b"])
    assert UNKNOWN not in category_looks(["a"])
    assert category_looks([UNKNOWN, "a"])["a"] == category_looks(["a"])["a"]


def test_text_has_a_contrast_of_four_and_a_half_on_white() -> None:
    """As WCAG 2.1 defines it."""

    def luminance(colour: str) -> float:
        channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    inks = [look.ink for look in category_looks([*"abcdefg", UNKNOWN]).values()]
    assert len(inks) == 8
    for ink in inks:
        assert 1.05 / (luminance(ink) + 0.05) >= 4.5, ink
