"""Q² by small random models, beside a plain loop of the published code, and by custom parts."""

import math
import random
import re
import string
import sys
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
ANSWERS = [" ".join(DRAW.choices(WORDS[4:], k=3)) for _ in range(20)]
ROWS = [{"columns": {"knowledge": " ".join(DRAW.choices(WORDS[4:], k=5))}} for _ in ANSWERS]
REFERENCES = [[""]] * len(ANSWERS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    (place / "words.txt").write_text("\n".join(WORDS))
    sizes = {"vocab_size": len(WORDS), "hidden_size": 16, "intermediate_size": 24}
    sizes |= {"num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 160}
    labels = dict(enumerate(("contradiction", "entailment", "neutral")))
    names = {"id2label": labels, "label2id": {name: n for n, name in labels.items()}}
    models = {
        "questions": tiny_t5(vocab_size=len(WORDS)),
        "answers": BertForQuestionAnswering(BertConfig(**sizes)),
        "nli": BertForSequenceClassification(BertConfig(**sizes, **names)),
    }
    for name, model in models.items():
        fill(model, 3)  # of this seed, all branches of the loop occur
        model.save_pretrained(place / name)
        BertTokenizer(str(place / "words.txt")).save_pretrained(place / name)
    return {name: place / name for name in models}


class Published:
    """The pipeline of orhonovich/q-squared, with beams, one question a candidate, not personal."""

    def __init__(self, folders) -> None:
        self.generator = T5ForConditionalGeneration.from_pretrained(folders["questions"]).eval()
        self.reader = BertForQuestionAnswering.from_pretrained(folders["answers"]).eval()
        self.nli = BertForSequenceClassification.from_pretrained(folders["nli"]).eval()
        self.tokenizer = BertTokenizer.from_pretrained(folders["nli"])
        self.branches: Counter[str] = Counter()

    def clean(self, text):
        text = text.lower().translate(str.maketrans("", "", string.punctuation))
        return re.sub(" +", " ", re.sub(r"\b(a|an|the|in|our)\b", " ", text)).strip()

    def f1(self, gold, found):
        ours, theirs = self.clean(gold).split(), self.clean(found).split()
        same = sum((Counter(ours) & Counter(theirs)).values())
        return 2 * same / (len(ours) + len(theirs)) if same else 0

    def questions(self, candidate, text):
        asked = self.tokenizer(f"answer: {candidate}  context: {text}", return_tensors="pt")
        asked.pop("token_type_ids", None)
        beams = {"num_beams": 5, "num_return_sequences": 5, "early_stopping": True}
        found = self.generator.generate(**asked, **beams, no_repeat_ngram_size=3, max_length=128)
        return [self.tokenizer.decode(ids, skip_special_tokens=True) for ids in found]

    def answer(self, question, text):
        asked = self.tokenizer(question, text, return_tensors="pt")
        found = self.reader(**asked)
        span = slice(int(found.start_logits[0].argmax()), int(found.end_logits[0].argmax()) + 1)
        tokens = [WORDS[i] for i in asked["input_ids"][0].tolist()[span]]
        return " ".join(token for token in tokens if token not in WORDS[:4])

    def relation(self, *pair):
        logits = self.nli(**self.tokenizer(*pair, return_tensors="pt")).logits[0]
        return int(logits.argmax())

    @torch.no_grad()
    def score(self, answer, knowledge, with_nli):
        scores = []
        for candidate in re.sub(r"\b(the|of)\b", ",", answer).split(","):
            for question in self.questions(candidate.strip(), answer) if candidate.strip() else ():
                given = self.answer(question, answer)
                if given == "" or self.clean(given) != self.clean(candidate):
                    continue
                found = self.answer(question, knowledge)
                score = self.f1(candidate, found)
                kind = "equal" if score == 1 else "partial" if score else "different"
                self.branches[kind if found else "none"] += 1
                if with_nli and score < 1 and found:
                    pair = (f"{question} {found}.", f"{question} {candidate.strip()}.")
                    score = {0: 0, 1: 1, 2: score}[self.relation(*pair)]
                scores.append(score)
                break
        if scores:
            return sum(scores) / len(scores)
        self.branches["no question"] += 1
        return {0: 0, 1: 1, 2: 0.5}[self.relation(knowledge, answer)] if with_nli else None


@pytest.mark.parametrize("with_nli", [False, True])
def test_q2_equals_the_published_pipeline(folders, with_nli):
    names = ["questions", "answers"] + ["nli"] * with_nli
    metric = "q2 " + " ".join(f"{name}={folders[name]}" for name in names)
    published = Published(folders)
    pairs = zip(ANSWERS, ROWS, strict=True)
    scores = [published.score(one, row["columns"]["knowledge"], with_nli) for one, row in pairs]
    known = [score for score in scores if score is not None]
    print(published.branches, scores)
    assert published.branches.keys() >= {"equal", "different", "no question"}
    # The score is a mean of equal numbers in the same order.
    assert score_answers(metric, ANSWERS, REFERENCES, ROWS) == pytest.approx(
        sum(known) / len(known)
    )
    assert not list(build_metric(metric).parameters())


class Listed(Questions):
    """Asks for every candidate, first in a personal way."""

    def ask(self, candidate, text):
        return ["What do you say?", f"Where is {candidate}?"]


class Longest(Answers):
    """The word that is asked for if the text has it, else the text's last word."""

    def answer(self, question, text):
        words = text.rstrip(".").split()
        asked = question.rstrip("?").split()[-1]
        return asked if asked in words else words[-1] if len(words) > 1 else ""


@pytest.mark.parametrize(
    ("answer", "knowledge", "expected"),
    [
        ("It is in Paris.", "The tower is in Paris.", 1),
        ("It is in Paris.", "The tower is in Rome.", 0),
        ("Paris and Rome", "Rome has it", 0.5),
        ("It is in the", "The tower is in Paris.", math.nan),
        ("It is in Paris.", "Rome", 0),  # the knowledge has no answer
    ],
)
def test_custom_parts(answer, knowledge, expected):
    metric = f"q2 questions={__name__}:Listed answers={__name__}:Longest"
    assert __name__ in sys.modules  # otherwise --trust is needed
    found = score_answers(metric, [answer], [[""]], [{"columns": {"knowledge": knowledge}}])
    assert found == pytest.approx(expected, nan_ok=True)


def test_candidates_lie_between_function_words():
    found = Longest, list(Listed().candidates("In 1889, Gustave Eiffel's tower cost 6.5 million."))
    assert found[1] == ["1889", "Gustave Eiffel's tower cost 6.5 million"]


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
