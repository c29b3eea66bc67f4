"""Q² by small random models, beside a plain loop of the published code, and by custom parts."""

import random
import re
import string
from collections import Counter
from pathlib import Path

import pytest
import torch
from transformers import (
    BertConfig,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertTokenizer,
    T5ForConditionalGeneration,
)

from helpers.backbones import fill, tiny_t5
from mttl.metrics.crossfit import build_metric, score_answers
from mttl.metrics.q2 import Answers, Questions

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "of", "tower", "paris", "old", "tall", "three"]
DRAW = random.Random(0)
ANSWERS = [" ".join(DRAW.choices(WORDS[4:], k=4)) for _ in range(60)]
ROWS = [{"columns": {"knowledge": " ".join(DRAW.choices(WORDS[4:], k=3))}} for _ in ANSWERS]


class Asking(Questions):
    """Asks for every candidate, first in a personal way."""

    def ask(self, candidate, text):
        return [f"Do you say {candidate}?", f"Where is {candidate}?"]


class Reading(Answers):
    """What is asked for if the text has it, else its last two words, of long texts."""

    def answer(self, question, text):
        asked = re.split("is |say ", question.rstrip("?"))[-1]
        words = text.rstrip(".").split()
        last = " ".join(words[-2:]) if len(words) > 2 else ""
        return asked if asked in " ".join(words) and "you" not in question else last


PARTS = f"questions={__name__}:Asking answers={__name__}:Reading"


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    (place / "words.txt").write_text("\n".join(WORDS))
    sizes = {"vocab_size": len(WORDS), "hidden_size": 16, "intermediate_size": 24}
    sizes |= {"num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 48}
    labels = dict(enumerate(("contradiction", "entailment", "neutral")))
    names = {"id2label": labels, "label2id": {name: n for n, name in labels.items()}}
    models = {
        "questions": tiny_t5(vocab_size=len(WORDS)),
        "answers": BertForQuestionAnswering(BertConfig(**sizes)),
        "nli": BertForSequenceClassification(BertConfig(**sizes, **names)),
    }
    for name, model in models.items():
        fill(model, 6)  # the classifier of this seed gives all labels
        model.save_pretrained(place / name)
        BertTokenizer(str(place / "words.txt")).save_pretrained(place / name)
    return {name: place / name for name in models}


class Published:
    """The pipeline of orhonovich/q-squared: one question a candidate, which is not personal."""

    def __init__(self, nli: Path) -> None:
        self.nli = BertForSequenceClassification.from_pretrained(nli).eval()
        self.tokenizer = BertTokenizer.from_pretrained(nli)
        self.seen: Counter[str] = Counter()

    def clean(self, text):
        text = text.lower().translate(str.maketrans("", "", string.punctuation))
        return re.sub(" +", " ", re.sub(r"\b(a|an|the|in|our)\b", " ", text)).strip()

    def f1(self, gold, found):
        ours, theirs = self.clean(gold).split(), self.clean(found).split()
        same = sum((Counter(ours) & Counter(theirs)).values())
        return 2 * same / (len(ours) + len(theirs)) if same else 0

    @torch.no_grad()
    def relation(self, *pair):
        logits = self.nli(**self.tokenizer(*pair, return_tensors="pt")).logits[0]
        label = ["contradiction", "entailment", "neutral"][int(logits.argmax())]
        self.seen[label] += 1
        return label

    def score(self, answer, knowledge, with_nli):
        scores = []
        for candidate in map(str.strip, re.sub(r"\b(the|of)\b", ",", answer).split(",")):
            for question in Asking().ask(candidate, answer) if candidate else ():
                given = Reading().answer(question, answer)
                if "you" in question or self.clean(given) != self.clean(candidate):
                    continue
                found = Reading().answer(question, knowledge)
                score = self.f1(candidate, found) if found else 0
                self.seen["equal" if score == 1 else "partial" if score else "different"] += 1
                if with_nli and score < 1 and found:
                    pair = (f"{question} {found}.", f"{question} {candidate}.")
                    score = {"entailment": 1, "contradiction": 0}.get(self.relation(*pair), score)
                scores.append(score)
                break
        if scores:
            return sum(scores) / len(scores)
        self.seen["no question"] += 1
        values = {"entailment": 1, "contradiction": 0, "neutral": 0.5}
        return values[self.relation(knowledge, answer)] if with_nli else None


@pytest.mark.parametrize("with_nli", [False, True])
def test_q2_equals_the_published_pipeline(folders, with_nli):
    answers, rows = [*ANSWERS, "of the"], [*ROWS, ROWS[0]]
    published, scores = Published(folders["nli"]), []
    for answer, row in zip(answers, rows, strict=True):
        scores.append(published.score(answer, row["columns"]["knowledge"], with_nli))
    assert published.seen.keys() >= {"equal", "partial", "different", "no question"}
    assert not with_nli or published.seen.keys() >= {"entailment", "contradiction", "neutral"}
    known = [score for score in scores if score is not None]
    metric = f"q2 {PARTS}" + f" nli={folders['nli']}" * with_nli
    found = score_answers(metric, answers, [[""]] * len(answers), rows)
    assert found == pytest.approx(sum(known) / len(known))  # the order of sums differs


def test_questions_and_answers_by_models_equal_a_loop_over_their_outputs(folders):
    metric = build_metric(f"q2 questions={folders['questions']} answers={folders['answers']}")
    assert not list(metric.parameters())
    tokenizer = BertTokenizer.from_pretrained(folders["answers"])
    reader = BertForQuestionAnswering.from_pretrained(folders["answers"]).eval()
    spans = set()
    for answer, row in zip(ANSWERS, ROWS, strict=True):
        asked = tokenizer(answer, row["columns"]["knowledge"], return_tensors="pt")
        with torch.no_grad():
            found = reader(**asked)
        span = slice(int(found.start_logits[0].argmax()), int(found.end_logits[0].argmax()) + 1)
        words = [WORDS[i] for i in asked["input_ids"][0].tolist()[span]]
        expected = " ".join(word for word in words if word not in WORDS[:4])
        assert metric._answers.answer(answer, row["columns"]["knowledge"]) == expected
        spans.add(expected)
    assert len(spans) > 3
    generator = T5ForConditionalGeneration.from_pretrained(folders["questions"]).eval()
    asked = tokenizer("answer: paris  context: old paris", return_tensors="pt")
    beams = {"num_beams": 5, "num_return_sequences": 5, "early_stopping": True}
    beams |= {"no_repeat_ngram_size": 3, "max_length": 128}
    ids = generator.generate(asked["input_ids"], **beams)
    expected = [tokenizer.decode(one, skip_special_tokens=True) for one in ids]
    assert metric._questions.ask("paris", "old paris") == expected
    assert len({*expected}) > 1


def test_candidates_lie_between_function_words():
    found = Asking().candidates("In 1889, Gustave Eiffel's tower cost 6.5 million, I think.")
    assert list(found) == ["1889", "Gustave Eiffel's tower cost 6.5 million", "think"]


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("q2 questions={questions}", r"'q2 questions=... answers=... \[nli=...\]'"),
        ("q2 questions=x answers={answers}", r"questions \('x'\) must be a folder with a question"),
        ("q2 questions={questions} answers=absent:X", "named by a saved file"),
        ("q2 questions={questions} answers={answers} nli={answers}", "must have the labels"),
    ],
)
def test_wrong_settings_are_reported(folders, metric, message):
    with pytest.raises(ValueError, match=message):
        build_metric(metric.format(**folders))
