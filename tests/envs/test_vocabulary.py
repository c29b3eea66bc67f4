"""Missions as tokens, and back."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.game import make_game
from envs.levels import LEVELS
from envs.vocabulary import MISSION_LENGTH, N_TOKENS, TOKENS, WORDS, count_tokens, encode

COLOURS = ["", "red ", "green ", "blue ", "purple ", "yellow ", "grey "]
PLACES = ["", " on your left", " on your right", " in front of you", " behind you"]
THINGS = [
    f"{article} {colour}{kind}{place}"
    for article, colour, kind, place in product(
        ("the", "a"), COLOURS, ("object", "ball", "box", "key", "door"), PLACES
    )
]
things = st.sampled_from(THINGS)
clauses = st.tuples(st.sampled_from(["go to", "open", "pick up"]), things).map(" ".join)
clauses |= st.tuples(things, things).map(lambda pair: f"put {pair[0]} next to {pair[1]}")
sentences = clauses | st.tuples(clauses, clauses).map(" and ".join)
missions = sentences | st.tuples(
    sentences, st.sampled_from([", then ", " after you "]), sentences
).map("".join)


def decode(tokens: np.ndarray) -> str:
    return " ".join(WORDS[token - 1] for token in tokens if token).replace(" then", ", then")


@given(missions)
def test_every_mission_of_the_grammar_comes_back(mission: str) -> None:
    tokens = encode(mission)
    assert tokens.shape == (MISSION_LENGTH,)
    assert tokens.dtype == np.uint8
    assert decode(tokens) == mission


@pytest.mark.parametrize("n_episodes", [4, pytest.param(1000, marks=pytest.mark.slow)])
def test_the_missions_of_every_level_come_back(n_episodes: int) -> None:
    for level in LEVELS.values():
        game = make_game(level)
        for seed in range(n_episodes):
            mission = game.reset(seed=seed if seed == 0 else None)[0]["mission"]
            assert decode(encode(mission)) == mission


def test_tokens_never_change_and_the_longest_mission_just_fits() -> None:
    """Trained policies read them; a new word may only be added at the end."""
    assert decode(np.arange(N_TOKENS)) == (
        "go to open pick up put next the a red green blue purple yellow grey object ball box key "
        "door on your left right in front of you behind and, then after"
    )
    assert TOKENS["go"] == 1
    assert len(set(WORDS)) == len(WORDS) == N_TOKENS - 1
    thing = "the red ball in front of you"
    put = f"put {thing} next to {thing}"
    longest = f"{put} and {put} after you {put} and {put}"
    assert np.count_nonzero(encode(longest)) == MISSION_LENGTH
    with pytest.raises(ValueError, match="the word 'apple' of the mission 'go to the apple' is"):
        encode("go to the apple")


def test_other_words_have_tokens_in_other_levels() -> None:
    tokens = encode("go to the apple", "module:Class")
    np.testing.assert_array_equal(tokens[:3], encode("go to the")[:3])
    assert N_TOKENS <= tokens[3] < count_tokens(["GoTo", "module:Class"]) == 256
    assert count_tokens(["GoTo"]) == N_TOKENS
    with pytest.raises(ValueError, match="the mission has 73 words; at most 72 are read"):
        encode(" ".join(["apple"] * 73), "module:Class")
