"""Pages that the site generates: the reference, and the studies; see mkdocs.yml."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT / "scripts" / "docs"), str(ROOT / "tests")]

from reference.formulas import with_formulas  # noqa: E402
from reference.links import site_links  # noqa: E402
from reference.messages import messages_pages  # noqa: E402
from reference.packages import api_pages, file_page, read_packages  # noqa: E402
from reference.parts import parts_page  # noqa: E402
from reference.settings import settings_nav, settings_pages  # noqa: E402
from reference.studies import studies_nav, study_files  # noqa: E402

# Search results of these pages come after those of the others.
BOOSTS = {"reference/api/": 0.3, "reference/messages/": 0.7}


def on_config(config: Any) -> Any:
    """Complete the navigation: lists of generated pages stand where it has their names."""
    lists = {
        "settings": settings_nav(),
        "messages": _entries("messages", messages_pages(ROOT)),
        "api": _entries("api", api_pages(ROOT)),
        "studies": studies_nav(ROOT),
    }
    config.nav = _completed(config.nav, lists)
    return config


def _entries(folder: str, pages: Iterable[str]) -> list[Any]:
    """Return the page that lists others, and these by their names."""
    names = [name for name in pages if name != "index"]
    index = f"reference/{folder}/index.md"
    return [index, *({name: f"reference/{folder}/{name}.md"} for name in names)]


def _completed(nav: list[Any], lists: dict[str, list[Any]]) -> list[Any]:
    found: list[Any] = []
    for entry in nav:
        match entry:
            case {**one} if isinstance(value := next(iter(one.values())), list):
                found.append({next(iter(one)): _completed(value, lists)})
            case str() if entry.startswith("generated:"):
                found += lists[entry.removeprefix("generated:")]
            case _:
                found.append(entry)
    return found


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages and the studies."""
    for path, text in generated_pages().items():
        files.append(File.generated(config, path, content=text))
    for path, source in study_files(ROOT).items():
        files.append(File.generated(config, path, abs_src_path=str(source)))
    return files


def generated_pages() -> dict[str, str]:
    """Return the pages that are not in docs/, by path."""
    pages = {f"api/{name}.md": text for name, text in api_pages(ROOT).items()}
    pages |= {f"messages/{name}.md": text for name, text in messages_pages(ROOT).items()}
    pages |= settings_pages()
    pages["parts.md"] = parts_page()
    pages["files.md"] = file_page(read_packages(ROOT))
    return {f"reference/{path}": text for path, text in pages.items()}


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Let links to files of the repository lead to pages of the site, or to the repository."""
    path = page.file.src_uri
    for folder, boost in BOOSTS.items():
        if path.startswith(folder):
            page.meta["search"] = {"boost": boost}
    if path.startswith("reference/messages/"):
        page.meta["hide"] = ["toc"]  # each message is a heading, so that the search finds it
    if path == "index.md":
        page.meta["hide"] = ["navigation"]  # which has this page alone
    code = f"{config.repo_url}/blob/main"
    return site_links(markdown, path, [file.src_uri for file in files], ROOT, code)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Draw the formulas of docstrings."""
    return with_formulas(html) if page.file.src_uri.startswith("reference/api/") else html
