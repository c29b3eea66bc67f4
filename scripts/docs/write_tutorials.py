"""Run the tutorials as a reader does, and write what they print into the pages.

python scripts/docs/write_tutorials.py
python scripts/docs/write_tutorials.py --only custom_tasks

Each page runs in an empty folder with the installed `mttl`; all take about ten minutes on two idle
cores. Blocks of `bash` share one shell, blocks of `python` share one Python process, and a block of
`yaml` is saved in the file that its first line names. Other blocks do not run. A block of `text`
below `bash` or `python` receives what was printed, without progress, times and machine paths. A
comment `<!-- from FIRST to NEXT -->` above it keeps the lines from the one that begins with FIRST
up to the one that begins with NEXT, which is left out. Long tables are shortened.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from mttl.io.errors import ConfigError
from mttl.io.files import write_text
from mttl.runtime.command import exit_with, make_console

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "tutorials"
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# Progress, which says what is being done rather than what came out.
PASSING = re.compile(r"^[a-z].*━{10}|\d+%\||^(Loading weights|tokenising|drawn:)|^step \d+ of")
BLOCK = re.compile(
    r"^```(?P<language>bash|python|yaml)\n(?P<code>.*?)^```\n"
    r"(?P<shown>\n(?:<!-- from (?P<start>.*?)(?: to (?P<stop>.*?))? -->\n)?```text\n)?",
    re.DOTALL | re.MULTILINE,
)
LONGEST, SHOWN = 8, 3  # a part of a table with more rows keeps the first ones
END = "end of the block"
PYTHON = f"""
import json, sys
names = {{"__name__": "__main__"}}
for line in sys.stdin:
    exec(compile(json.loads(line), "page", "exec"), names)
    print({END!r}, flush=True)
"""


@dataclass(frozen=True)
class Block:
    """A block of a page.

    Attributes:
        language: `bash`, `python` or `yaml`.
        code: Text between the fences.
        start: Words that begin the first line of the output that is shown; empty for all.
        stop: Words that begin the line after the last one that is shown; empty for all.
        output: Positions in the page between which the output stands, if it is shown.
    """

    language: str
    code: str
    start: str = ""
    stop: str = ""
    output: tuple[int, int] | None = None


def main(arguments: list[str] | None = None) -> int:
    """Run the pages; return the exit status."""
    options = parse(arguments)
    console = make_console(stderr=True)
    for file in sorted(FOLDER.glob("*.md")):
        if options.only and file.stem not in options.only:
            continue
        console.print(f"running {file.stem}", markup=False)
        page = file.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            outputs = [*run(blocks(page), Path(folder))]
        write_text(file, filled(page, outputs))
    return 0


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page that run."""
    found = []
    for match in BLOCK.finditer(page):
        output = (match.end(), page.index("```", match.end())) if match["shown"] else None
        start, stop = match["start"] or "", match["stop"] or ""
        found.append(Block(match["language"], match["code"], start, stop, output))
    return found


def run(parts: Iterable[Block], folder: Path) -> Iterator[str]:
    """Run blocks in a folder; yield the output of each."""
    python = [sys.executable, "-uc", PYTHON]
    with ExitStack() as stack:
        processes = {
            "bash": stack.enter_context(_Process(["bash", "-e"], folder)),
            "python": stack.enter_context(_Process(python, folder)),
        }
        for part in parts:
            if part.language == "yaml":
                save(part, folder)
                yield ""
            else:
                shell = f"{{\n{part.code}}} </dev/null\necho {END}\n"
                sent = shell if part.language == "bash" else f"{json.dumps(part.code)}\n"
                yield printed(processes[part.language].answer(sent), folder)


def save(part: Block, folder: Path) -> None:
    """Write a block of `yaml` into the file that its first line names."""
    name = part.code.split("\n")[0].removeprefix("# ")
    (folder / name).write_text(part.code, encoding="utf-8")


class _Process:
    """A process that reads blocks and prints a line after each; what it starts ends with it."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            text=True,
            encoding="utf-8",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def __enter__(self) -> "_Process":
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):  # it has failed
            os.killpg(self.process.pid, signal.SIGTERM)
        self.process.communicate()

    def answer(self, sent: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(sent)
        self.process.stdin.flush()
        lines = []
        for line in self.process.stdout:
            if line == f"{END}\n":
                return "".join(lines)
            lines.append(line)
        raise ConfigError(f"a block failed with status {self.process.wait()}:\n{sent}")


def filled(page: str, outputs: list[str]) -> str:
    """Return the page with these outputs in its blocks of text."""
    for part, output in reversed([*zip(blocks(page), outputs, strict=True)]):
        if part.output:
            begin, end = part.output
            page = page[:begin] + shortened(chosen(part, output.splitlines())) + page[end:]
    return page


def chosen(part: Block, lines: list[str]) -> list[str]:
    """Return the lines of a block's output that the page shows, with signs of what is left out."""
    first = position(part.start, lines)
    last = position(part.stop, lines) if part.stop else len(lines)
    return ["…"] * (first > 0) + lines[first:last] + ["…"] * (last < len(lines))


def position(words: str, lines: list[str]) -> int:
    """Return the number of the first line that begins with these words."""
    for number, line in enumerate(lines):
        if line.startswith(words):
            return number
    raise ConfigError(f"no line begins with '{words}':\n" + "\n".join(lines))


def shortened(lines: list[str]) -> str:
    """Return lines as text; of a part of a table with many rows, the first ones."""
    kept: list[str] = []
    for is_row, part in groupby(lines, lambda line: line.startswith("│")):
        rows = [*part]
        kept += [*rows[:SHOWN], "│ …"] if is_row and len(rows) > LONGEST else rows
    return "".join(f"{line}\n" for line in kept)


def printed(text: str, folder: Path = ROOT) -> str:
    """Return the text that stays on a terminal: no colours, and lines as they were last written.

    Paths are those within the project or the folder.
    """
    text = ANSI.sub("", text).replace(f"{ROOT}/", "").replace(f"{folder.resolve()}/", "")
    lines = text.replace("\r\n", "\n").split("\n")
    last = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in lines]
    kept = [line for line in last if line and not PASSING.search(line)]
    return "".join(f"{line}\n" for line in kept)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="of these pages (all)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    exit_with(main)
