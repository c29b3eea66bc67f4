"""The words of BabyAI's missions, fixed once: a token means the same in every level and run.

The grammar, in the order of the table below::

    mission  = sentence | sentence ", then" sentence | sentence "after you" sentence
    sentence = clause | clause "and" clause
    clause   = "go to" thing | "open" thing | "pick up" thing | "put" thing "next to" thing
    thing    = ("the" | "a") [colour] type ["on your left" | "on your right" | "in front of you"
               | "behind you"]

The grammar's only comma stands before "then" and belongs to that token.

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


def encode(mission: str, length: int = MISSION_LENGTH) -> np.ndarray:
    """Return the tokens of a mission, uint8 (M,), with 0 after its end.

    Args:
        mission: As minigrid words it.
        length: M; by default that of the longest mission of the grammar.

    Raises:
        ValueError: If a word is not of the grammar, or the mission does not fit.
    """
    words = mission.replace(", then", " then").split()
    if len(words) > length:
        raise ValueError(f"the mission '{mission}' has {len(words)} tokens; length is {length}")
    tokens = np.full(length, PADDING, np.uint8)
    for place, word in enumerate(words):
        if word not in TOKENS:
            raise ValueError(
                f"the word '{word}' of the mission '{mission}' is not of BabyAI's grammar, which "
                f"has {', '.join(WORDS)}"
            )
        tokens[place] = TOKENS[word]
    return tokens


def decode(tokens: np.ndarray) -> str:
    """Return the mission that `encode` turned into these tokens.

    Raises:
        ValueError: If a token is outside the vocabulary.
    """
    ids = [int(token) for token in tokens if token != PADDING]
    for token in ids:
        if not 0 < token < N_TOKENS:
            raise ValueError(f"the token {token} must be from 0 to {N_TOKENS - 1}")
    return " ".join(WORDS[token - 1] for token in ids).replace(" then", ", then")
