"""Write docs/configuration.md: every setting with its type, its default and its sentence.

python scripts/write_reference.py
python scripts/write_reference.py --check
"""

from pathlib import Path

from mttl.command import FAULT, SUCCESS, exit_with, make_console, make_parser

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
HEAD = """\
# Configuration

Settings are given in YAML files and on the command line, as `-k section.key=value`. The commands
show these lines too: `python pl_train.py --settings optim`.

This page is made by `python scripts/write_reference.py` from the schemas in `mttl/config/`.
"""


def main(arguments: list[str] | None = None) -> int:
    """Write the page, or check it; return the exit status."""
    parser = make_parser(__doc__)
    parser.add_argument("--check", action="store_true", help="exit with 1 if it is not current")
    parser.add_argument("--page", type=Path, default=PAGE, metavar="FILE", help="(%(default)s)")
    options = parser.parse_args(arguments)
    from mttl.config.reference import reference
    from mttl.files import write_text

    text = f"{HEAD}\n{reference()}\n"
    if not options.check:
        write_text(options.page, text)
    elif not options.page.is_file() or options.page.read_text(encoding="utf-8") != text:
        command = "python scripts/write_reference.py"
        make_console(stderr=True).print(f"'{options.page}' is not current; run {command}")
        return FAULT
    return SUCCESS


if __name__ == "__main__":
    exit_with(main)
