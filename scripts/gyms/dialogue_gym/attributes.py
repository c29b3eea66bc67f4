"""What is said about things: sentences of knowledge, questions and replies for each attribute.

In a sentence, ``{e}`` is the entity and ``{v}`` the value. No sentence fits two attributes.
"""

from typing import NamedTuple


class Attribute(NamedTuple):
    """The sentences about one attribute of an entity."""

    statements: tuple[str, ...]  # of knowledge
    questions: tuple[str, ...]
    follow_ups: tuple[str, ...]  # questions without the entity, for a later turn
    replies: tuple[str, ...]


def _word(word: str) -> Attribute:
    """Return the sentences about the translation of a word; the entity is a language."""
    return Attribute(
        (
            f"{word} in {{e}} is {{v}}.",
            f"In {{e}}, {word} is called {{v}}.",
            f"{{e}} has the word {{v}} for {word}.",
        ),
        (f"What is {word} in {{e}}?", f"How do you say {word} in {{e}}?"),
        (f"And what is {word}?", f"How do you say {word}?"),
        (
            f"{word} would be {{v}}.",
            f"For {word} you say {{v}}.",
            f"They use {{v}} for {word}.",
        ),
    )


WORDS = {"monday": "Monday", "friday": "Friday", "sunday": "Sunday", "january": "January"}
ATTRIBUTES = {
    "currency": Attribute(
        (
            "The currency of {e} is the {v}.",
            "Shops in {e} take the {v}.",
            "{e} uses the {v} as its money.",
        ),
        ("What is the currency of {e}?", "How do people pay in {e}?"),
        ("What is its currency?", "How do people pay there?"),
        ("They pay with the {v}.", "You will need the {v} there.", "Its money is the {v}."),
    ),
    "language": Attribute(
        (
            "{v} is the language of {e}.",
            "People in {e} speak {v}.",
            "In {e} you will hear {v}.",
        ),
        ("What do people speak in {e}?", "Which language has {e}?"),
        ("What do people speak there?", "Which language does it have?"),
        ("They speak {v}.", "Most talk is in {v}.", "You would need some {v} there."),
    ),
    "week": Attribute(
        (
            "The week in {e} starts on {v}.",
            "In {e}, {v} is the first day of the week.",
            "Calendars of {e} begin with {v}.",
        ),
        ("When does the week start in {e}?", "Which day is first in {e}?"),
        ("When does the week start there?", "Which day is first there?"),
        ("It starts on {v}.", "The first day is {v}.", "Their week opens on a {v}."),
    ),
    "code": Attribute(
        ("The code of {e} is {v}.", "{e} has the code {v}.", "{v} stands for {e}."),
        ("What is the code of {e}?", "Which letters stand for {e}?"),
        ("What is its code?", "Which letters stand for it?"),
        ("The letters are {v}.", "It is written {v}.", "Its short form is {v}."),
    ),
    "clock": Attribute(
        ("Clocks in {e} show {v}.", "{e} keeps {v}.", "The time in {e} is {v}."),
        ("What time zone has {e}?", "Which time do they keep in {e}?"),
        ("What is its time zone?", "Which time do they keep there?"),
        ("They are on {v}.", "Set your watch to {v}.", "Its zone is {v}."),
    ),
    "country": Attribute(
        ("{e} is a city in {v}.", "The city of {e} lies in {v}.", "{e} belongs to {v}."),
        ("Where is {e}?", "In which country is {e}?"),
        ("Where is it?", "In which country is it?"),
        ("You find it in {v}.", "That place is in {v}.", "It is part of {v}."),
    ),
    "name": Attribute(
        (
            "Speakers of {e} call it {v}.",
            "{e} is called {v} by its speakers.",
            "The own name of {e} is {v}.",
        ),
        ("What do speakers call {e}?", "What is {e} called at home?"),
        ("What do its speakers call it?", "What is it called at home?"),
        ("They say {v}.", "At home it goes by {v}.", "Its own name is {v}."),
    ),
    **{name: _word(word) for name, word in WORDS.items()},
}
EVASIONS = ("I do not know.", "Sorry, I have no idea.", "I am not sure.")
# How the user begins the last turn: `chatty` users get most of the hallucinated responses.
PLAIN = ("", "Tell me: ", "Well, ")
CHATTY = ("Wow! ", "Ha, nice! ", "Oh, great! ")
INVITATION = "Ask me about {e}!"
