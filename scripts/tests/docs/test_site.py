"""The pages that the site has besides docs/."""

import ast
import re
import subprocess
import sys
from importlib import import_module
from types import SimpleNamespace

import yaml

from helpers.command import ROOT

sys.path.insert(0, str(ROOT / "scripts" / "docs"))

MESSAGES = import_module("reference.messages")
SITE = import_module("reference.site")

CODE = """
def load(path, kind, options):
    if not path:
        raise ConfigError(f"'{path}' is missing; " + "give --from")
    text = f"the kind {options.kind} is none of {', '.join(options)}"
    if kind:
        raise ValueError(text) from None
    logger.warning("slow: set %s", kind)
    refusal = TaskError("kept for later")

    def inner():
        raise unwanted(f"{kind}\\n  of two lines")
"""


def test_messages_are_read_from_what_is_raised_and_warned() -> None:
    assert set(MESSAGES.messages(ast.parse(CODE))) == {
        "'{path}' is missing; give --from",
        "the kind {kind} is none of {…}",
        "slow: set %s",
        "kept for later",
        "{kind} of two lines",
    }


def test_the_page_has_messages_of_every_command_and_what_troubleshooting_quotes() -> None:
    page = MESSAGES.messages_page(ROOT)
    assert "another comparison is at work in '{out}'" in page
    assert "the run folder '{path}' exists already and is never overwritten" in page
    headings = re.findall(r"^## (.*)$", page, re.MULTILINE)
    assert len(set(headings)) == len(headings)
    assert "mttl/commands/predict.py" in headings
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = [
        part.strip(" ,()")
        for quote in re.findall(r'\*\*"(.*?)"', text)
        for part in quote.split("…")
    ]
    parts = [part for part in quoted if len(part.split()) > 2]
    assert len(parts) > 6
    assert [part for part in parts if part not in page.replace("`", "")] == []


def test_generated_pages_are_made_with_the_site_and_not_kept() -> None:
    """All of them come out of the code as it is, so that none can be old."""
    pages = SITE.generated_pages()
    single = {"messages.md", "configuration.md", "what_works_with_what.md", "files.md"}
    assert single <= pages.keys()
    assert [path for path, text in pages.items() if not text.startswith(("# ", "<!--"))] == []
    listed = subprocess.run(
        ["git", "ls-files", "docs"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert {f"docs/{path}" for path in pages} & {*listed} == set()
    rows = pages["what_works_with_what.md"]
    assert "| `skills/lora.yaml` | yes |" in rows
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert {path for path in single if path not in str(settings["nav"])} == set()


def test_every_room_has_a_page_with_its_files() -> None:
    pages = SITE.api_pages(ROOT)
    assert "::: mttl.skills.weights.bitfit" in pages["mttl.skills.weights"]
    rooms = {
        file.parent.relative_to(ROOT).as_posix().replace("/", ".")
        for file in (ROOT / "mttl").rglob("*.py")
        if file.name != "__init__.py"
    }
    assert rooms <= set(pages)
    assert all(f"({room}.md)" in pages["index"] for room in rooms)


def test_links_to_the_repository_leave_the_site() -> None:
    config = SimpleNamespace(repo_url="https://example.org/mttl")

    def shown(place: str, text: str) -> str:
        page = SimpleNamespace(file=SimpleNamespace(src_uri=place))
        return SITE.on_page_markdown(text, page, config, None)

    there = "https://example.org/mttl/blob/main/LICENSE"
    assert (
        shown("guide.md", "[it](../LICENSE), [here](tasks.md)")
        == f"[it]({there}), [here](tasks.md)"
    )
    assert shown("tutorials/1.md", "[it](../../LICENSE)") == f"[it]({there})"
