"""Filters of the template language, which change a field's value.

Text filters transform a text, or each item of a list; list filters transform a whole list.
`docs/reference/task_files.md` describes them.
"""

from collections.abc import Callable, Mapping, Sequence
from string import ascii_uppercase
from typing import Any

_BREAKS = str.maketrans("\n\t\r", "   ")
SPEAKERS = ("user", "assistant")  # of a dialogue, whose last turn is the user's


class RecordError(Exception):
    """A value that cannot be converted; the message has the value and what is allowed."""


class FieldError(RecordError):
    """A `RecordError` whose message includes the field."""


def squeeze(text: str) -> str:
    """Replace each run of white space by one blank, and strip the ends."""
    return " ".join(text.split())


def clean(text: str) -> str:
    r"""Squeeze, after replacing the two characters ``\n`` by a blank."""
    return squeeze(text.replace("\\n", " "))


TEXT_FILTERS: dict[str, Callable[[str], str]] = {
    "strip": str.strip,
    "lf": lambda text: text.replace("\n", " "),
    "lf_n": lambda text: text.replace("\n", " [n] "),
    "breaks": lambda text: text.translate(_BREAKS),
    "clean": clean,
    "squeeze": squeeze,
    "bsn": lambda text: text.replace("\\n", " "),
    "unquoted": lambda text: text.strip("'"),
    "unspaced": lambda text: text.replace(" ", ""),
    "lower": str.lower,
}


def keyed(choices: Any) -> str:
    """Return `` (a) x (b) y`` with the choices' own labels, from `label` and `text`."""
    return "".join([f" ({label}) {text}" for label, text in zip(*_labelled(choices), strict=True)])


def first(items: Sequence[Any]) -> Any:
    """Return the first item of a list."""
    if not items:
        raise RecordError("is an empty list; it must have an item")
    return items[0]


def only(items: Sequence[Any]) -> Any:
    """Return the item of a list with exactly one item."""
    if len(items) != 1:
        raise RecordError(f"has {len(items)} items; it must have exactly one")
    return items[0]


LIST_FILTERS: dict[str, Callable[[Any], Any]] = {
    "lettered": lambda items: "".join([f" ({x}) {text}" for x, text in _letters(items)]),
    "tight": lambda items: "".join([f"({x}){text}" for x, text in _letters(items)]),
    "set": lambda items: list(dict.fromkeys(items)),
    "nonempty": lambda items: [item for item in items if item],
    "first": first,
    "only": only,
}


def passages(value: Any) -> str:
    """Return a text, or a list of texts joined by blanks, in one line."""
    texts: list[Any] = value if isinstance(value, list) and value else [value]
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise RecordError(f"is {shown(value)}; it must be a text, or a list of texts, none empty")
    return " ".join(map(squeeze, texts))


def turns(value: Any) -> str:
    """Return the turns of a dialogue, one per line, each after its speaker (``user: Hello``).

    Turns are texts, which alternate and end with the user's, or mappings with `speaker` (or
    `role`) and `text` (or `content`). A single text is the user's turn.
    """
    history = [value] if isinstance(value, str) else value
    lines: list[str] = []
    for place, turn in enumerate(history if isinstance(history, list) else ()):
        speaker, text = SPEAKERS[(len(history) - place + 1) % 2], turn
        if isinstance(turn, Mapping):
            speaker = turn.get("speaker", turn.get("role"))
            text = turn.get("text", turn.get("content"))
        if speaker not in SPEAKERS or not isinstance(text, str) or not text.strip():
            raise RecordError(
                f"has the turn {shown(turn)} at place {place + 1}; it must be a text that is not "
                f"empty, or have the keys speaker ({' or '.join(SPEAKERS)}) and text"
            )
        lines.append(f"{speaker}: {squeeze(text)}")
    if not lines or not lines[-1].startswith("user: "):
        raise RecordError(
            f"is {shown(value)}; it must be a list of turns that ends with the user's"
        )
    return "\n".join(lines)


CHOICE_FILTERS: dict[str, Callable[[Any], Any]] = {
    "keyed": keyed,
    "keys": list,
    "passages": passages,
    "turns": turns,
}


def pick(choices: Any, label: Any) -> Any:
    """Return the text of the choice with the given label."""
    labels, texts = _labelled(choices)
    if label not in labels:
        raise RecordError(f"is {shown(label)}; it must be one of {', '.join(map(shown, labels))}")
    return texts[labels.index(label)]


def item_at(items: Sequence[Any], index: Any, start: int = 0) -> Any:
    """Return the item at an index: a number, text with a number (from ``start``), or a letter."""
    if isinstance(index, str):
        name = index.strip()
        letter = ascii_uppercase.find(name.upper()) if len(name) == 1 else -1
        place = letter if letter >= 0 else int(name) - start if name.isdecimal() else -1
    else:
        place = index - start if isinstance(index, int) else -1
    if not 0 <= place < len(items):
        raise RecordError(
            f"is {shown(index)}; it must be the index of one of {len(items)} items, counted from "
            f"{start} (a number, or a letter)"
        )
    return items[place]


def shown(value: Any) -> str:
    """Return a value for a message, shortened."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _letters(items: Sequence[Any]) -> list[tuple[str, Any]]:
    if len(items) > len(ascii_uppercase):
        raise RecordError(f"has {len(items)} options, but there are {len(ascii_uppercase)} letters")
    return list(zip(ascii_uppercase, items, strict=False))


def _labelled(choices: Any) -> tuple[list[Any], list[Any]]:
    """Return labels and texts, from a list of choices or from two lists."""
    if isinstance(choices, Mapping):
        return choices["label"], choices["text"]
    return [choice["label"] for choice in choices], [choice["text"] for choice in choices]
