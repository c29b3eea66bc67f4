"""Files of words: what readers return and reject, and what writers keep."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities
from seqeval.scheme import IOB2, Tokens

from mttl.io.errors import TaskError
from mttl.tasks.conll import read_words, write_conll, write_conllu

NER = ["words", "_", "_", "tags"]
# The start of the English test file of CoNLL-2003, in its own scheme (IOB1), and a made-up line.
CONLL_2003 = """-DOCSTART- -X- -X- O

SOCCER NN I-NP O
JAPAN NNP I-NP I-LOC
CHINA NNP B-NP B-LOC

Nadim NNP I-NP I-PER
Ladki NNP I-NP I-PER"""
# The example of a range and of an empty node in the description of the format.
CONLLU = """# sent_id = 1
# text = vámonos al mar
1-2\tvámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tvamos\tir\tVERB\t_\t_\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\t_\t_\t1\texpl:pv\t_\t_
2.1\tsube\tsubir\tVERB\t_\t_\t_\t_\t_\tCopyOf=1
3\tal mar\tmar\tNOUN\t_\tGender=Masc\t1\tobl\t_\tSpaceAfter=No

# no tree
1\tSí\tsí\tINTJ\t_\t_\t_\t_\t_\t_
"""


def written(folder: Path, text: str | bytes, name: str = "file.txt") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_columns(tmp_path):
    expected = [
        {"words": ["SOCCER", "JAPAN", "CHINA"], "tags": ["O", "B-LOC", "B-LOC"]},
        {"words": ["Nadim", "Ladki"], "tags": ["B-PER", "I-PER"]},
    ]
    windows = CONLL_2003.replace(" ", "\t").replace("\n", "\r\n")
    for text in (CONLL_2003, windows, "\ufeff" + CONLL_2003.replace(" ", "   ") + "\n\n \n\n"):
        assert list(read_words(written(tmp_path, text), "conll", NER)) == expected
        path = written(tmp_path, gzip.compress(text.encode()), "file.gz")
        assert list(read_words(path, "conll", NER)) == expected


@given(st.lists(st.sampled_from(["O", "B-X", "I-X", "B-Y", "I-Y"]), min_size=1))
def test_iob1_becomes_iob2_with_the_spans_of_seqeval(tmp_path_factory, tags):
    folder = tmp_path_factory.getbasetemp()
    spans = get_entities(tags)
    new, old = ["O"] * len(tags), ["O"] * len(tags)
    for kind, start, end in spans:
        first = "B" if "".join(old[:start][-1:]).endswith(kind) else "I"
        inside = [f"I-{kind}"] * (end - start)
        new[start : end + 1] = [f"B-{kind}", *inside]
        old[start : end + 1] = [f"{first}-{kind}", *inside]
    assert [(s.tag, s.start, s.end - 1) for s in Tokens(new, IOB2).entities] == spans
    for scheme in (new, old):
        path = written(folder, "\n".join(f"w {tag}" for tag in scheme))
        assert [record["tags"] for record in read_words(path, "conll")] == [new]


def test_iobes_and_wikiann(tmp_path):
    tags = ["B-X", "I-X", "E-X", "S-Y", "O", "B-Y", "E-Y"]
    path = written(tmp_path, "".join(f"w\t{tag}\n" for tag in tags))
    assert [record["tags"] for record in read_words(path, "conll")] == [tags]
    path = written(tmp_path, "fa:R.H.\tB-ORG\nfa:a:b c\tI-ORG\n\nzh-min-nan::\tO\n")
    first = {"words": ["R.H.", "a:b c"], "tags": ["B-ORG", "I-ORG"]}
    assert list(read_words(path, "wikiann")) == [first, {"words": [":"], "tags": ["O"]}]


def test_conllu(tmp_path):
    first = {"words": ["vamos", "nos", "al mar"], "tags": ["VERB", "PRON", "NOUN"]}
    first |= {"heads": [0, 1, 1], "relations": ["root", "expl:pv", "obl"]}
    expected = [first, {"words": ["Sí"], "tags": ["INTJ"]}]
    assert list(read_words(written(tmp_path, CONLLU), "conllu")) == expected


def test_writers_keep_everything_else(tmp_path):
    source, target = written(tmp_path, CONLL_2003.replace("\n", "\r\n")), tmp_path / "new.txt"
    write_conll(target, source, NER, ["O B-LOC B-LOC", "B-PER O"])
    expected = CONLL_2003.replace("I-LOC", "B-LOC").replace("NP I-PER\nLadki", "NP B-PER\nLadki")
    expected = expected.removesuffix("I-PER") + "O"
    assert target.read_bytes() == expected.replace("\n", "\r\n").encode()
    source = written(tmp_path, CONLLU)
    write_conllu(target, source, ["3:expl:pv 3:dep 0:root", "0:root"])
    write_conllu(target, target, ["A B C", "D"], trees=False)
    expected = CONLLU.replace("VERB\t_\t_\t0\troot", "A\t_\t_\t3\texpl:pv")
    expected = expected.replace("PRON\t_\t_\t1\texpl:pv", "B\t_\t_\t3\tdep")
    expected = expected.replace("NOUN\t_\tGender=Masc\t1\tobl", "C\t_\tGender=Masc\t0\troot")
    assert target.read_text() == expected.replace("INTJ\t_\t_\t_\t_", "D\t_\t_\t0\troot")


def tree(*heads: str) -> str:
    return "".join(f"{n}\tw\t_\tX\t_\t_\t{head}\tdep\t_\t_\n" for n, head in enumerate(heads, 1))


@pytest.mark.parametrize(
    ("format", "text", "message"),
    [
        ("conll", "a O\nb\n", "line 2: the line has 1 cells, but it must have 2, none of them"),
        ("conll", "a\tO\nb\t\n", "line 2: the line has 2 cells, but it must have 2, none of th"),
        ("conll", "a O\nb I-X\n\nc B-X\n", 'line 2: a span starts with "I-X", but in line 4'),
        ("conll", "a B-X\n\nb B-X\nc I-Y\n", 'line 4: .* with "I-Y", but in line 1 with "B-X"'),
        ("conll", "a B-X\nb E-Y\n", 'line 2: a span starts with "E-Y", but in line 1 with "B'),
        ("wikiann", "en:a\tO\nb\tO\n", 'line 2: the word "b" must start with its language'),
        ("conllu", "1 a\n", "line 1: the line has 1 cells, but it must have 10"),
        ("conllu", "# a\n" + tree("0").replace("1", "2", 1), "line 2: .* number .2. instead of 1"),
        ("conllu", tree("0", "_"), 'line 2: the head "_" must be a number from 0 to 2'),
        ("conllu", tree("0", "3"), 'line 2: the head "3" must be a number from 0 to 2'),
        ("conllu", tree("0", "3", "2"), "line 2: the heads of the words 2, 3 form a cycle"),
        ("conllu", tree("2", "1"), "line 1: the heads of the words 1, 2 form a cycle"),
        ("conllu", tree("0", "1", "0"), "line 3: a second word has the head 0"),
    ],
)
def test_wrong_files_are_errors_with_the_line(tmp_path, format, text, message):
    with pytest.raises(TaskError, match=f"file.txt, {message}"):
        list(read_words(written(tmp_path, text), format))


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (["1:a"], "has 2 sentences, but there are 1 answers; give one answer per sentence"),
        (["0:a 1:a", "0:a"], "line 4: the answer .* one head:relation for each of 3 words"),
        (["0:a 1:a 1", "0:a"], "line 4: the answer .* one head:relation for each of 3 words"),
    ],
)
def test_answers_of_another_size_are_not_written(tmp_path, answers, message):
    with pytest.raises(TaskError, match=message):
        write_conllu(tmp_path / "new.txt", written(tmp_path, CONLLU), answers)
    assert not (tmp_path / "new.txt").exists()
