"""The commands that documents print: in their blocks of code, and between backticks."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import groupby

from helpers.command import ROOT
from mttl.commands.command_names import COMMANDS, MORE

DOCS = (
    "README.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md")),
)
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
    """A command line, as a reader would type it."""

    script: str
    words: tuple[str, ...]
    stdin: str | None = None

    def __str__(self) -> str:
        return shlex.join((self.script, *self.words))


@cache
def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


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
    parts = ["", *_CHUNK.findall(text(page)), ""]
    for above, part, below in zip(parts, parts[1:], parts[2:], strict=False):
        for figure in _FIGURE.findall(part):
            yield figure, commands(part) or commands(below) or commands(above)


def anchors(page: str) -> set[str]:
    """Return how links name the headings of a page."""
    prose = re.sub(r"^```.*?^```$", "", text(page), flags=re.DOTALL | re.MULTILINE).lower()
    heads = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head).strip().replace(" ", "-") for head in heads}


def _of_lines(block: str) -> Iterator[Command]:
    values: dict[str, str] = {}
    for line in re.sub(r"\\\n\s*", " ", block).splitlines():
        for name, value in values.items():
            line = line.replace(f"${name}", value)
        if named := re.fullmatch(r'(\w+)="(.*)"', line):
            values[named[1]] = named[2]
            continue
        loop = re.match(r"for (\w+) in ([^;]+);", line)
        for value in loop[2].split() if loop else [""]:
            one = line.replace(f"${loop[1]}", value) if loop else line
            lexer = shlex.shlex(one, posix=True, punctuation_chars=";&|<>")
            lexer.whitespace_split = True
            lexer.commenters = "#"
            if re.search(r"\b(python|mttl) ", line):
                parts = groupby(lexer, lambda word: word in ("&&", ";", "do", "|", "&"))
                yield from (made for _, part in parts for made in _of_words([*part]))


def _of_words(words: list[str]) -> Iterator[Command]:
    """Yield the command that stands between two signs of the shell, if it is one of ours."""
    known = COMMANDS | MORE
    match words:
        case ["python", script, *rest] if script.endswith(".py"):
            pass
        case ["mttl", first, second, *rest] if f"{first} {second}" in known:
            script = f"mttl/commands/{known[f'{first} {second}']}.py"
        case ["mttl", name, *rest] if name in known:
            script = f"mttl/commands/{known[name]}.py"
        case _:
            return
    ends = [rest.index(sign) for sign in "<>" if sign in rest]
    stdin = rest[rest.index("<") + 1] if "<" in rest else None
    yield Command(script, tuple(rest[: min(ends, default=None)]), stdin)
