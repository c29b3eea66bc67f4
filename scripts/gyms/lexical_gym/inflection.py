"""From one form of a word to another: walk -> walked, walking -> walk, bigger -> biggest."""

from collections.abc import Callable, Iterator

from derived_gym.item import Item

from lexical_gym.words import Lexicon, Word


def inflect(part: str, given: str, wanted: str) -> Callable[[Lexicon], Iterator[Item]]:
    """Make the generator of a task that turns the form ``given`` into the form ``wanted``.

    Args:
        part: Part of speech.
        given: `lemma` or a slot of `lexical_gym.words.SLOTS`; of several spellings, the first.
        wanted: Likewise; all spellings are accepted.
    """

    def items(lexicon: Lexicon) -> Iterator[Item]:
        for word in lexicon.of(part):
            sources, targets = _spellings(word, given), _spellings(word, wanted)
            # A form equal to the lemma (a mass noun's plural) says nothing about the rule.
            targets = tuple(form for form in targets if form not in sources)
            if sources and targets:
                yield Item(sources[0], targets, (lexicon.key(word.lemma),))

    return items


def _spellings(word: Word, form: str) -> tuple[str, ...]:
    return (word.lemma,) if form == "lemma" else word.forms.get(form, ())
