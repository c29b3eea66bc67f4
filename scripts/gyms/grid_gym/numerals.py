"""Numbers in words, and back."""

from collections.abc import Iterator
from decimal import Decimal

from derived_gym.blanks import plain
from derived_gym.item import Item
from num2words import num2words

from grid_gym.things import number_key

_LARGEST = 999


def cardinal(language: str) -> Iterator[Item]:
    """Yield 345 -> dreihundertfünfundvierzig."""
    return _in_words(language, "cardinal")


def ordinal(language: str) -> Iterator[Item]:
    """Yield 345 -> dreihundertfünfundvierzigste."""
    return _in_words(language, "ordinal")


def number(language: str) -> Iterator[Item]:
    """Yield dreihundertfünfundvierzig -> 345."""
    for item in cardinal(language):
        yield Item(item.outputs[0], (item.input,), item.keys)


def _in_words(language: str, kind: str) -> Iterator[Item]:
    for value in range(1, _LARGEST + 1):
        if (language, kind) == ("ko", "ordinal") and value % 100 == 0:
            continue  # num2words fails at them
        try:
            text = plain(num2words(value, lang=language, to=kind))
        except NotImplementedError as error:
            raise LookupError(f"num2words has no {kind} numbers of the language") from error
        yield Item(str(value), (text,), (number_key(Decimal(value)),))
