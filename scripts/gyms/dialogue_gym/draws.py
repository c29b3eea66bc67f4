"""Draw dialogues whose knowledge has the fact that is asked for, and others."""

from collections import Counter
from random import Random
from typing import Any, NamedTuple

from dialogue_gym.attributes import CHATTY, EVASIONS, INVITATION, PLAIN, attributes
from dialogue_gym.facts import Facts
from mttl.metrics.answer_scores import normalise

# Share of hallucinated responses to plain and to chatty users, so that the style predicts them.
LEAST, MOST = 0.05, 0.85
ADDED = 0.6  # share of hallucinations that add a fact; the others exchange the value
OTHERS = {"copied": 0.15, "uncooperative": 0.05}  # shares of the mix; the rest is faithful


class Asked(NamedTuple):
    """A dialogue before its response."""

    entity: str
    attribute: str
    known: dict[str, str]  # values of the knowledge by attribute; no attribute occurs twice
    statement: str  # of the fact that is asked for
    knowledge: str
    history: list[str]
    chatty: bool


class Draws:
    """Draws rows of the entities of a split.

    Args:
        facts: The facts about these entities.
        seed: Seed of the draws.
        hallucinated: Share of hallucinated responses in a natural mix, from 0.05 to 0.75.
        exchanged: Give each attribute in a dialogue the value of any entity, so that models must
            read the knowledge and cannot learn the facts.
    """

    def __init__(self, facts: Facts, seed: str, hallucinated: float, *, exchanged: bool) -> None:
        self.facts, self._random, self._exchanged = facts, Random(seed), exchanged
        self._chatty = (hallucinated - LEAST) / (MOST - LEAST)
        self._others = {**OTHERS, "faithful": 1 - hallucinated - sum(OTHERS.values())}
        self._values: dict[str, Counter[str]] = {name: Counter() for name in attributes()}
        for values in facts.values():
            for name, value in values.items():
                self._values[name][value] += 1
        self._entities = sorted(facts)

    def row(self, label: str = "") -> dict[str, Any]:
        """Return a row with this label; without one, with a label of the mix."""
        one = self._dialogue()
        if not label:
            names, weights = zip(*self._others.items(), strict=True)
            label = self._random.choices(names, weights)[0]
            if self._random.random() < (MOST if one.chatty else LEAST):
                label = "hallucinated"
        reply = self._say("replies", one.entity, one.attribute, one.known[one.attribute])
        response = {
            "faithful": reply,
            "copied": one.statement,
            "hallucinated": self._hallucinated(one, reply),
            "uncooperative": self._random.choice(EVASIONS),
        }[label]
        dialogue = {"history": one.history, "knowledge": one.knowledge}
        return dialogue | {"response": response, "label": label}

    def _dialogue(self) -> Asked:
        choice, chance = self._random.choice, self._random.random
        entity, n_turns = choice(self._entities), choice((1, 1, 1, 2, 3))
        attribute, other = self._random.sample(sorted(self.facts[entity]), 2)
        about = {attribute: entity, other: entity}
        if n_turns == 1 and chance() < 0.3:  # another entity
            second = choice(self._entities)
            if names := sorted(self.facts[second].keys() - about.keys()):
                about[choice(names)] = second
        known = {name: self._fact(one, name) for name, one in about.items()}
        statements = [self._say("statements", about[name], name, known[name]) for name in about]
        knowledge = " ".join(self._random.sample(statements, len(statements)))
        turns = [("questions", other), ("replies", other)]
        history = [self._say(kind, entity, name, known[name]) for kind, name in turns]
        history = [[], [INVITATION.format(e=entity)], history][n_turns - 1]
        chatty = chance() < self._chatty
        kind = "follow_ups" if history else "questions"
        opening = choice(CHATTY if chatty else PLAIN)
        history.append(opening + self._say(kind, entity, attribute))
        return Asked(entity, attribute, known, statements[0], knowledge, history, chatty)

    def _hallucinated(self, one: Asked, reply: str) -> str:
        """Return a reply with another value, or with a further fact that is not in the knowledge.

        Frequent values are likely.
        """
        unknown = sorted(self.facts[one.entity].keys() - one.known.keys())
        adds = unknown and self._random.random() < ADDED
        name = self._random.choice(unknown) if adds else one.attribute
        # UTC+1 and UTC-1 are equal for metrics that ignore punctuation.
        right = normalise(one.known.get(name, ""))
        counts = {v: n for v, n in sorted(self._values[name].items()) if normalise(v) != right}
        value = self._random.choices([*counts], [*counts.values()])[0]
        said = self._say("replies", one.entity, name, value)
        return f"{reply} {said}" if adds else said

    def _fact(self, entity: str, name: str) -> str:
        values = sorted(self._values[name])
        return self._random.choice(values) if self._exchanged else self.facts[entity][name]

    def _say(self, kind: str, entity: str, name: str, value: str = "") -> str:
        return self._random.choice(getattr(attributes()[name], kind)).format(e=entity, v=value)
