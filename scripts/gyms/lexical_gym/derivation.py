"""From an adjective to its adverb and its noun, and between these: quick, quickly, quickness."""

from collections.abc import Callable, Iterator

from derived_gym.item import Item

from lexical_gym.words import Lexicon


def derive(given: str, wanted: str) -> Callable[[Lexicon], Iterator[Item]]:
    """Make the generator of a task between `adj`, `adverb` and `ness`."""

    def items(lexicon: Lexicon) -> Iterator[Item]:
        for adjective in sorted({word.lemma for word in lexicon.of("adj")}):
            words = {
                "adj": adjective,
                "adverb": lexicon.adverbs.get(adjective),
                "ness": lexicon.nouns_in_ness.get(adjective),
            }
            source, target = words[given], words[wanted]
            if source and target:
                yield Item(source, (target,), (lexicon.key(adjective),))

    return items
