"""Read and write words with tags, and dependency trees: CoNLL, WikiANN and CoNLL-U files.

``words``, ``tags`` and ``relations`` are lists of texts, one per word; ``heads`` are integers from
1, and 0 is the root. Files may be compressed (``.gz``).
Writers copy a file with other answers, which join the parts for each word by blanks.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from mttl.io.errors import TaskError
from mttl.io.files import atomic_path
from mttl.io.reading import shown
from mttl.metrics.trees import find_cycle, tree_text
from mttl.tasks.rows import text_lines

# The lines of a sentence's words: number and cells.
_Sentence = list[tuple[int, list[str]]]
_WORD, _TAG, _HEAD, _RELATION, _N_CELLS = 1, 3, 6, 7, 10  # places in CoNLL-U
_COLUMNS = {_WORD: "words", _TAG: "tags", _HEAD: "heads", _RELATION: "relations"}


def read_sentences(
    path: str | Path, format: str, columns: Sequence[str] = (), *, strict: bool = True
) -> Iterator[dict[str, str]]:
    """Yield the sentences of `read_words` as texts: lists joined by blanks, and ``tree`` for heads.

    Blanks inside a word become ``_``.
    """
    for record in read_words(path, format, columns, strict=strict):
        if heads := record.pop("heads", None):
            record["tree"] = tree_text(heads, record.pop("relations")).split()
        yield {name: " ".join("_".join(x.split()) for x in words) for name, words in record.items()}


def read_words(
    path: str | Path, format: str, columns: Sequence[str] = (), *, strict: bool = True
) -> Iterator[dict[str, Any]]:
    """Yield the sentences of a file, a mapping of lists.

    | format | file |
    |---|---|
    | ``conll`` | columns, as of CoNLL-2003, between tabs or blanks; without ``-DOCSTART-`` |
    | ``wikiann`` | lines ``en:word<TAB>tag``; the words are yielded without the language |
    | ``conllu`` | Universal Dependencies; ``tags`` are UPOS |

    In ``tags`` of CoNLL, IOB1 becomes IOB2: ``I-`` at the start of a span becomes ``B-``. IOBES
    stays. Of CoNLL-U, comments, ranges of tokens (``3-4``) and empty nodes (``5.1``) are skipped;
    if no word of a sentence has a head, it has no ``heads`` and ``relations``.

    Args:
        path: UTF-8 file.
        format: Format of the file.
        columns: Names of all columns of CoNLL, by default ``words`` and ``tags``; ``_`` skips one.
        strict: Whether ``I-`` without ``B-`` in a file of IOB2 or IOBES is an error. Predictions
            of a head, which are tags of single words, may have it.

    Raises:
        TaskError: If the file is missing or damaged, a line is malformed, or heads are not a tree
            with one root.

    References:
        https://universaldependencies.org/format.html
    """
    if format == "conllu":
        columns = [_COLUMNS.get(place, "_") for place in range(_N_CELLS)]
        sentences = _conllu(path)
    else:
        columns = columns or ("words", "tags")
        sentences = _columns(path, columns)
    starts: dict[bool, tuple[int, str]] = {}
    for sentence in sentences:
        rows = zip(*(cells for _, cells in sentence), strict=True)
        record: dict[str, Any] = {
            name: list(row) for name, row in zip(columns, rows, strict=True) if name != "_"
        }
        if format == "conll" and "tags" in record:
            record["tags"] = _begun(record["tags"], sentence, starts)
            if strict and len(starts) == 2:
                (wrong, one), (right, two) = starts[False], starts[True]
                problem = f"a span starts with {shown(one)}, but in line {right} with {shown(two)}"
                raise TaskError(f"{path}, line {wrong}: {problem}; start all spans with B-")
        elif format == "wikiann":
            record["words"] = [_without_language(*line, path) for line in sentence]
        elif format == "conllu" and {*record["heads"]} == {"_"}:
            del record["heads"], record["relations"]
        elif format == "conllu":
            record["heads"] = _heads(sentence, path)
        yield record


def write_conll(
    target: str | Path, source: str | Path, columns: Sequence[str], answers: Sequence[str]
) -> None:
    """Write a copy of a CoNLL or WikiANN file whose column ``tags`` has the answers.

    Without such a column, it is added after the last one.

    Raises:
        TaskError: If there is not one answer per sentence, with one tag per word.
    """
    place = [*columns, "tags"].index("tags")
    _write(target, source, list(_columns(source, columns)), [place], answers)


def write_conllu(
    target: str | Path, source: str | Path, answers: Sequence[str], *, trees: bool = True
) -> None:
    """Write a copy of a CoNLL-U file with other trees (``head:relation``), or other UPOS tags.

    Raises:
        TaskError: If there is not one answer per sentence, with one part per word.
    """
    _write(target, source, list(_conllu(source)), [_HEAD, _RELATION] if trees else [_TAG], answers)


def guess_columns(path: str | Path) -> tuple[str, ...]:
    """Return names of a CoNLL file's columns: words in the first, tags in the last of several."""
    first = next(_sentences(path, "-DOCSTART-"), [(1, "")])
    n = len(_split(first[0][1])[::2])
    return ("words", *["_"] * (n - 2), "tags")[:n]


def _columns(path: str | Path, columns: Sequence[str]) -> Iterator[_Sentence]:
    for lines in _sentences(path, "-DOCSTART-"):
        words = [(number, _split(line)[::2]) for number, line in lines]
        for number, cells in words:
            _require_cells(cells, len(columns), f"{path}, line {number}")
        yield words


