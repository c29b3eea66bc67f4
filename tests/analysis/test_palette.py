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
