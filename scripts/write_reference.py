"""Write what the documents say of the code: settings, files, and the table of rooms.

docs/configuration.md has every setting with its type, its default and its sentence, docs/files.md
every file with its first sentence, docs/architecture.md the rooms between two marks.

python scripts/write_reference.py
python scripts/write_reference.py --check
"""

from pathlib import Path

from mttl.command import FAULT, SUCCESS, exit_with, make_console, make_parser

ROOT = Path(__file__).parents[1]
HEAD = """\
# Configuration

Settings are given in YAML files and on the command line, as `-k section.key=value`. The commands
show these lines too: `python pl_train.py --settings optim`.

This page is made by `python scripts/write_reference.py` from the schemas in `mttl/config/`.
"""
BEGIN, END = "<!-- rooms: generated -->\n", "<!-- end -->"


def main(arguments: list[str] | None = None) -> int:
    """Write the pages, or check them; return the exit status."""
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--check", action="store_true", help="exit with 1 if one is not current")
    add("--root", type=Path, default=ROOT, metavar="DIR", help="the checkout (%(default)s)")
    options = parser.parse_args(arguments)
    from mttl.files import write_text

    status = SUCCESS
    for page, text in pages(options.root).items():
        if page.is_file() and page.read_text(encoding="utf-8") == text:
            continue
        if options.check:
            status = FAULT
            command = "python scripts/write_reference.py"
            make_console(stderr=True).print(f"'{page}' is not current; run {command}")
        else:
            write_text(page, text)
    return status


def pages(root: Path) -> dict[Path, str]:
    """Return the pages as they ought to be, by their files."""
    from reference.rooms import file_page, read_rooms, room_table

    from mttl.config.reference import reference

    rooms = read_rooms(root)
    architecture = root / "docs" / "architecture.md"
    before, _, rest = architecture.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    return {
        root / "docs" / "configuration.md": f"{HEAD}\n{reference()}\n",
        root / "docs" / "files.md": file_page(rooms),
        architecture: f"{before}{BEGIN}{room_table(rooms)}{END}{after}",
    }


if __name__ == "__main__":
    exit_with(main)
