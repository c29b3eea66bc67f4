"""Pages that the site generates: settings, files, the API, every message; see mkdocs.yml."""

import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT / "scripts" / "docs"), str(ROOT / "tests")]

from mttl.config.reference import reference  # noqa: E402
from reference.combinations import combinations_page  # noqa: E402
from reference.messages import messages_page  # noqa: E402
from reference.rooms import file_page, read_rooms  # noqa: E402

CONFIGURATION = """\
# Configuration

Settings are given in YAML files and on the command line, as `-k section.key=value`. Commands print
them, too: `mttl train --settings optim`.

"""


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages."""
    for path, text in generated_pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def generated_pages() -> dict[str, str]:
    """Return the pages that are not in docs/, by path."""
    pages = {f"api/{name}.md": text for name, text in api_pages(ROOT).items()}
    pages["messages.md"] = messages_page(ROOT)
    pages["configuration.md"] = f"{CONFIGURATION}{reference()}\n"
    pages["what_works_with_what.md"] = combinations_page()
    pages["files.md"] = file_page(read_rooms(ROOT))
    return pages


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Let links that leave docs/ lead to the repository."""
    outside = "../../" if page.file.src_uri.startswith("tutorials/") else "../"
    return markdown.replace(f"]({outside}", f"]({config.repo_url}/blob/main/")


def api_pages(root: Path) -> dict[str, str]:
    """Return a page for each room, and one that lists them."""
    rooms = [room for room in read_rooms(root) if room.files]
    pages = {}
    lines = ["# The API, room by room\n", "| room | what it is for |", "|---|---|"]
    for room in rooms:
        name = room.path.replace("/", ".")
        lines.append(f"| [`{name}`]({name}.md) | {room.sentence} |")
        modules = [f"::: {name}.{file.removesuffix('.py')}" for file in sorted(room.files)]
        pages[name] = "\n\n".join([f"# `{name}`", room.sentence, *modules]) + "\n"
    return {"index": "\n".join(lines) + "\n", **pages}
