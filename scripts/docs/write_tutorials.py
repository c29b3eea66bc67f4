"""Run the tutorials as a reader does, and keep what they print in the notebooks.

python scripts/docs/write_tutorials.py
python scripts/docs/write_tutorials.py --only 3_custom_tasks

They run one after the other in an empty folder, with `mttl` as it is installed; twenty minutes
on two idle cores. Progress bars and what libraries say are left out of what is kept. It needs
`pip install nbclient ipykernel`.
"""

import argparse
import json
import os
import re
import tempfile
from pathlib import Path

from mttl.io.files import write_text
from mttl.runtime.command import exit_with, make_console

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "tutorials"
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# Bars, and lines that say what is being done rather than what came out.
PASSING = re.compile(r"^[a-z].*━{10}|\d+%\||^(Loading weights|tokenising|drawn:)|^step \d+ of")


def main(arguments: list[str] | None = None) -> int:
    """Run the notebooks; return the exit status."""
    options = parse(arguments)
    import nbformat  # pyright: ignore[reportMissingImports]
    from nbclient import NotebookClient  # pyright: ignore[reportMissingImports]

    console = make_console(stderr=True)
    os.environ["COLUMNS"] = "100"  # tables are as wide wherever this runs
    with tempfile.TemporaryDirectory() as place:
        for file in sorted(FOLDER.glob("*.ipynb")):
            if options.only and file.stem not in options.only:
                continue
            console.print(f"running {file.stem}", markup=False)
            book = nbformat.read(file, as_version=4)
            NotebookClient(book, timeout=None, resources={"metadata": {"path": place}}).execute()
            write_text(file, json.dumps(cleaned(book), indent=1, ensure_ascii=False) + "\n")
    return 0


def cleaned(book: dict) -> dict:
    """Return a notebook whose cells keep what they print, and no times, bars or warnings."""
    for cell in book["cells"]:
        cell["metadata"] = {}
        cell["source"] = cell["source"].splitlines(True)
        if cell["cell_type"] != "code":
            continue
        streams = [o for o in cell["outputs"] if o["output_type"] == "stream"]
        text = printed("".join(o["text"] for o in streams if o["name"] == "stdout"))
        cell["outputs"] = [o for o in cell["outputs"] if o["output_type"] != "stream"]
        if text:
            first = {"output_type": "stream", "name": "stdout", "text": text.splitlines(True)}
            cell["outputs"].insert(0, first)
    book["metadata"].pop("widgets", None)
    return book


def printed(text: str) -> str:
    """Return the text that stays on a terminal: no colours, and lines as they were last written.

    Paths are those within the project, not of the machine.
    """
    lines = ANSI.sub("", text).replace(f"{ROOT}/", "").replace("\r\n", "\n").split("\n")
    last = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in lines]
    kept = [line for line in last if line and not PASSING.search(line)]
    return "".join(f"{line}\n" for line in kept)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="of these notebooks (all)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    exit_with(main)
