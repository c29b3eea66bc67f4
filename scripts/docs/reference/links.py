"""Links between pages and files of the repository, as links between pages of the site."""

import posixpath
import re
from collections.abc import Collection
from pathlib import Path

from reference.studies import source_path

_LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()([^)\s#]+)([^)\s]*\))")
_PICTURE = re.compile(r'<img src="([^"]+)"(?: width="(\d+)")? alt="([^"]*)">')
_BLOCK = re.compile(r"(^ *```.*?^ *```$)", re.DOTALL | re.MULTILINE)


def site_links(markdown: str, page: str, pages: Collection[str], root: Path, code: str) -> str:
    """Return the text of a page with links that work on the site.

    Args:
        markdown: Text whose links are relative to its file in the repository.
        page: Path of the page on the site.
        pages: Paths of all files of the site.
        root: Folder of the repository.
        code: Address of the repository's files on the web, for those that are not on the site.
    """
    places = {source_path(path): path for path in pages}

    def translate(link: re.Match[str]) -> str:
        target = link[2]
        if ":" in target:
            return link[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source_path(page)), target))
        for found in (path, f"{path}/README.md"):
            if found in places:
                new = posixpath.relpath(places[found], posixpath.dirname(page) or ".")
                return f"{link[1]}{new}{link[3]}"
        if path.startswith("docs/") or not (root / path).exists():
            return link[0]
        return f"{link[1]}{code}/{path}{link[3]}"

    parts = _BLOCK.split(markdown)
    parts[::2] = [_LINK.sub(translate, _as_markdown(prose)) for prose in parts[::2]]
    return "".join(parts)


def _as_markdown(text: str) -> str:
    """Return a text with its pictures in Markdown, whose links MkDocs follows."""

    def picture(found: re.Match[str]) -> str:
        width = f"{{ width={found[2]} }}" if found[2] else ""
        return f"![{found[3]}]({found[1]}){width}"

    return _PICTURE.sub(picture, text)
