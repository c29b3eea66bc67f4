"""The odd tasks, with expected lines written by hand from the description of each."""

import numpy as np
import pytest

from mttl.io.errors import TaskError
from mttl.tasks.convert import convert
from mttl.tasks.functions import FUNCTIONS
from mttl.tasks.table import crossfit

NOTICE = (
    "This article's plot summary may be too long or excessively detailed. Please help improve it "
    "by removing unnecessary details and making it more concise."
)


def lines(name, records):
    return list(convert(crossfit()[name], "train", records))


def multirc(question, answer, label, text="Which\nway?", paragraph="It\tgoes."):
    index = {"paragraph": 0, "question": question, "answer": 0}
    return {
        "idx": index,
        "question": text,
        "paragraph": paragraph,
        "answer": answer,
        "label": label,
    }


def hit(utterance, prompt="I won_comma_ at last", context="proud"):
    return {"utterance": utterance, "prompt": prompt, "context": context}


def quarel(question, index):
    return {"question": question, "answer_index": index}


def bio(headers, contents, target="Ann\nwas."):
    table = {"column_header": headers, "content": contents, "row_number": [1] * len(headers)}
    return {"input_text": {"context": " ann lee\n", "table": table}, "target_text": target}


CASES = {
    "acronym_identification": (
        [
            {
                "tokens": ["The", "long", "short", "term", "memory", "(", "LSTM", ")", "net"],
                "labels": [4, 0, 2, 2, 2, 4, 1, 4, 4],
            },
            {"tokens": ["A", "B", "C", "D"], "labels": [1, 3, 0, 4]},
            {"tokens": ["A", "B", "C"], "labels": [1, 4, 4]},  # no long form
            {"tokens": ["A", "B", "C", "D"], "labels": [1, 1, 0, 4]},  # two acronyms
        ],
        [
            (
                "The long short term memory ( LSTM ) net [SEP] acronym: LSTM",
                "long short term memory",
            ),
            ("A B C D [SEP] acronym: A B", "C"),
        ],
    ),
    "aqua_rat": (
        [
            {"question": "How\nmany?", "options": ["A)21", "B) 3", "C)x y"], "correct": "C"},
            {"question": "Why?", "options": ["A)1", "B)2"], "correct": "B"},
        ],
        [("How many? (A) 21 (B)  3 (C) x y", "x y"), ("Why? (A) 1 (B) 2", "2")],
    ),
    "common_gen": (
        [
            {"concept_set_idx": 7, "concepts": ["dog", "run"], "target": "A dog runs."},
            {"concept_set_idx": 8, "concepts": ["cat", "sit"], "target": "A cat sits."},
            {"concept_set_idx": 7, "concepts": ["dog", "run"], "target": "The dog ran."},
        ],
        [("dog, run", "A dog runs.", "The dog ran."), ("cat, sit", "A cat sits.")],
    ),
    "duorc": (
        [
            {
                "question": "Who?",
                "plot": "Ann\n met  Bo.",
                "answers": ["Bo", "Bo\n", "Bo"],
                "no_answer": False,
            },
            {"question": "Who?", "plot": "Ann.", "answers": [], "no_answer": True},
            {"question": "Who?", "plot": NOTICE + " Ann.", "answers": ["a"], "no_answer": False},
            {"question": " When ?", "plot": "Then.", "answers": ["then"], "no_answer": False},
        ],
        [
            ("question: Who? context: Ann met Bo.", "Bo", "Bo"),
            ("question: When ? context: Then.", "then"),
        ],
    ),
    "empathetic_dialogues": (
        [
            hit("Well done_comma_ you\n"),
            hit("No hit:3"),
            hit("Oh", prompt="I lost", context="sad"),
            hit("Thanks\tall"),
        ],
        [
            ("I won, at last [SEP] proud", "Well done, you ", "Thanks all"),
            ("I lost [SEP] sad", "Oh"),
        ],
    ),
    "freebase_qa": (
        [
            {
                "RawQuestion": "Who?",
                "Parses": {
                    "Answers": [
                        {"AnswersName": [["zoe", "Bo"], ["ann"]]},
                        {"AnswersName": [["ann"]]},
                    ]
                },
            },
            {
                "RawQuestion": "What?",
                "Parses": [{"Answers": [{"AnswersName": ["b"]}, {"AnswersName": ["a"]}]}],
            },
            {"RawQuestion": "Not parsed", "Parses": None},
        ],
        [("Who?", "Bo", "ann", "zoe"), ("What?", "a", "b")],
    ),
    "google_wellformed_query": (
        [
            {"content": " what is it \n", "rating": 0.2},
            {"content": "What is it?", "rating": float(np.float32(0.6))},
            {"content": "what", "rating": 0.5},
            {"content": "what", "rating": 0.6},
        ],
        [("what is it", "not well-formed"), ("What is it?", "well-formed")],
    ),
    "hatexplain": (
        [
            {"post_tokens": ["a", "b"], "annotators": {"label": [0, 2, 2]}},
            {"post_tokens": ["c"], "annotators": {"label": [0, 1, 2]}},
            {"post_tokens": ["d", "e"], "annotators": [{"label": 1}, {"label": 1}]},
        ],
        [("a b", "offensive"), ("d e", "normal")],
    ),
    "hotpot_qa": (
        [
            {
                "question": "Who?",
                "answer": "Bo",
                "supporting_facts": {"title": ["B", "A", "B"], "sent_id": [0, 0, 1]},
                "context": {
                    "title": ["A", "X", "B"],
                    "sentences": [["One.", " Two."], ["No."], [" Three. "]],
                },
            },
            {
                "question": "Where?",
                "answer": "here",
                "supporting_facts": [{"title": "X"}],
                "context": [{"title": "X", "sentences": ["It is here."]}],
            },
        ],
        [
            ("question: Who? context: One. Two.  Three.", "Bo"),
            ("question: Where? context: It is here.", "here"),
        ],
    ),
    "lama-trex": (
        [
            {"template": "[X] is in [Y] .", "sub_label": "Rome", "obj_label": "Italy"},
            {"template": "[Y] owns [X] .", "sub_label": "A [Y]", "obj_label": "B"},
        ],
        [("Rome is in [MASK] .", "Italy"), ("[MASK] owns A [MASK] .", "B")],
    ),
    "limit": (
        [
            {
                "sentence": " A dog and a cat run. ",
                "motion": "yes",
                "motion_entities": [{"entity": "dog", "start_index": 3}, {"entity": "cat"}],
            },
            {"sentence": "Stones lie.", "motion": "no", "motion_entities": []},
            {"sentence": "It falls.", "motion": "yes", "motion_entities": {"entity": ["It"]}},
        ],
        [("A dog and a cat run.", "dog [SEP] cat"), ("It falls.", "It")],
    ),
    "math_qa": (
        [
            {
                "Problem": "2 x 19 = ?",
                "correct": "a",
                "options": "a ) 38 , b ) 27.675 , c ) 30 , d ) data inadequate , e ) none of these",
            },
            {"Problem": "?", "correct": "e", "options": "a ) 1 , b ) 2 , c ) 3 , d ) 4 , e ) 5"},
            {"Problem": "?", "correct": "b", "options": "a ) 1 , b )  , c ) 3 , d ) 4 , e ) 5"},
            {
                "Problem": "?",
                "correct": "c",
                "options": "a ) 1,000 , b ) 2 , c ) 3 , d ) 4 , e ) 5",
            },
        ],
        [
            ("2 x 19 = ? (A) 38 (B) 27.675 (C) 30 (D) data inadequate (E) none of these", "38"),
            ("? (A) 1 (B) 2 (C) 3 (D) 4 (E) 5", "5"),
            ("? (A)  (B)  (C) 2 (D) 3 (E) 4 ", "2"),
        ],
    ),
    "mocha": (
        [
            {"question": "q", "context": "c", "reference": "r", "candidate": "d", "score": 4.0},
            {"question": "q", "context": "c", "reference": "r", "candidate": "d", "score": 4.5},
            {"question": "p", "context": "c", "reference": "r", "candidate": "d", "score": 1},
        ],
        [
            ("question: q [SEP] context: c [SEP] reference: r [SEP] candidated", "4"),
            ("question: p [SEP] context: c [SEP] reference: r [SEP] candidated", "1"),
        ],
    ),
    "numer_sense": (
        [
            {"sentence": "A car has <mask> wheels.", "target": "four"},
            {"sentence": "<mask> is it.", "target": "one"},
        ],
        [("A car has [MASK] wheels.", "four"), ("[MASK] is it.", "one")],
    ),
    "onestop_english": (
        [
            {"text": "Intermediate \nWhen you\nsee", "label": 1},
            {"text": "Intermediate When", "label": 2},
        ],
        [("When you see", "intermediate"), ("Intermediate When", "advance")],
    ),
    "proto_qa": (
        [
            {"question": {"normalized": "name a pet"}, "answers": {"raw": {"dog": 7, "cat": 3}}},
            {"question": {"normalized": "name a day"}, "answers": {"raw": {"monday": 1}}},
        ],
        [("name a pet", "dog", "cat"), ("name a day", "monday")],
    ),
    "quarel": (
        [
            quarel("Is it (A) warmer or (B) colder", 0),
            quarel("Is it (A) warmer or (B) colder", 1),
            quarel("Which floor (A) the door (B) the sofa or ", 1),
        ],
        [
            ("Is it (A) warmer or (B) colder", "warmer"),
            ("Is it (A) warmer or (B) colder", "colder"),
            ("Which floor (A) the door (B) the sofa or ", "the sofa"),
        ],
    ),
    "scicite": (
        [
            {
                "string": "As in (Li, 2019),\nwe do.",
                "citeStart": 6,
                "citeEnd": 16,
                "sectionName": "2\tMethods ",
                "label": 0,
            },
            {"string": "So (A) says", "citeStart": 3, "citeEnd": 6, "sectionName": "", "label": 2},
        ],
        [
            ("(Li, 2019) [SEP] As in (Li, 2019), we do. [SEP] 2 Methods", "method"),
            ("(A) [SEP] So (A) says [SEP]", "result"),
        ],
    ),
    "superglue-multirc": (
        [
            multirc(3, "north", 1),
            multirc(3, "so\nuth", 0),
            multirc(4, "no", 0, text="If?"),
            multirc(3, "up\tthere", 1),
        ],
        [
            (
                "question: Which way? (A) north (B) so uth (C) up there context: It goes.",
                "north [SEP] up\tthere",
            ),
            ("question: If? (A) no context: It goes.", "NO ANSWER!"),
        ],
    ),
    "wiki_bio": (
        [
            bio(["name", "born"], ["ann lee\n", " 1 may\n1900 "]),
            bio(["name", "born"], ["ann"]),
            bio(["name"], ["ann"], "Ann."),
        ],
        [
            ("ann lee [SEP] name: ann lee [n] born: 1 may 1900 [n] ", "Ann was."),
            ("ann lee [SEP] name: ann [n] ", "Ann."),
        ],
    ),
    "yelp_review_full": (
        [{"text": "bad\\nplace\n", "label": 0}, {"text": "good", "label": 4}],
        [("bad place\n", "1"), ("good", "5")],
    ),
    "lama-google_re": (
        [
            {"template": "[X] (born [Y]).", "sub_label": "Ann", "obj_label": "1941"},
            {"template": "[X] died in [Y] .", "sub_label": "Bo", "obj_label": "Rome"},
        ],
        [("Ann (born [MASK]).", "1941"), ("Bo died in [MASK] .", "Rome")],
    ),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_lines(name):
    records, expected = CASES[name]
    assert lines(name, records) == expected


@pytest.mark.parametrize(
    ("name", "better", "worse"),
    [(name, "sentence_good", "sentence_bad") for name in crossfit() if name.startswith("blimp-")]
    + [("crows_pairs", "sent_more", "sent_less")],
)
def test_the_order_of_two_sentences_is_drawn(name, better, worse):
    """The first numbers of the seed are 0.37, 0.95, 0.73, 0.60 and 0.16."""
    records = [{better: f"good {n}", worse: f"bad {n}"} for n in range(5)]
    found = lines(name, records)
    first = [True] * 5
    first[0] = first[4] = False
    for n, (line, is_first) in enumerate(zip(found, first, strict=True)):
        one, two = (f"good {n}", f"bad {n}") if is_first else (f"bad {n}", f"good {n}")
        assert line == (
            f"sentence 1: {one} [SEP] sentence 2: {two}",
            "sentence 1" if is_first else "sentence 2",
        )
    assert lines(name, records) == found  # seeded again for every split


def test_answers_of_sciq_are_shuffled_where_the_row_is_kept():
    def record(n, support):
        answers = {f"distractor{i}": f"wrong {n}{i}" for i in (1, 2, 3)}
        return {**answers, "correct_answer": f"right {n}", "question": "q\n", "support": support}

    state = np.random.get_state()
    try:  # the generator of the whole program, as CrossFit uses it
        np.random.seed(42)
        orders = [np.array([0, 1, 2, 3]) for _ in range(3)]
        for order in orders:
            np.random.shuffle(order)
    finally:
        np.random.set_state(state)
    records = [record(0, "s"), record(1, ""), record(2, "t\nu"), record(3, "v")]
    expected = []
    for (n, support), order in zip([(0, "s"), (2, "t u"), (3, "v")], orders, strict=True):
        texts = [f"wrong {n}1", f"wrong {n}2", f"wrong {n}3", f"right {n}"]
        a, b, c, d = (texts[i] for i in order)
        expected.append((f"q  (A) {a} (B) {b} (C) {c} (D) {d} [SEP] {support}", f"right {n}"))
    assert lines("sciq", records) == expected


@pytest.mark.parametrize(
    ("name", "records", "kept"),
    [
        ("circa", [{"goldstandard2": n} for n in (-1, 0, 4)], [1, 2]),
        ("health_fact", [{"label": n} for n in (3, -1, 0)], [0, 2]),
        ("hate_speech18", [{"label": n} for n in (2, 0, 3, 1)], [1, 3]),
        ("tweet_eval-irony", [{"text": t, "label": 0} for t in (" \\n ", "x", "")], [1]),
        ("wino_grande", [{"answer": a} for a in ("", "1", "2")], [1, 2]),
    ],
)
def test_rows_kept(name, records, kept):
    blank = {
        "circa": ("context", "question-X", "answer-Y"),
        "health_fact": ("claim",),
        "wino_grande": ("sentence", "option1", "option2"),
    }.get(name, ("text",))
    whole = [{**dict.fromkeys(blank, f"row {n}"), **record} for n, record in enumerate(records)]
    assert len(lines(name, whole)) == len(kept)
    assert lines(name, whole) == lines(name, [whole[n] for n in kept])


@pytest.mark.parametrize(
    ("name", "record", "message"),
    [
        ("aqua_rat", {"question": "q", "options": ["A)1"], "correct": "E"},
         "malformed for 'aqua_options'"),
        ("math_qa", {"Problem": "p", "options": "a,b,c,d,e", "correct": "f"},
         "malformed for 'math_options'"),
        ("quarel", quarel("(A) or (B)", 2), "the field 'answer_index' is 2; it must be 0 or 1"),
        ("yelp_review_full", {"text": "t", "label": 5}, "the field 'label' is 5; .* from 0 to 4"),
        ("superglue-multirc", multirc(1, "a", 2), "the field 'label' is 2; it must be 0 or 1"),
        ("hotpot_qa", {"question": "q"}, "the field 'supporting_facts' is missing"),
        ("mocha", {"score": "high"}, r"the record is malformed for 'whole_score' \(ValueError"),
    ],
)  # fmt: skip
def test_malformed_records(name, record, message):
    good = CASES[name][0][0]
    with pytest.raises(TaskError, match=f"task '{name}', split 'train', row 2: .*{message}"):
        lines(name, [good, record])


def test_every_function_is_used():
    assert set(FUNCTIONS) == {task.prepare for task in crossfit().values()} - {None}
