"""What the documents name exists: paths, classes, functions and settings."""

import re
from pathlib import Path

import pytest

from helpers.printed import PAGES, anchors, text

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("docs/explanation/architecture.md", "CONTRIBUTING.md")
ROOMS = ("mttl", "envs", "scripts", "configs", "docs", "tests", "data")
# Pages that the site generates.
GENERATED = re.compile(
    r".*/docs/reference/((settings|parts|files)\.md|(settings|api|messages)/[\w.]+\.md)"
)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_paths_in_a_document_exist(document: str) -> None:
    page = (ROOT / document).read_text(encoding="utf-8")
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", page, flags=re.DOTALL))
    paths = {span for span in spans if re.match(rf"({'|'.join(ROOMS)})/[\w./*<>-]+$", span)}
    missing = sorted(
        path for path in paths if "<" not in path and not any(ROOT.glob(path.rstrip("/")))
    )
    assert not missing


def test_the_architecture_names_every_package() -> None:
    """Each has a row; those inside it are named there."""
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    folders = sorted(file.parent for file in (ROOT / "mttl").glob("**/__init__.py"))[1:]
    missing = []
    for folder in folders:
        package, *inner = folder.relative_to(ROOT / "mttl").parts
        rows = [line for line in page.splitlines() if line.startswith(f"| `mttl/{package}/` |")]
        if len(rows) != 1 or any(f"`{name}/`" not in rows[0] for name in inner):
            missing.append(folder.relative_to(ROOT).as_posix())
    assert missing == []


@pytest.mark.parametrize("document", [*PAGES, "CONTRIBUTING.md"])
def test_links_between_documents_lead_somewhere(document: str) -> None:
    """To a file that exists, and to a heading of it."""
    targets = re.findall(r"\]\((?!https?:)([^)\s]+)", text(document))
    folder = (ROOT / document).parent
    lost = []
    for target in targets:
        name, _, heading = target.partition("#")
        path = (folder / name if name else ROOT / document).resolve()
        if GENERATED.fullmatch(path.as_posix()):
            continue
        known = anchors(path.relative_to(ROOT).as_posix()) if heading and path.exists() else ()
        if not path.exists() or (heading and heading not in known):
            lost.append(target)
    assert lost == []


def test_a_newcomer_comes_from_the_first_page_to_every_other() -> None:
    first, pages = ROOT / "docs" / "index.md", {*ROOT.glob("docs/**/*.md")}
    waiting, seen = [first], set()
    while waiting:
        page = waiting.pop()
        if page not in seen and page in pages:
            seen.add(page)
            found = re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text(encoding="utf-8"))
            waiting += [(page.parent / target).resolve() for target in found]
    assert pages - seen == set()
    assert "(howto/add_a_router.md)" in first.read_text(encoding="utf-8")
