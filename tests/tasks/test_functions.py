"""The odd tasks, with expected lines written by hand from the description of each."""

import numpy as np
import pytest

from mttl.io.errors import TaskError
from mttl.tasks.convert import convert
from mttl.tasks.functions import FUNCTIONS
from mttl.tasks.task_file import crossfit

NOTICE = (
    "This article's plot summary may be too long or excessively detailed. Please help improve it "
    "by removing unnecessary details and making it more concise."
)
ANN = {"AnswersName": [["ann"]]}


def lines(name, records):
    return list(convert(crossfit()[name], "train", records))


def table(names, *rows):
    return [dict(zip(names.split(), row, strict=True)) for row in rows]


def multirc(question, answer, label, text="Which\nway?"):
    index = {"paragraph": 0, "question": question, "answer": 0}
    own = {"question": text, "paragraph": "It\tgoes.", "answer": answer, "label": label}
    return {"idx": index, **own}


def bio(headers, contents, target="Ann\nwas."):
    table = {"column_header": headers, "content": contents, "row_number": [1] * len(headers)}
    return {"input_text": {"context": " ann lee\n", "table": table}, "target_text": target}


CASES = {
    "acronym_identification": (
        table(
            "tokens labels",
            (["The", "long", "term", "memory", "(", "LTM", ")", "net"], [4, 0, 2, 2, 4, 1, 4, 4]),
            (list("ABCD"), [1, 3, 0, 4]),
            (list("ABC"), [1, 4, 4]),  # no long form
            (list("ABCD"), [1, 1, 0, 4]),  # two acronyms
        ),
        [
            ("The long term memory ( LTM ) net [SEP] acronym: LTM", "long term memory"),
            ("A B C D [SEP] acronym: A B", "C"),
        ],
    ),
    "aqua_rat": (
        table(
            "question options correct",
            ("How\nmany?", ["A)21", "B) 3", "C)x y"], "C"),
            ("Why?", ["A)1", "B)2"], "B"),
        ),
        [("How many? (A) 21 (B)  3 (C) x y", "x y"), ("Why? (A) 1 (B) 2", "2")],
    ),
    "common_gen": (
        table(
            "concept_set_idx concepts target",
            (7, ["dog", "run"], "A dog runs."),
            (8, ["cat", "sit"], "A cat sits."),
            (7, ["dog", "run"], "The dog ran."),
        ),
        [("dog, run", "A dog runs.", "The dog ran."), ("cat, sit", "A cat sits.")],
    ),
    "duorc": (
        table(
            "question plot answers no_answer",
            ("Who?", "Ann\n met  Bo.", ["Bo", "Bo\n", "Bo"], False),
            ("Who?", "Ann.", [], True),
            ("Who?", NOTICE + " Ann.", ["a"], False),
            (" When ?", "Then.", ["then"], False),
        ),
        [
            ("question: Who? context: Ann met Bo.", "Bo", "Bo"),
            ("question: When ? context: Then.", "then"),
        ],
    ),
    "empathetic_dialogues": (
        table(
            "utterance prompt context",
            ("Well done_comma_ you\n", "I won_comma_ at last", "proud"),
            ("No hit:3", "I won_comma_ at last", "proud"),
            ("Oh", "I lost", "sad"),
            ("Thanks\tall", "I won_comma_ at last", "proud"),
        ),
        [
            ("I won, at last [SEP] proud", "Well done, you ", "Thanks all"),
            ("I lost [SEP] sad", "Oh"),
        ],
    ),
    "freebase_qa": (
        table(
            "RawQuestion Parses",
            ("Who?", {"Answers": [{"AnswersName": [["zoe", "Bo"], ["ann"]]}, ANN]}),
            ("What?", [{"Answers": [{"AnswersName": ["b"]}, {"AnswersName": ["a"]}]}]),
            ("Not parsed", None),
        ),
        [("Who?", "Bo", "ann", "zoe"), ("What?", "a", "b")],
    ),
    "google_wellformed_query": (
        table(
            "content rating",
            (" what is it \n", 0.2),
            ("What is it?", float(np.float32(0.6))),
            ("what", 0.5),
            ("what", 0.6),
        ),
        [("what is it", "not well-formed"), ("What is it?", "well-formed")],
    ),
    "hatexplain": (
        table(
            "post_tokens annotators",
            (["a", "b"], {"label": [0, 2, 2]}),
            (["c"], {"label": [0, 1, 2]}),
            (["d", "e"], [{"label": 1}, {"label": 1}]),
        ),
        [("a b", "offensive"), ("d e", "normal")],
    ),
    "hotpot_qa": (
        table(
            "question answer supporting_facts context",
            (
                "Who?",
                "Bo",
                {"title": ["B", "A", "B"], "sent_id": [0, 0, 1]},
                {"title": ["A", "X", "B"], "sentences": [["One.", " Two."], ["No."], [" Three. "]]},
            ),
            ("Where?", "here", [{"title": "X"}], [{"title": "X", "sentences": ["It is here."]}]),
        ),
        [
            ("question: Who? context: One. Two.  Three.", "Bo"),
            ("question: Where? context: It is here.", "here"),
        ],
    ),
    "lama-trex": (
        table(
            "template sub_label obj_label",
            ("[X] is in [Y] .", "Rome", "Italy"),
            ("[Y] owns [X] .", "A [Y]", "B"),
        ),
        [("Rome is in [MASK] .", "Italy"), ("[MASK] owns A [MASK] .", "B")],
    ),
    "limit": (
        table(
            "sentence motion motion_entities",
            (" A dog and a cat run. ", "yes", [{"entity": "dog", "index": 3}, {"entity": "cat"}]),
            ("Stones lie.", "no", []),
            ("It falls.", "yes", {"entity": ["It"]}),
        ),
        [("A dog and a cat run.", "dog [SEP] cat"), ("It falls.", "It")],
    ),
    "math_qa": (
        table(
            "Problem correct options",
            ("2 x 19 = ?", "a", "a ) 38 , b ) 27.675 , c ) 30 , d ) no data , e ) none of these"),
            ("?", "e", "a ) 1 , b ) 2 , c ) 3 , d ) 4 , e ) 5"),
            ("?", "b", "a ) 1 , b )  , c ) 3 , d ) 4 , e ) 5"),
            ("?", "c", "a ) 1,000 , b ) 2 , c ) 3 , d ) 4 , e ) 5"),
        ),
        [
            ("2 x 19 = ? (A) 38 (B) 27.675 (C) 30 (D) no data (E) none of these", "38"),
            ("? (A) 1 (B) 2 (C) 3 (D) 4 (E) 5", "5"),
            ("? (A)  (B)  (C) 2 (D) 3 (E) 4 ", "2"),
        ],
    ),
    "mocha": (
        table("question context reference candidate score", (*"qcrd", 4.0), (*"qcrd", 4.5)),
        [("question: q [SEP] context: c [SEP] reference: r [SEP] candidated", "4")],
    ),
    "numer_sense": (
        table("sentence target", ("A car has <mask> wheels.", "four"), ("<mask> is it.", "one")),
        [("A car has [MASK] wheels.", "four"), ("[MASK] is it.", "one")],
    ),
    "onestop_english": (
        table("text label", ("Intermediate \nWhen you\nsee", 1), ("Intermediate When", 2)),
        [("When you see", "intermediate"), ("Intermediate When", "advance")],
    ),
    "proto_qa": (
        table(
            "question answers",
            ({"normalized": "name a pet"}, {"raw": {"dog": 7, "cat": 3}}),
            ({"normalized": "name a day"}, {"raw": {"monday": 1}}),
        ),
        [("name a pet", "dog", "cat"), ("name a day", "monday")],
    ),
    "quarel": (
        table(
            "question answer_index",
            ("Is it (A) warmer or (B) colder", 0),
            ("Is it (A) warmer or (B) colder", 1),
            ("Which floor (A) the door (B) the sofa or ", 1),
        ),
        [
            ("Is it (A) warmer or (B) colder", "warmer"),
            ("Is it (A) warmer or (B) colder", "colder"),
            ("Which floor (A) the door (B) the sofa or ", "the sofa"),
        ],
    ),
    "scicite": (
        table(
            "string citeStart citeEnd sectionName label",
            ("As in (Li, 2019),\nwe do.", 6, 16, "2\tMethods ", 0),
            ("So (A) says", 3, 6, "", 2),
        ),
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
        table("text label", ("bad\\nplace\n", 0), ("good", 4)),
        [("bad place\n", "1"), ("good", "5")],
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
    for n, (line, is_first) in enumerate(zip(found, [False, *[True] * 3, False], strict=True)):
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
        ("quarel", {"question": "(A) or (B)", "answer_index": -1}, "malformed for 'quarel_answer'"),
        ("yelp_review_full", {"text": "t", "label": -1}, "malformed for 'stars'"),
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