def _conllu(path: str | Path) -> Iterator[_Sentence]:
    """Yield the sentences of a CoNLL-U file, whose words are numbered from 1."""
    for lines in _sentences(path, "#"):
        words: _Sentence = []
        for number, line in lines:
            cells, place = line.split("\t"), f"{path}, line {number}"
            _require_cells(cells, _N_CELLS, place)
            if re.fullmatch(r"\d+[-.]\d+", cells[0]):
                continue
            if cells[0] != str(len(words) + 1):
                problem = f"the word has the number {shown(cells[0])} instead of {len(words) + 1}"
                raise TaskError(f"{place}: {problem}; number the words of a sentence from 1")
            words.append((number, cells))
        if words:
            yield words


def _sentences(path: str | Path, skipped: str) -> Iterator[list[tuple[int, str]]]:
    """Yield the numbered lines between blank lines, without lines that start with a text."""
    numbered = enumerate(text_lines(Path(path)), 1)
    for blank, group in groupby(numbered, lambda pair: not pair[1].strip(" \t\r\n")):
        own = [(number, line.rstrip("\r\n")) for number, line in group]
        lines = [(number, line) for number, line in own if not line.startswith(skipped)]
        if lines and not blank:
            yield lines


def _split(line: str) -> list[str]:
    """Return the cells of a line, with the separators between them."""
    return re.split("(\t)", line) if "\t" in line else re.split("( +)", line.strip(" "))


def _require_cells(cells: Sequence[str], n: int, place: str) -> None:
    if len(cells) != n or not all(cells):
        problem = f"the line has {len(cells)} cells, but it must have {n}, none of them empty"
        raise TaskError(f"{place}: {problem}; correct it, or name all columns")


def _begun(tags: list[str], sentence: _Sentence, starts: dict[bool, tuple[int, str]]) -> list[str]:
    """Return tags whose spans start with ``B-``.

    IOB1 has ``B-`` only after a span, so a file with it elsewhere must start all spans so;
    ``starts`` has the first line with such a ``B-`` (true), and the first with another start.
    """
    found = ["O"]
    for (number, _), tag in zip(sentence, tags, strict=True):
        before, prefix = found[-1], tag[:2]
        inside = before[:2] in ("B-", "I-") and before[2:] == tag[2:]
        begun = prefix == "B-" and before == "O"
        if begun or (prefix in ("I-", "E-") and not inside):
            starts.setdefault(begun, (number, tag))
        found.append(f"B-{tag[2:]}" if prefix == "I-" and not inside else tag)
    return found[1:]


def _without_language(number: int, cells: Sequence[str], path: str | Path) -> str:
    language, colon, word = cells[0].partition(":")
    if not colon:
        problem = f"the word {shown(language)} must start with its language, such as 'en:'"
        raise TaskError(f"{path}, line {number}: {problem}; correct the line")
    return word


def _heads(sentence: _Sentence, path: str | Path) -> list[int]:
    """Return the heads of a sentence, which must be a tree with one root."""
    texts = [cells[_HEAD] for _, cells in sentence]
    allowed = [str(place) for place in range(len(texts) + 1)]
    wrong = next((place for place, text in enumerate(texts) if text not in allowed), None)
    if wrong is not None:
        problem = f"the head {shown(texts[wrong])} must be a number from 0 to {len(texts)}"
    elif cycle := find_cycle([int(text) for text in texts]):
        wrong = min(cycle) - 1
        problem = f"the heads of the words {', '.join(map(str, sorted(cycle)))} form a cycle"
    elif texts.count("0") > 1:
        wrong = texts.index("0", texts.index("0") + 1)
        problem = "a second word has the head 0, but a tree has one root"
    else:
        return [int(text) for text in texts]
    raise TaskError(f"{path}, line {sentence[wrong][0]}: {problem}; correct the sentence")


def _write(
    target: str | Path,
    source: str | Path,
    sentences: Sequence[_Sentence],
    places: Sequence[int],
    answers: Sequence[str],
) -> None:
    """Write a copy of a file with other cells at some places of every word."""
    if len(answers) != len(sentences):
        problem = f"has {len(sentences)} sentences, but there are {len(answers)} answers"
        raise TaskError(f"'{source}' {problem}; give one answer per sentence")
    changed = {}
    for sentence, answer in zip(sentences, answers, strict=True):
        parts = [part.split(":", len(places) - 1) for part in answer.split()]
        if len(parts) != len(sentence) or any(len(part) != len(places) for part in parts):
            form = "head:relation" if len(places) > 1 else "tag"
            problem = f"{shown(answer)} must have one {form} for each of {len(sentence)} words"
            raise TaskError(f"{source}, line {sentence[0][0]}: the answer {problem}")
        changed |= {number: part for (number, _), part in zip(sentence, parts, strict=True)}
    with atomic_path(target) as part, part.open("w", encoding="utf-8", newline="") as file:
        for number, line in enumerate(text_lines(Path(source)), 1):
            if number in changed:
                body = line.rstrip("\r\n")
                cells, body = _split(body), body if "\t" in body else body.strip(" ")
                for place, text in zip(places, changed[number], strict=True):
                    if 2 * place > len(cells):
                        cells += cells[1:2] or [" "]
                    cells[2 * place : 2 * place + 1] = [text]
                line = line.replace(body, "".join(cells), 1)
            file.write(line)
