"""The studies as pages of the site, from their Markdown and figures in the repository."""

import re
from pathlib import Path
from typing import Any

STUDIES = "scripts/studies"
# Folders of the repository, by their place on the site.
PLACES = {"studies": STUDIES, "benchmarks": "scripts/benchmarks"}
PICTURES = {".svg", ".png", ".gif"}


def study_files(root: Path) -> dict[str, Path]:
    """Return pages and figures, by their path on the site."""
    return {
        f"{place}/{file.relative_to(root / folder).as_posix()}": file
        for place, folder in PLACES.items()
        for file in sorted((root / folder).rglob("*"))
        if file.name == "README.md" or file.suffix in PICTURES
    }


def studies_nav(root: Path) -> list[Any]:
    """Return the entries of the navigation: the studies, in the groups of their table."""
    nav: list[Any] = [{"All studies": "studies/README.md"}]
    group: list[Any] = nav
    for line in (root / STUDIES / "README.md").read_text(encoding="utf-8").splitlines():
        if head := re.match(r"\| \*\*(.*?)\*\*", line):
            group = []
            nav.append({head[1]: group})
        elif link := re.search(r"\| \[\w+\]\((\w+/README\.md)\) \|$", line):
            group.append(f"studies/{link[1]}")
    return [*nav, {"Costs": ["benchmarks/README.md"]}]


def source_path(page: str) -> str:
    """Return the path in the repository of a page of the site."""
    place, _, rest = page.partition("/")
    return f"{PLACES[place]}/{rest}" if place in PLACES else f"docs/{page}"
