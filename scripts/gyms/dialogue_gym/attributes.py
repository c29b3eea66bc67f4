"""What is said about things: sentences of knowledge, questions and replies for each attribute."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from mttl.io.errors import TaskError
from mttl.io.yaml12 import read_yaml

WORDS = ("Monday", "Friday", "Sunday", "January")
EVASIONS = ("I do not know.", "Sorry, I have no idea.", "I am not sure.")
# How the user begins the last turn: `chatty` users get most of the hallucinated responses.
PLAIN = ("", "Tell me: ", "Well, ")
CHATTY = ("Wow! ", "Ha, nice! ", "Oh, great! ")
INVITATION = "Ask me about {e}!"


class Attribute(NamedTuple):
    """Sentences about an attribute, in which ``{e}`` is the entity and ``{v}`` the value."""

    statements: tuple[str, ...]  # of knowledge
    questions: tuple[str, ...]
    follow_ups: tuple[str, ...]  # questions without the entity, for a later turn
    replies: tuple[str, ...]


@cache
def attributes() -> Mapping[str, Attribute]:
    """Return the attributes of `attributes.yaml`; translations of words are one each."""
    tree = read_yaml(Path(__file__).with_suffix(".yaml"), TaskError)
    word = tree.pop("word")
    named = tree | {w: {k: [s.replace("{w}", w) for s in word[k]] for k in word} for w in WORDS}
    return {name: Attribute(**{k: tuple(one[k]) for k in one}) for name, one in named.items()}
