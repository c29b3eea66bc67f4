"""Records are read back as they were written, and every mistake in a file is named."""

import math
from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field

from mttl.io.errors import CheckpointError, TaskError
from mttl.io.record import Printable, Record, check


class Part(Record):
    kind: Literal["a", "bee"]
    sizes: tuple[int, ...] = ()


class Whole(Record):
    name: Printable
    score: float
    parts: dict[str, Part] = Field(default_factory=dict)
    only: Part | None = None
    on: bool = False


WHOLE = Whole(name="x", score=0.5, parts={"p": Part(kind="a", sizes=(1, 2))})


def test_what_is_written_is_read(tmp_path: Path) -> None:
    WHOLE.write(tmp_path / "whole.json")
    assert [path.name for path in tmp_path.iterdir()] == ["whole.json"]
    assert Whole.read(tmp_path / "whole.json") == WHOLE
    (tmp_path / "whole.yaml").write_text(
        "name: x\nscore: 0.5\nparts: {p: {kind: a, sizes: [1, 2]}}"
    )
    assert Whole.read(tmp_path / "whole.yaml") == WHOLE


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "place: it: [] must be a mapping of settings. Copy it again"),
        ("{", "place, line 1, column 2: not valid JSON"),
        ('{"name": "x"}', "the key 'score' is missing"),
        ('{"name": "x", "score": NaN}', "NaN is not a number"),
        ('{"name": "x", "score": "1"}', 'score: "1" must be a number'),
        ('{"name": " ", "score": 1}', 'name: " " must be a name of printable characters'),
        ('{"name": 3, "score": 1}', "name: 3 must be text"),
        ('{"name": "x", "score": 1, "scores": 2}', "unknown key 'scores'. Did you mean 'score'?"),
        ('{"name": "x", "score": 1, "zz": 2}', "unknown key 'zz'. Keys: name, score, parts"),
        ('{"name": "x", "score": 1, "on": 1}', "on: 1 must be true or false"),
        ('{"name": "x", "score": 1, "parts": {"p": {"kind": "be"}}}',
         "parts.p.kind: \"be\" must be one of a, bee. Did you mean 'bee'?"),
        ('{"name": "x", "score": 1, "only": {"kind": "a", "size": []}}',
         "unknown key 'only.size'. Did you mean 'sizes'?"),
        ('{"name": "x", "score": 1, "only": {"kind": "a", "sizes": [1.5]}}',
         "only.sizes.0: 1.5 must be a whole number"),
        ('{"score": "a", "on": 1}', "the key 'name' is missing; score: \"a\" must be a number; "),
    ],
)  # fmt: skip
def test_mistakes_are_named(text: str, message: str) -> None:
    with pytest.raises(CheckpointError) as error:
        Whole.parse(text, "place")
    assert message in str(error.value)


def test_what_json_cannot_hold_is_refused() -> None:
    for value in ({"name": "x", "score": math.nan}, {"name": {"x"}, "score": 1}):
        with pytest.raises(TaskError, match=r"^place: "):
            check(Whole, value, "place", TaskError)
