"""Answer CoNLL and CoNLL-U files: the output is the input with other tags or trees."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mttl.io.errors import ConfigError
from mttl.runtime.command import say
from mttl.tasks.conll import guess_columns, read_sentences, write_conll, write_conllu
from mttl.tasks.head_form import HeadForm

WORD_FORMATS = {"conll": ("tokens",), "conllu": ("tokens", "tree")}  # with kinds of heads


def read_words(options: Namespace, format: str) -> list[dict[str, Any]]:
    """Return the sentences of a file as rows of inputs, without columns of blanks (``_``)."""
    if options.questions is None or options.out is None:
        raise ConfigError(f"the format {format} needs files; give --in and --out")
    if options.columns and (format != "conll" or "words" not in options.columns):
        raise ConfigError("--columns names the columns of CoNLL, one of them 'words'")
    if format == "conll" and not options.columns:
        options.columns = guess_columns(options.questions)
    rows = []
    for found in read_sentences(options.questions, format, options.columns, strict=False):
        given = {name: text for name, text in found.items() if {*text.split()} != {"_"}}
        rows.append({"input": found["words"], **given, "words": found["words"]})
    return rows


def check_words(format: str, task: str, head: HeadForm | None) -> None:
    """Raise a `ConfigError` if a format has no place for the answers of a task."""
    kinds = WORD_FORMATS[format]
    if head is None or head.kind not in kinds:
        given = "generates its answers" if head is None else f"has the kind {head.kind}"
        raise ConfigError(
            f"the format {format} is for tasks of the kind {' or '.join(kinds)}, but '{task}' "
            f"{given}; give a table (tsv, csv or jsonl)"
        )


def write_words(
    options: Namespace, format: str, head: HeadForm, texts: Sequence[str], answers: Sequence[str]
) -> None:
    """Write a copy of the input file with the answers; words that were cut have the tag ``_``."""
    pairs = zip(texts, answers, strict=True)
    lacking = [len(text.split()) - len(answer.split()) for text, answer in pairs]
    if cut := sum(lacking):
        say(f"{cut:,} words beyond data.max_input_length have the tag _", stderr=True)
    whole = [answer + " _" * n for answer, n in zip(answers, lacking, strict=True)]
    if format == "conll":
        write_conll(options.out, Path(options.questions), options.columns, whole)
    else:
        write_conllu(options.out, Path(options.questions), whole, trees=head.kind == "tree")
