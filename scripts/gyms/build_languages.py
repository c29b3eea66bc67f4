"""Generate artificial languages with text, word classes, entities and dependency trees.

    python scripts/gyms/build_languages.py --out languages [--sentences 1000] [--lines 10000]
    mttl build --config languages/tasks.yaml --out languages/gym --samples 100

All languages have one grammar. They differ in the order of words, in the endings that mark number
and case, and in most words; a share of the words, the cognates, is common to all. So a task that is
learned in one language can be tested in another. For each language there are `<name>.txt`, raw
text of one sentence per line, and `<name>_{train,test}.{conllu,conll}`, other sentences with word
classes and trees, and with entities. `tasks.yaml` describes the tasks. Equal options give equal
files.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple, Optional

from mttl.io import yaml12
from mttl.io.files import new_folder

N_WORDS = {"person": 16, "thing": 24, "place": 12, "act": 24, "quality": 12}
N_WORDS |= {"given": 12, "town": 12, "the": 2, "pronoun": 3, "at": 4}
SMALL = ("the", "pronoun", "at")  # words of one syllable, which are no cognates
VOWELS, CONSONANTS = "aeiou", "bdfgklmnprstvz"


class Language(NamedTuple):
    """Name, order of subject, verb and object, and places of adjectives and adpositions."""

    name: str
    order: str
    adjective_first: bool
    adposition_first: bool


LANGUAGES = (
    Language("ana", "SVO", True, True),
    Language("beo", "SVO", False, True),
    Language("ciu", "SOV", True, False),
    Language("dia", "VSO", False, True),
)


@dataclass(eq=False)
class Word:
    """A word of a sentence with its head, which is None for the root."""

    form: str
    tag: str
    relation: str = "root"
    head: Optional["Word"] = None
    entity: str = "O"


class Speaker:
    """Draws sentences of a language.

    Args:
        language: The language.
        seed: Seed of all words and endings; cognates have the same form with the same seed.
        cognates: Share of the words that all languages have in common.
    """

    def __init__(self, language: Language, seed: int, cognates: float) -> None:
        self.language = language
        own, common = Random(f"{seed} {language.name}"), Random(f"{seed}")
        self._forms: dict[tuple[str, int], str] = {}
        for kind, n in N_WORDS.items():
            for number in range(n):
                size = 1 if kind in SMALL else 2 + common.randrange(2)
                shared, different = _syllables(common, size), _syllables(own, size)
                use_shared = own.random() < cognates and kind not in SMALL
                form = shared if use_shared else different
                self._forms[kind, number] = form.title() if kind in ("given", "town") else form
        endings = [v + c for v in VOWELS for c in CONSONANTS]
        own.shuffle(endings)
        marks = [(role, number) for role in ("subject", "object", "at", "act") for number in "12"]
        self._endings = dict(zip(marks, endings, strict=False))

    def sentence(self, draw: Random) -> list[Word]:
        """Return the words of a sentence in order."""
        act, number = self._draw(draw, "act"), draw.choice("112")
        verb = Word(self._forms[act] + self._endings["act", number], "VERB")
        parts = {"V": [verb], "S": self._phrase(draw, "subject", "person", number, verb, "nsubj")}
        if act[1] % 3:  # transitive
            kind = ("thing", "person")[act[1] % 3 - 1]
            parts["O"] = self._phrase(draw, "object", kind, draw.choice("112"), verb, "obj")
        words = [word for role in self.language.order for word in parts.get(role, ())]
        if draw.random() < 0.4:
            place = self._phrase(draw, "at", "place", "1", verb, "obl")
            noun = next(word for word in place if word.head is verb)
            word = Word(self._form(draw, "at"), "ADP", "case", noun)
            place = [word, *place] if self.language.adposition_first else [*place, word]
            words = words + place if words[-1] is not verb else [*place, *words]
        return [*words, Word(".", "PUNCT", "punct", verb)]

    def _phrase(
        self, draw: Random, role: str, kind: str, number: str, verb: Word, relation: str
    ) -> list[Word]:
        """Return a noun with its adjective and article, a name, or a pronoun."""
        ending, named = self._endings[role, number], {"person": "given", "place": "town"}
        chance = draw.random()
        if kind in named and chance < 0.3:
            label = {"person": "PER", "place": "LOC"}[kind]
            name = self._form(draw, named[kind])
            first = Word(name, "PROPN", relation, verb, f"B-{label}")
            if chance > 0.1:
                return [first]
            second = self._form(draw, named[kind])
            return [first, Word(second, "PROPN", "flat", first, f"I-{label}")]
        if kind == "person" and chance < 0.4:
            return [Word(self._form(draw, "pronoun"), "PRON", relation, verb)]
        noun = Word(self._form(draw, kind) + ending, "NOUN", relation, verb)
        words = [noun]
        if draw.random() < 0.4:
            word = Word(self._form(draw, "quality") + ending, "ADJ", "amod", noun)
            words = [word, noun] if self.language.adjective_first else [noun, word]
        if draw.random() < 0.5:
            words = [Word(self._form(draw, "the"), "DET", "det", noun), *words]
        return words

    def _draw(self, draw: Random, kind: str) -> tuple[str, int]:
        """Return a word's kind and number; small numbers are frequent."""
        n = N_WORDS[kind]
        return kind, int(n * draw.random() ** 2)

    def _form(self, draw: Random, kind: str) -> str:
        return self._forms[self._draw(draw, kind)]


