"""The metric Q²: questions about an answer, answered from the knowledge."""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cache, partial
from statistics import fmean
from typing import Any

import torch
from transformers import AutoModelForQuestionAnswering, AutoModelForSeq2SeqLM

from mttl.metrics.answer_scores import normalise, plain_words, word_f1
from mttl.metrics.grounding import KnowledgeMetric
from mttl.metrics.judges import load_classifier, load_model, local_config
from mttl.plugins.classes import ANSWERS, QUESTIONS, Family, find_class, make

_N_QUESTIONS = 5  # beams and questions of a candidate, as in the published code
_PERSONAL = frozenset(("i", "you", "my", "your"))
_RELATIONS = {"entailment": 1.0, "contradiction": 0.0}
_BETWEEN = re.compile(
    r"""(?xi) [,;:!?()"]+ | \.(?=\s|$) | \b(?:
    an?|the|and|or|but|so|of|in|on|at|by|to|for|from|with|as|into|about|there|not|no|than|like
    |i|you|he|she|it|we|they|me|him|her|us|them|my|your|his|its|our|their|this|that|these|those
    |am|is|are|was|were|be|been|has|have|had|do|does|did|can|could|will|would|should|may|might
    |what|when|where|which|who|how|if|then|also|more|some|called)\b"""
)


class Questions(ABC):
    """Base class of question generators."""

    def candidates(self, text: str) -> Iterable[str]:
        """Return parts of a text to ask for: those between English function words."""
        return [part.strip() for part in _BETWEEN.split(text) if re.search(r"\w", part)]

    @abstractmethod
    def ask(self, candidate: str, text: str) -> Sequence[str]:
        """Return questions about a text whose answer is the candidate, the best first."""


class Answers(ABC):
    """Base class of question answerers."""

    @abstractmethod
    def answer(self, question: str, text: str) -> str:
        """Return the answer that a text gives, empty if there is none."""


class GeneratedQuestions(Questions):
    """Questions by beam search of a sequence-to-sequence model in a local folder."""

    def __init__(self, folder: str) -> None:
        self._load = cache(partial(load_model, AutoModelForSeq2SeqLM, folder))

    def ask(self, candidate: str, text: str) -> Sequence[str]:
        model, tokenizer, lengths = self._load()
        asked = tokenizer(f"answer: {candidate}  context: {text}", return_tensors="pt", **lengths)
        n: dict[str, Any] = {"num_beams": _N_QUESTIONS, "num_return_sequences": _N_QUESTIONS}
        n |= {"no_repeat_ngram_size": 3, "max_length": 128, "early_stopping": True}
        inputs = {key: asked[key].to(model.device) for key in ("input_ids", "attention_mask")}
        ids = model.generate(**inputs, **n, do_sample=False)
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
        return [text.replace("question: ", "", 1) for text in texts]


class ExtractedAnswers(Answers):
    """Answers from the likeliest start to the likeliest end by a model in a local folder."""

    def __init__(self, folder: str) -> None:
        self._load = cache(partial(load_model, AutoModelForQuestionAnswering, folder))

    def answer(self, question: str, text: str) -> str:
        model, tokenizer, lengths = self._load()
        asked = tokenizer(question, text, return_tensors="pt", **lengths).to(model.device)
        with torch.no_grad():
            found = model(**asked)
        start, end = int(found.start_logits.argmax()), int(found.end_logits.argmax())
        # The first token, [CLS], stands for no answer.
        ids = asked["input_ids"][0, start : end + 1]
        return tokenizer.decode(ids, skip_special_tokens=True).strip()


class Q2(KnowledgeMetric):
    """Q²: mean agreement of the answer with the knowledge on questions about the answer.

    A question is valid if it is not personal and the answer to it from the text is the candidate;
    the first valid one counts. Its score is the F1 of the candidate's and the knowledge's words, 0
    without an answer. Unequal answers score 1 or 0 if ``nli`` calls them entailed or contradictory.
    Answers without a valid question are scored by ``nli`` (neutral ones 0.5), or left out.

    Args:
        questions: Question generator: folder of a sequence-to-sequence model, or module:Class.
        answers: Question answerer: folder of an extractive model, or module:Class.
        nli: Folder of a sequence classifier with the labels entailment and contradiction.

    References:
        Honovich, Choshen, Aharoni, Neeman, Szpektor and Abend, *Q²: Evaluating Factual Consistency
        in Knowledge-Grounded Dialogues via Question Generation and Question Answering*, EMNLP
        2021, arXiv:2104.08202; run_pipeline.py and run_nli.py of orhonovich/q-squared.
    """

    def __init__(self, *, questions: str, answers: str, nli: str = "") -> None:
        super().__init__()
        self._questions: Questions = _part(QUESTIONS, questions, GeneratedQuestions)
        self._answers: Answers = _part(ANSWERS, answers, ExtractedAnswers)
        if nli:
            labels = local_config("nli", nli, "a sequence classifier").id2label.values()
            if lacking := _RELATIONS.keys() - {str(label).lower() for label in labels}:
                raise ValueError(f"nli ('{nli}') must have the labels {', '.join(sorted(lacking))}")
        self._nli = cache(partial(load_classifier, nli)) if nli else None

    def compare(self, answer: str, reference: str) -> float:
        candidates = {one.lower(): one for one in self._questions.candidates(answer)}
        scores = [self._agreement(one, answer, reference) for one in candidates.values()]
        valid = [score for score in scores if score is not None]
        if valid or self._nli is None:
            return fmean(valid) if valid else math.nan
        return _RELATIONS.get(self._relation(reference.lower(), answer.lower()), 0.5)

    def score(self, rows: Sequence[float]) -> float:
        known = [row for row in rows if not math.isnan(row)]
        return super().score(known) if known else math.nan

    def _agreement(self, candidate: str, answer: str, text: str) -> float | None:
        for question in self._questions.ask(candidate, answer):
            given = self._answers.answer(question, answer)
            is_personal = not _PERSONAL.isdisjoint(plain_words(question))
            if not given or is_personal or _clean(given) != _clean(candidate):
                continue
            found = self._answers.answer(question, text)
            f1 = word_f1(candidate, found, _clean)
            if f1 == 1 or not found or self._nli is None:
                return f1
            relation = self._relation(f"{question} {found}.", f"{question} {candidate}.")
            return _RELATIONS.get(relation, f1)
        return None

    def _relation(self, premise: str, hypothesis: str) -> str:
        assert self._nli is not None
        return self._nli()(premise, hypothesis).lower()


def _part(family: Family, name: str, of_folder: type[Any]) -> Any:
    if family.is_plugin(name):
        return make(find_class(family, name), {}, {})
    local_config(family.name, name, family.title)
    return of_folder(name)


def _clean(text: str) -> str:
    return " ".join(word for word in normalise(text).split() if word not in ("in", "our"))
