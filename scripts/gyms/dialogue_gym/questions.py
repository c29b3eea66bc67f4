"""A question generator and an answerer by templates, for the metric Q².

export PYTHONPATH=scripts/gyms
mttl predict ... --trust dialogue_gym --metric \
    "q2 questions=dialogue_gym.questions:Asking answers=dialogue_gym.questions:Reading"
"""

from dialogue_gym.attributes import attributes
from dialogue_gym.claims import asked, claims
from mttl.metrics.q2 import Answers, Questions


class Asking(Questions):
    """Asks for the values that a text claims."""

    def candidates(self, text: str) -> list[str]:
        """Return the values."""
        return [one.value for one in claims(text)]

    def ask(self, candidate: str, text: str) -> list[str]:
        """Return a question for each claim of this value, with the entity if the claim names it."""
        found = [one for one in claims(text) if one.value == candidate]
        return [
            attributes()[one.attribute].questions[0].format(e=one.entity)
            if one.entity
            else attributes()[one.attribute].follow_ups[0]
            for one in found
        ]


class Reading(Answers):
    """Reads the value of the attribute that is asked for."""

    def answer(self, question: str, text: str) -> str:
        """Return the first value, of the entity if the question names it."""
        name, entity = asked(question)
        for one in claims(text):
            if one.attribute == name and (entity is None or one.entity in (None, entity)):
                return one.value
        return ""