def _syllables(draw: Random, n: int) -> str:
    return "".join(draw.choice(CONSONANTS) + draw.choice(VOWELS) for _ in range(n))


def conllu(sentence: list[Word]) -> str:
    """Return a sentence with word classes and its tree."""
    lines = []
    for number, word in enumerate(sentence, 1):
        head = 0 if word.head is None else sentence.index(word.head) + 1
        cells = [number, word.form, "_", word.tag, "_", "_", head, word.relation, "_", "_"]
        lines.append("\t".join(map(str, cells)) + "\n")
    return "".join(lines) + "\n"


def conll(sentence: list[Word]) -> str:
    """Return a sentence with tags of entities."""
    return "".join(f"{word.form}\t{word.entity}\n" for word in sentence) + "\n"


def files(seed: int, cognates: float, n_sentences: int, n_lines: int) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each file."""
    tasks = {}
    for language in LANGUAGES:
        name, speaker = language.name, Speaker(language, seed, cognates)
        draw = Random(f"{seed} {name} sentences")
        lines = (" ".join(w.form for w in speaker.sentence(draw)) for _ in range(n_lines))
        yield f"{name}.txt", "".join(line + "\n" for line in lines)
        for split in ("train", "test"):
            sentences = [speaker.sentence(draw) for _ in range(n_sentences)]
            yield f"{name}_{split}.conllu", "".join(map(conllu, sentences))
            yield f"{name}_{split}.conll", "".join(map(conll, sentences))
        for kind, ending in {"words": "conllu", "trees": "conllu", "entities": "conll"}.items():
            source = {"train": f"{name}_train.{ending}", "test": f"{name}_test.{ending}"}
            task = {"kind": "tree" if kind == "trees" else "tokens"}
            task |= {"metric": "span-F1"} if kind == "entities" else {}
            tasks[f"{kind}_{name}"] = task | {"source": source | {"format": ending}}
    yield "tasks.yaml", yaml12.dump({"k": n_sentences * 3 // 4, "tasks": tasks})


def main(argv: list[str] | None = None) -> None:
    """Write all files into a new folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder, which must not exist")
    parser.add_argument("--seed", type=int, default=13, help="seed (%(default)s)")
    help = "share of common words (%(default)s)"
    parser.add_argument("--cognates", type=float, default=0.3, help=help)
    help = "sentences of each task's files (%(default)s)"
    parser.add_argument("--sentences", type=int, default=1000, help=help)
    help = "lines of text of each language (%(default)s)"
    parser.add_argument("--lines", type=int, default=10_000, help=help)
    given = parser.parse_args(argv)
    with new_folder(given.out) as folder:
        for name, text in files(given.seed, given.cognates, given.sentences, given.lines):
            (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
