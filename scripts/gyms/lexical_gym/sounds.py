"""What an English word sounds like, from its spelling (ARPAbet, as in the CMU dictionary)."""

import random
from collections.abc import Callable, Iterator

from derived_gym.item import Item
from derived_gym.split import split_of
from inflect import engine

from lexical_gym.words import Lexicon

Phones = tuple[str, ...]


def sound(answer: Callable[[Phones], str | None]) -> Callable[[Lexicon], Iterator[Item]]:
    """Make the generator of a task that maps a spelling to ``answer`` of its pronunciation.

    Words of several pronunciations are left out; so are those that ``answer`` has None for.
    """

    def items(lexicon: Lexicon) -> Iterator[Item]:
        for word, phones in _pronounced(lexicon):
            if (said := answer(phones)) is not None:
                yield Item(word, (said,), (lexicon.key(word),))

    return items


def first_sound(phones: Phones) -> str:
    """Return the first sound, without its stress: knee -> N."""
    return phones[0].rstrip("012")


def last_sound(phones: Phones) -> str:
    """Return the last sound, without its stress: laugh -> F."""
    return phones[-1].rstrip("012")


def starts_with_vowel(phones: Phones) -> str:
    """Return whether the first sound is a vowel: hour -> yes."""
    return "yes" if phones[0][-1].isdigit() else "no"


def syllables(phones: Phones) -> str:
    """Return the number of syllables, which is that of the vowels."""
    return str(len(_stresses(phones)))


def stress(phones: Phones) -> str | None:
    """Return main (1), side (2) and no stress (0) per syllable: banana -> 010."""
    pattern = _stresses(phones)
    return pattern if 2 <= len(pattern) <= 4 and pattern.count("1") == 1 else None


def rhymes(lexicon: Lexicon) -> Iterator[Item]:
    """Yield pairs of words and whether they agree from the last stressed vowel on.

    The pairs that do not rhyme end in the same letter, so that this alone does not give it away.
    """
    rng = random.Random("rhymes")
    for split in ("train", "dev", "test"):
        words = [(w, p) for w, p in _pronounced(lexicon) if split_of(lexicon.key(w)) == split]
        by_tail: dict[Phones, list[str]] = {}
        by_letter: dict[str, list[tuple[str, Phones]]] = {}
        for word, phones in words:
            by_tail.setdefault(_tail(phones), []).append(word)
            by_letter.setdefault(word[-1], []).append((word, _tail(phones)))
        for word, phones in words:
            tail = _tail(phones)
            same = [w for w in by_tail[tail] if w != word]
            other = [w for w, t in by_letter[word[-1]] if t != tail]
            for pool, answer in ((same, "yes"), (other, "no")):
                if pool:
                    partner = rng.choice(pool)
                    keys = (lexicon.key(word), lexicon.key(partner))
                    yield Item(f"{word} {partner}", (answer,), keys)


def article(lexicon: Lexicon) -> Iterator[Item]:
    """Yield nouns and adjectives with the indefinite article that `inflect` gives them."""
    english = engine()
    for word in sorted({word.lemma for word in lexicon.of("noun", "adj")}):
        chosen = english.a(word).split(" ")[0]  # pyright: ignore[reportArgumentType]
        yield Item(word, (chosen,), (lexicon.key(word),))


def _pronounced(lexicon: Lexicon) -> Iterator[tuple[str, Phones]]:
    return ((word, all_[0]) for word, all_ in sorted(lexicon.sounds.items()) if len(all_) == 1)


def _stresses(phones: Phones) -> str:
    return "".join(phone[-1] for phone in phones if phone[-1].isdigit())


def _tail(phones: Phones) -> Phones:
    stressed = [n for n, phone in enumerate(phones) if phone[-1] in "12"]
    return phones[stressed[-1] if stressed else 0 :]
