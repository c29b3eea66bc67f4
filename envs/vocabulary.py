"""The fixed vocabulary of BabyAI's missions, equal in all levels and runs.

Other words, in missions of other environments, get one of the remaining tokens by their hash.

The grammar, in the order of the table below::

    mission  = sentence | sentence ", then" sentence | sentence "after you" sentence
    sentence = clause | clause "and" clause
    clause   = "go to" thing | "open" thing | "pick up" thing | "put" thing "next to" thing
    thing    = ("the" | "a") [colour] type ["on your left" | "on your right" | "in front of you"
               | "behind you"]

The grammar's only comma precedes "then" and belongs to that token.

References:
    Chevalier-Boisvert et al., *BabyAI: A Platform to Study the Sample Efficiency of Grounded
    Language Learning*, ICLR 2019, arXiv:1810.08272, section 3.2.
"""

from collections.abc import Iterable
from zlib import crc32

import numpy as np

from envs.levels import LEVELS

WORDS = (
    *("go", "to", "open", "pick", "up", "put", "next"),
    *("the", "a"),
    *("red", "green", "blue", "purple", "yellow", "grey"),
    *("object", "ball", "box", "key", "door"),
    *("on", "your", "left", "right", "in", "front", "of", "you", "behind"),
    *("and", "then", "after"),
)
PADDING = 0
TOKENS = {word: token for token, word in enumerate(WORDS, 1)}
N_TOKENS = len(WORDS) + 1
N_ALL_TOKENS = 256  # with those of other words

# Four clauses of "put the red ball in front of you next to the red ball in front of you" (17
# tokens), two times "and" and one "after you".
MISSION_LENGTH = 4 * 17 + 2 + 2


def count_tokens(levels: Iterable[str]) -> int:
    """Return the number of tokens in the missions of some levels."""
    return N_TOKENS if all(level in LEVELS for level in levels) else N_ALL_TOKENS


def encode(mission: str, level: str | None = None) -> np.ndarray:
    """Return the tokens of a mission, uint8 (M,), padded with 0.

    Raises:
        ValueError: If it is too long, or has a word that BabyAI's ``level`` (or None) cannot have.
    """
    tokens = np.full(MISSION_LENGTH, PADDING, np.uint8)
    words = mission.replace(", then", " then").split()
    if len(words) > MISSION_LENGTH:
        raise ValueError(f"the mission has {len(words)} words; at most {MISSION_LENGTH} are read")
    for place, word in enumerate(words):
        if word not in TOKENS and (level is None or level in LEVELS):
            raise ValueError(
                f"the word '{word}' of the mission '{mission}' is not in BabyAI's vocabulary: "
                f"{', '.join(WORDS)}"
            )
        other = N_TOKENS + crc32(word.encode()) % (N_ALL_TOKENS - N_TOKENS)
        tokens[place] = TOKENS.get(word, other)
    return tokens
