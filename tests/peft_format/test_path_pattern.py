"""Patterns of paths match as PEFT's do, and none runs for ever."""

import pytest

from mttl.peft_format.path_pattern import first_match

PATH = "encoder.block.0.layer.0.SelfAttention.q"


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("SelfAttention.q", True),
        ("q", True),
        (".*\\.q", True),
        ("block\\.\\d+\\..*\\.[qv]", True),
        ("(?:q|v)", True),
        ("Attention.q", False),
        ("k", False),
    ],
)
def test_patterns_match_the_end_of_a_path(pattern: str, matches: bool) -> None:
    assert first_match({pattern: 1}, PATH, 2) == (1 if matches else 2)


@pytest.mark.parametrize(
    "pattern",
    [
        *("([a-zA-Z0-9_.]+)+!", "(.*)*x!", "(([a-z.])+.)+!", "(?=(.*)*!)", "a{9999999}"),
        *(".*.*.*.*!", "x" * 2000, "(a|a)*!", r"(.)\1"),
    ],
)
def test_patterns_that_could_take_for_ever_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="could take for ever"):
        first_match({pattern: 1}, PATH * 8, 2)


@pytest.mark.parametrize("pattern", ["(", "[", "a)b"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="is no pattern"):
        first_match({pattern: 1}, PATH, 2)
