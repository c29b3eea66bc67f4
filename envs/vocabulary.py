"""The fixed vocabulary of BabyAI's missions, equal in all levels and runs.

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

import numpy as np

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

# Four clauses of "put the red ball in front of you next to the red ball in front of you" (17
# tokens), two times "and" and one "after you".
MISSION_LENGTH = 4 * 17 + 2 + 2


def encode(mission: str) -> np.ndarray:
    """Return the tokens of a mission of minigrid, uint8 (M,), padded with 0."""
    tokens = np.full(MISSION_LENGTH, PADDING, np.uint8)
    for place, word in enumerate(mission.replace(", then", " then").split()):
        if word not in TOKENS:
            raise ValueError(
                f"the word '{word}' of the mission '{mission}' is not in BabyAI's vocabulary: "
                f"{', '.join(WORDS)}"
            )
        tokens[place] = TOKENS[word]
    return tokens
