"""Asturian sentences with silver word classes, for transfer to a language that few models know.

The sentences are translated messages of programs, and the classes are those of Apertium's tagger,
as universal ones. Both come from Debian's packages, which `apt-get` downloads and which are
unpacked, not installed. Sentences with a word that the tagger does not know, or that it joins with
the next one, are left out.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

TAGGER = ("apertium-spa-ast", "apertium", "lttoolbox", "libapertium3", "liblttoolbox3")
MESSAGES = ("libreoffice-l10n-ast", "vlc-l10n", "gimp-data", "evolution-common")
# Universal word classes of Apertium's tags; of all others, the signs of punctuation.
CLASSES = {
    "n": "NOUN",
    "np": "PROPN",
    "adj": "ADJ",
    "vblex": "VERB",
    **dict.fromkeys(("vbser", "vbhaver", "vbmod", "vaux"), "AUX"),
    **dict.fromkeys(("adv", "preadv"), "ADV"),
    "pr": "ADP",
    **dict.fromkeys(("det", "detnt", "predet"), "DET"),
    **dict.fromkeys(("prn", "rel"), "PRON"),
    "cnjcoo": "CCONJ",
    **dict.fromkeys(("cnjsub", "cnjadv"), "SCONJ"),
    "num": "NUM",
    "ij": "INTJ",
    **dict.fromkeys(("sent", "cm", "lpar", "rpar", "lquest", "rquest", "guio", "apos"), "PUNCT"),
}
_UNIT = re.compile(r"\^([^/$]*)/([^$<]*)((?:<\w+>)*)[^$]*\$|(\S)")


def unpack(folder: Path) -> Path:
    """Download Debian's packages below a folder and unpack them, once; return their root."""
    root, packages = folder / "debian", folder / "debian-packages"
    if not (root / "ready").exists():
        packages.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", *TAGGER, *MESSAGES], cwd=packages, check=True)
        for package in sorted(packages.glob("*.deb")):
            subprocess.run(["dpkg-deb", "--extract", package, root], check=True)
        (root / "ready").touch()
    return root


def classes(root: Path, sentences: list[str]) -> Iterator[list[tuple[str, str]]]:
    """Yield the words and word classes of every sentence that the tagger knows as a whole."""
    data = root / "usr/share/apertium/apertium-spa-ast"
    text = "\0".join(one for one in sentences if not set(one) & set("^$\0")) + "\0"
    text = _run(root, text, "lt-proc", "--null-flush", data / "ast-spa.automorf.bin")
    # The tagger prefers pronouns that only stand at the end of a verb, as in `cómprala`.
    text = re.sub(r"/\w+<prn><enc>[^/$]*", "", text)
    settings = "-g", "--show-superficial", "--null-flush"
    text = _run(root, text, "apertium-tagger", *settings, data / "ast-spa.prob")
    for answer in text.split("\0"):
        words = list(words_of(answer))
        if words and all(kind and " " not in word for word, kind in words):
            yield words


def words_of(answer: str) -> Iterator[tuple[str, str]]:
    """Yield the words and signs of a tagged sentence with their classes, empty if unknown."""
    for word, _, tags, sign in _UNIT.findall(answer):
        yield word or sign, "PUNCT" if sign else CLASSES.get(tags[1:-1].split("><")[0], "")


def _run(root: Path, text: str, program: str, *arguments: str | Path) -> str:
    libraries = ":".join(str(path) for path in (root / "usr/lib").glob("*-linux-gnu"))
    return subprocess.run(
        [root / "usr/bin" / program, *arguments],
        input=text,
        env=os.environ | {"LD_LIBRARY_PATH": libraries},
        capture_output=True,
        encoding="utf-8",
        check=True,
    ).stdout


def tagged(root: Path, sentences: list[str]) -> list[str]:
    """Return sentences in CoNLL-U with word classes alone."""
    return [
        "\n".join(
            "\t".join([str(place), word, "_", kind, *"______"])
            for place, (word, kind) in enumerate(words, 1)
        )
        for words in classes(root, sentences)
    ]
