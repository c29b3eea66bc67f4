"""The commands that documents print: in their blocks of code, and between backticks."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from helpers.command import ROOT
from mttl.commands.command_names import COMMANDS, MORE

DOCS = ("README.md", *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/*.md")))
STUDIES = tuple(
    sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("scripts/**/README.md"))
)
PAGES = DOCS + STUDIES
_CHUNK = re.compile(r"```.*?^```$|(?:(?!```)[^\n]+\n?)+", re.DOTALL | re.MULTILINE)
_SPAN = re.compile(r"`((?:python|mttl) [^`…]*)`")
_FIGURE = re.compile(r"""^ *(?:!\[[^\]]*\]\(|<img src=")([^)"]+)""", re.MULTILINE)
_SHELLS = ("", "bash")


@dataclass(frozen=True)
class Command:
    """A command line, as a reader would type it.

    Attributes:
        script: Seen from the top of the repository.
        words: What stands behind it, without redirections.
        stdin: The file that is given to it, if any.
    """

    script: str
    words: tuple[str, ...]
    stdin: str | None = None

    def __str__(self) -> str:
        return shlex.join((self.script, *self.words))


@cache
def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def chunks(page: str) -> list[str]:
    """Return the paragraphs and blocks of a page."""
    return _CHUNK.findall(text(page))


def commands(chunk: str) -> list[Command]:
    """Return the commands in a part of a page."""
    found: list[Command] = []
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", chunk, re.DOTALL | re.MULTILINE):
        if language in _SHELLS:
            found += _of_lines(block)
    prose = re.sub(r"^```.*?^```$", "", chunk, flags=re.DOTALL | re.MULTILINE)
    spans = (command for span in _SPAN.findall(prose) for command in _of_lines(span))
    # A name with options alone is not a command, but what prose calls one.
    return found + [one for one in spans if any(not word.startswith("-") for word in one.words)]


def figures(page: str) -> Iterator[tuple[str, list[Command]]]:
    """Yield each figure of a page with its commands: those below it, else those above."""
    parts = chunks(page)
    for number, part in enumerate(parts):
        for figure in _FIGURE.findall(part):
            own, below, above = (commands("".join(parts[n : n + 1])) for n in _around(number))
            yield figure, own or below or above


def sections(page: str) -> dict[str, str]:
    """Return the text of each section, without that of its own sections, by its anchor."""
    prose = re.sub(r"^```.*?^```$", _hidden, text(page), flags=re.DOTALL | re.MULTILINE)
    heads = list(re.finditer(r"^#+ (.*)$", prose, re.MULTILINE))
    ends = [head.start() for head in heads[1:]] + [len(prose)]
    whole = text(page)
    return {anchor(head[1]): whole[head.end() : end] for head, end in zip(heads, ends, strict=True)}


def anchor(heading: str) -> str:
    """Return how a link names a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def _command(words: list[str]) -> tuple[str, int]:
    """Return the file of a command of ``mttl``, and how many words name it."""
    known = COMMANDS | MORE
    n_words = 2 if " ".join(words) in known else 1
    name = " ".join(words[:n_words])
    return f"mttl/commands/{known[name]}.py" if name in known else "", n_words


def _hidden(block: re.Match[str]) -> str:
    return re.sub(r"[^\n]", "-", block[0])


def _around(number: int) -> tuple[int, int, int]:
    return number, number + 1, max(number - 1, 0)


def _of_lines(block: str) -> Iterator[Command]:
    values: dict[str, str] = {}
    for line in re.sub(r"\\\n\s*", " ", block).splitlines():
        for name, value in values.items():
            line = line.replace(f"${name}", value)
        if named := re.fullmatch(r'(\w+)="(.*)"', line):
            values[named[1]] = named[2]
            continue
        if not re.search(r"\b(python|mttl) ", line):
            continue
        loop = re.match(r"for (\w+) in ([^;]+);", line)
        for value in loop[2].split() if loop else [""]:
            one = line.replace(f"${loop[1]}", value) if loop else line
            lexer = shlex.shlex(one, posix=True, punctuation_chars=";&|<>")
            lexer.whitespace_split = True
            lexer.commenters = "#"
            yield from _of_words(list(lexer))


def _of_words(words: list[str]) -> Iterator[Command]:
    for number, word in enumerate(words[:-1]):
        begins = number == 0 or words[number - 1] in ("&&", ";", "do", "|", "python")
        script, n_words = words[number + 1] if word == "python" else "", 1
        if word == "mttl" and begins:
            script, n_words = _command(words[number + 1 : number + 3])
        if not script.endswith(".py"):
            continue
        own: list[str] = []
        stdin = None
        rest = iter(words[number + 1 + n_words :])
        for one in rest:
            if one in ("&&", ";", "|", "&"):
                break
            if one in ("<", ">"):
                stdin = next(rest) if one == "<" else (next(rest), stdin)[1]
            else:
                own.append(one)
        yield Command(script, tuple(own), stdin)
