"""The English words of the gym: which are used, their forms, their sounds, and who is related."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from lexical_gym.sources import read_inflections, read_pronunciations

# Verbs whose participle equals the past tense leave that slot of the table empty.
SLOTS = {
    "verb": ("past", "participle", "gerund", "third"),
    "noun": ("plural",),
    "adj": ("comparative", "superlative"),
    "adv": ("comparative", "superlative"),
}
_LEMMA = re.compile(r"[a-z]{3,10}")
_FORM = re.compile(r"[a-z]{2,14}")


@dataclass(frozen=True)
class Word:
    """One lemma as one part of speech; `forms` maps a slot to its accepted spellings."""

    lemma: str
    part: str
    forms: dict[str, tuple[str, ...]] = field(hash=False)


class Lexicon:
    """The words that pass the filter.

    A lemma is used when it has 3 to 10 letters, all of them plain lower-case ones, and is in both
    the inflection table and the pronouncing dictionary: this drops names, abbreviations, compounds
    with blanks or hyphens, and the table's rare technical words.
    """

    def __init__(self) -> None:
        pronunciations = read_pronunciations()
        table = read_inflections()
        self.lemmas_of = {
            part: {lemma for lemma, p, _ in table if p == part and _FORM.fullmatch(lemma)}
            for part in SLOTS
        }
        self.words = sorted(
            (
                Word(lemma, part, dict(zip(SLOTS[part], map(_plain, slots), strict=False)))
                for lemma, part, slots in table
                if part in SLOTS and _LEMMA.fullmatch(lemma) and lemma in pronunciations
            ),
            key=lambda word: (word.lemma, word.part),
        )
        self.sounds = {word.lemma: pronunciations[word.lemma] for word in self.words}

    def of(self, *parts: str) -> Iterator[Word]:
        """Yield the words of these parts of speech, in alphabetical order."""
        return (word for word in self.words if word.part in parts)

    def key(self, word: str) -> str:
        """Return the key of the group of related words that ``word`` belongs to."""
        return f"word:{self._groups.find(word)}"

    @cached_property
    def adverbs(self) -> dict[str, str]:
        """Adjective -> its adverb in -ly, where the table has both."""
        return self._derived("adv", _adverb)

    @cached_property
    def nouns_in_ness(self) -> dict[str, str]:
        """Adjective -> its noun in -ness, where the table has both."""
        return self._derived("noun", lambda a: re.sub(r"(?<=[^aeiou])y$", "i", a) + "ness")

    def _derived(self, part: str, rule) -> dict[str, str]:
        pairs = ((word.lemma, rule(word.lemma)) for word in self.of("adj"))
        return {adjective: other for adjective, other in pairs if other in self.lemmas_of[part]}

    @cached_property
    def _groups(self) -> "Groups":
        groups = Groups()
        for word in self.words:
            groups.join([word.lemma, *(f for forms in word.forms.values() for f in forms)])
        for pairs in (self.adverbs, self.nouns_in_ness):
            for pair in pairs.items():
                groups.join(pair)
        return groups


class Groups:
    """Disjoint sets of words; a set is named by its first word in alphabetical order.

    Words that share a spelling in any form are one group (find, found, founds), so that a word
    cannot be trained as one lemma's form and tested as another's.
    """

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def find(self, word: str) -> str:
        """Return the name of the group of ``word``."""
        root = word
        while (parent := self._parent.get(root, root)) != root:
            root = parent
        while word != root:
            self._parent[word], word = root, self._parent[word]
        return root

    def join(self, words: Iterable[str]) -> None:
        """Make one group of all groups that hold one of ``words``."""
        first, *others = sorted({self.find(word) for word in words})
        for other in others:
            self._parent[other] = first


def _plain(forms: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(form for form in forms if _FORM.fullmatch(form)))


def _adverb(adjective: str) -> str:
    if adjective.endswith("ic"):
        return adjective + "ally"
    if re.search(r"[^aeiou]le$", adjective):
        return adjective[:-1] + "y"
    return re.sub(r"(?<=[^aeiou])y$", "i", adjective) + "ly"
