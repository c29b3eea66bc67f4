"""Functions for records that templates cannot convert: the key `prepare` of tasks.

A function takes and yields the numbered records of a split in order; it may add fields, drop
records or merge several. It is called once per split, so random numbers follow the row order.

The formats are those of CrossFit (Ye, Lin and Ren, EMNLP 2021, arXiv:2104.08835), including its
peculiarities, so that its published files are reproduced.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mttl.tasks.filters import FieldError, shown
from mttl.tasks.template import Record

Rows = Iterator[tuple[int, Record]]
Prepare = Callable[[Rows], Rows]

_SEED = 42
_SUMMARY_NOTICE = (
    "This article's plot summary may be too long or excessively detailed. Please help improve it "
    "by removing unnecessary details and making it more concise."
)


def each(function: Callable[[Any], Record | None]) -> Prepare:
    """Turn a function of one record into one of all; fields are added, None drops the record."""

    def prepare(rows: Rows) -> Rows:
        for number, record in rows:
            added = function(record)
            if added is not None:
                yield number, {**record, **added}

    return prepare


def acronym(record: Record) -> Record | None:
    """Return the one acronym and its long form; tags: 0 B-long, 1 B-short, 2 I-long, 3 I-short."""
    tags = record["labels"]
    if tags.count(0) != 1 or tags.count(1) != 1:
        return None

    def span(begin: int, inside: int) -> str:
        start = end = tags.index(begin)
        while end + 1 < len(tags) and tags[end + 1] == inside:
            end += 1
        return " ".join(record["tokens"][start : end + 1])

    return {"short": span(1, 3), "long": span(0, 2)}


def aqua_options(record: Record) -> Record:
    """Format options such as ``A)21`` as `` (A) 21``, and return the right one."""
    options = record["options"]
    right = [option[2:] for option in options if option[:1] == record["correct"]]
    written = "".join(f" ({option[:2]} {option[2:]}" for option in options)
    return {"written": written, "answer": right[0]}


def freebase_answers(record: Record) -> Record | None:
    """Return the sorted names of all answers of all parses."""
    if record.get("RawQuestion") is None or record.get("Parses") is None:
        return None
    parses = _column(record["Parses"], "Answers")
    groups = (names for answers in parses for names in _column(answers, "AnswersName"))
    return {"names": sorted(set().union(*groups))}


def hotpot_paragraphs(record: Record) -> Record:
    """Return the paragraphs of the supporting facts."""
    titles, context = set(_column(record["supporting_facts"], "title")), record["context"]
    paragraphs = zip(_column(context, "title"), _column(context, "sentences"), strict=True)
    text = " ".join("".join(sentences) for title, sentences in paragraphs if title in titles)
    return {"paragraphs": text.strip()}


def majority_label(record: Record) -> Record | None:
    """Return the most frequent label; posts with a tie are dropped."""
    counts = Counter(_column(record["annotators"], "label")).most_common(2)
    if len(counts) == 2 and counts[0][1] == counts[1][1]:
        return None
    return {"label": counts[0][0]}


def math_options(record: Record) -> Record | None:
    """Split ``a ) 38 , b ) 27 , ...`` at commas; a comma in an option shifts the following ones."""
    pieces = record["options"].split(",")
    choices = [pieces[0][4:-1], *(piece[5:-1] for piece in pieces[1:4]), pieces[4][5:]]
    answer = choices["abcde".index(record["correct"])]
    return {"choices": choices, "answer": answer} if answer else None


def quarel_answer(record: Record) -> Record:
    """Return the right answer from a question with both, after ``(A)`` and ``(B)``."""
    question = record["question"]
    start_a, start_b = question.index("(A)"), question.index("(B)")
    answers = question[start_a + 4 : start_b], question[start_b + 4 :]
    return {"answer": answers[(0, 1).index(record["answer_index"])].removesuffix("or ").strip()}


def wiki_table(record: Record) -> Record | None:
    """Format a table as ``header: content [n] `` per row."""
    table = record["input_text"]["table"]
    headers, contents = _column(table, "column_header"), _column(table, "content")
    if len(headers) != len(contents):
        return None
    rows = zip(headers, contents, strict=True)
    lines = ((header, text.strip().replace("\n", " ")) for header, text in rows)
    return {"table": "".join(f"{header}: {text} [n] " for header, text in lines)}


def _column(value: Any, name: str) -> list[Any]:
    """Return one field of all items, from a list of items or a mapping of lists."""
    return list(value[name]) if isinstance(value, Mapping) else [item[name] for item in value]


def _draws() -> Any:
    from numpy.random import RandomState  # slow to import

    return RandomState(_SEED)


def ordered_pair(better: str, worse: str) -> Prepare:
    """Put two sentences in a random order; `good` is the position of the better one."""

    def prepare(rows: Rows) -> Rows:
        random = _draws()
        for number, record in rows:
            pair = record[better], record[worse]
            good = int(random.random_sample() <= 0.5)
            yield number, {"first": pair[good], "second": pair[1 - good], "good": good}

    return prepare


def shuffled_answers(rows: Rows) -> Rows:
    """Put the four answers of SciQ in a random order."""
    random = _draws()
    names = ("distractor1", "distractor2", "distractor3", "correct_answer")
    for number, record in rows:
        answers = [record[name] for name in names]
        random.shuffle(answers)
        yield number, {**record, "answers": answers}


def concept_sets(rows: Rows) -> Rows:
    """Merge the sentences written about one set of concepts."""
    sets: dict[Any, tuple[int, dict[str, Any]]] = {}
    for number, record in rows:
        new = (number, {"concepts": record["concepts"], "targets": []})
        sets.setdefault(record["concept_set_idx"], new)[1]["targets"].append(record["target"])
    yield from sets.values()


def conversations(rows: Rows) -> Rows:
    """Merge the utterances about one prompt; ``_comma_`` is a comma, ``hit:`` marks an error."""
    talks: dict[tuple[str, str], tuple[int, dict[str, Any]]] = {}
    for number, record in rows:
        if "hit:" in record["utterance"]:
            continue
        prompt, context = record["prompt"].replace("_comma_", ","), record["context"]
        new = (number, {"prompt": prompt, "context": context, "utterances": []})
        talk = talks.setdefault((prompt, context), new)[1]
        talk["utterances"].append(record["utterance"].replace("_comma_", ","))
    yield from talks.values()


def questions_with_answers(rows: Rows) -> Rows:
    """Merge the candidate answers of one question of MultiRC, with the right ones."""
    questions: dict[Any, tuple[int, dict[str, Any]]] = {}
    for number, record in rows:
        new = (number, {**record, "answers": [], "right": []})
        question = questions.setdefault(record["idx"]["question"], new)[1]
        question["answers"].append(record["answer"])
        if record["label"] not in (0, 1):
            raise FieldError(f"the field 'label' is {shown(record['label'])}; it must be 0 or 1")
        if record["label"]:
            question["right"].append(record["answer"])
    for number, question in questions.values():
        yield number, {**question, "right": question["right"] or ["NO ANSWER!"]}


_OF_ONE_RECORD: dict[str, Callable[[Any], Record | None]] = {
    "acronym": acronym,
    "aqua_options": aqua_options,
    "duorc_plot": lambda row: None if row["plot"].startswith(_SUMMARY_NOTICE) else {},
    "freebase_answers": freebase_answers,
    "hotpot_paragraphs": hotpot_paragraphs,
    # The object is masked, the subject is inserted.
    "lama_sentence": lambda row: {
        "sentence": row["template"].replace("[X]", row["sub_label"]).replace("[Y]", "[MASK]")
    },
    "majority_label": majority_label,
    "math_options": math_options,
    "named_mask": lambda row: {"sentence": row["sentence"].replace("<mask>", "[MASK]")},
    # The leading task name is removed; a line break after it counts as a blank.
    "onestop_text": lambda row: {
        "text": row["text"].replace("\n", " ").removeprefix("Intermediate  ")
    },
    "quarel_answer": quarel_answer,
    "scicite_citation": lambda row: {"citation": row["string"][row["citeStart"] : row["citeEnd"]]},
    "stars": lambda row: {"stars": range(5).index(row["label"]) + 1},
    # Queries with a clear majority of raters.
    "well_formed": lambda row: (
        None if 0.4 <= row["rating"] <= 0.6 else {"label": int(row["rating"] > 0.6)}
    ),
    "whole_score": lambda row: (
        {"score": int(x)} if (x := float(row["score"])).is_integer() else None
    ),
    "wiki_table": wiki_table,
}
FUNCTIONS: dict[str, Prepare] = {
    **{name: each(function) for name, function in _OF_ONE_RECORD.items()},
    "blimp_pair": ordered_pair("sentence_good", "sentence_bad"),
    "concept_sets": concept_sets,
    "conversations": conversations,
    "crows_pair": ordered_pair("sent_more", "sent_less"),
    "questions_with_answers": questions_with_answers,
    "shuffled_answers": shuffled_answers,
}
