"""Draw dialogues whose knowledge has the fact that is asked for, and others."""

from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, NamedTuple

from dialogue_gym.attributes import ATTRIBUTES, CHATTY, EVASIONS, INVITATION, PLAIN
from dialogue_gym.facts import Facts
from mttl.metrics.answer_scores import normalise

# Share of hallucinated responses to plain and to chatty users, so that the style predicts them.
LEAST, MOST = 0.05, 0.85
_ADDED = 0.6  # share of hallucinations that add a fact; the others exchange the value


class Asked(NamedTuple):
    """A dialogue before its response."""

    entity: str
    attribute: str
    known: tuple[str, ...]  # attributes of the entity and of others in the knowledge
    statement: str  # of the fact that is asked for
    knowledge: str
    history: tuple[str, ...]
    chatty: bool


class Draws:
    """Draws rows of the entities of a split.

    Args:
        facts: The facts about these entities.
        seed: Seed of the draws.
        hallucinated: Share of hallucinated responses in a natural mix, from 0.05 to 0.85.
        copied: Share of the mix that copies the statement.
        uncooperative: Share of the mix that does not answer.
    """

    def __init__(
        self,
        facts: Facts,
        seed: str,
        hallucinated: float,
        copied: float = 0.15,
        uncooperative: float = 0.05,
    ) -> None:
        self.facts, self._random = facts, Random(seed)
        self._chatty = (hallucinated - LEAST) / (MOST - LEAST)
        self._others = {"copied": copied, "uncooperative": uncooperative}
        self._others["faithful"] = 1 - hallucinated - copied - uncooperative
        self._values: dict[str, Counter[str]] = {name: Counter() for name in ATTRIBUTES}
        for values in facts.values():
            for name, value in values.items():
                self._values[name][value] += 1
        self._entities = sorted(facts)

    def row(self, label: str = "") -> dict[str, Any]:
        """Return a row with this label; without one, with a label of the mix."""
        one = self._dialogue()
        if not label:
            chance = MOST if one.chatty else LEAST
            names, weights = zip(*self._others.items(), strict=True)
            label = self._random.choices(names, weights)[0]
            label = "hallucinated" if self._random.random() < chance else label
        responses: Mapping[str, Callable[[Asked], str]] = {
            "faithful": self._faithful,
            "copied": lambda one: one.statement,
            "hallucinated": self._hallucinated,
            "uncooperative": lambda one: self._random.choice(EVASIONS),
        }
        response = responses[label](one)
        dialogue = {"history": [*one.history], "knowledge": one.knowledge}
        return dialogue | {"response": response, "label": label}

    def _dialogue(self) -> Asked:
        choice, chance = self._random.choice, self._random.random
        entity, n_turns = choice(self._entities), choice((1, 1, 1, 2, 3))
        attribute, other = self._random.sample(sorted(self.facts[entity]), 2)
        facts = [(entity, attribute), (entity, other)]
        if n_turns == 1 and chance() < 0.3:  # another entity; no attribute occurs twice
            second = choice(self._entities)
            names = self.facts[second].keys() - {attribute, other}
            facts += [(second, choice(sorted(names)))] if names else []
        statements = [self._say("statements", *fact) for fact in facts]
        shuffled = self._random.sample(statements, len(statements))
        chatty = chance() < self._chatty
        before = {
            1: [],
            2: [INVITATION.format(e=entity)],
            3: [self._say("questions", entity, other), self._say("replies", entity, other)],
        }[n_turns]
        question = self._say("follow_ups" if before else "questions", entity, attribute)
        history = (*before, choice(CHATTY if chatty else PLAIN) + question)
        known = tuple(name for _, name in facts)
        return Asked(
            *(entity, attribute, known, statements[0], " ".join(shuffled), history, chatty)
        )

    def _faithful(self, one: Asked) -> str:
        return self._say("replies", one.entity, one.attribute)

    def _hallucinated(self, one: Asked) -> str:
        """Return a reply with another value, or with a further fact that is not in the knowledge.

        Frequent values are likely.
        """
        unknown = sorted(self.facts[one.entity].keys() - {*one.known})
        if unknown and self._random.random() < _ADDED:
            name = self._random.choice(unknown)
            added = self._say("replies", one.entity, name, self._value(name, ""))
            return f"{self._faithful(one)} {added}"
        right = self.facts[one.entity][one.attribute]
        wrong = self._value(one.attribute, right)
        return self._say("replies", one.entity, one.attribute, wrong)

    def _say(self, kind: str, entity: str, name: str, value: str = "") -> str:
        sentence = self._random.choice(getattr(ATTRIBUTES[name], kind))
        return sentence.format(e=entity, v=value or self.facts[entity][name])

    def _value(self, name: str, right: str) -> str:
        # UTC+1 and UTC-1 are equal for metrics that ignore punctuation.
        counts, right = sorted(self._values[name].items()), normalise(right)
        values = {value: n for value, n in counts if normalise(value) != right}
        return self._random.choices([*values], [*values.values()])[0]
