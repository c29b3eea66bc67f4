"""The pages that the site has besides docs/."""

import ast
import re
import subprocess
import sys
from importlib import import_module
from types import SimpleNamespace

import pytest
import yaml

from helpers.command import ROOT
from test_documents import GENERATED

sys.path.insert(0, str(ROOT / "scripts" / "docs"))

MESSAGES = import_module("reference.messages")
SITE = import_module("reference.site")
FORMULAS = import_module("reference.formulas")
source = import_module("reference.parts").source

CODE = """
def load(path, kind, options):
    if not path:
        raise ConfigError(f"'{path}' is missing; " + "give --from")
    text = f"the kind {options.kind} is none of {', '.join(options)}"
    if kind:
        raise ValueError(text) from None
    logger.warning("slow: set %s", kind)
    refusal = TaskError("kept for later")
    last = "the other text"
    raise path("one of two texts" if kind else last)

    def inner():
        raise unwanted(f"{kind}\\n  of two lines")
"""

TABLES = """
COMMON = {"a": "set it to 0", "b": ""}


class One(Section):
    lacks: ClassVar = COMMON
    refuses: ClassVar = {
        "the key": ("if a > b", "it has no '{name}'; leave it out"),
        **dict.fromkeys(("x", "y"), "the key is no message"),
    }

    def problems(self):
        yield f"{one} and " + "{other} exclude each other"
"""


def test_messages_are_read_from_what_is_raised_and_warned() -> None:
    assert set(MESSAGES.messages(ast.parse(CODE))) == {
        "'{path}' is missing; give --from",
        "the kind {kind} is none of {…}",
        "slow: set %s",
        "kept for later",
        "one of two texts",
        "the other text",
        "{kind} of two lines",
    }


def test_messages_are_read_from_tables_and_problems() -> None:
    assert set(MESSAGES.messages(ast.parse(TABLES))) == {
        "set it to 0",
        "it has no '{name}'; leave it out",
        "the key is no message",
        "{one} and {other} exclude each other",
    }


def test_there_is_a_page_with_messages_of_every_package() -> None:
    """It has what troubleshooting quotes."""
    pages = MESSAGES.messages_pages(ROOT)
    assert "another mttl compare writes to '{out}'" in pages["mttl.commands"]
    assert "the run folder '{path}' already exists" in pages["mttl.checkpoints"]
    assert "skills.kind 'none' needs a section moe" in pages["mttl.config"]
    assert all(f"({name}.md)" in pages["index"] for name in pages if name != "index")
    page = "".join(pages.values())
    headings = re.findall(r"^## (.*)$", page, re.MULTILINE)
    assert len(set(headings)) == len(headings)
    assert "mttl/commands/predict.py" in headings
    text = (ROOT / "docs" / "howto" / "troubleshooting.md").read_text(encoding="utf-8")
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
    single = {f"reference/{name}.md" for name in ("settings", "parts", "files")}
    assert single <= pages.keys()
    assert [path for path, text in pages.items() if not text.startswith("# ")] == []
    listed = subprocess.run(
        ["git", "ls-files", "docs"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert {f"docs/{path}" for path in pages} & {*listed} == set()
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert {path for path in single if path not in str(settings["nav"])} == set()
    # Links to them need no file, but a right name.
    names = [path for path in pages if path.startswith("reference/")]
    assert [name for name in names if not GENERATED.fullmatch(f"/docs/{name}")] == []


def shown(place: str, text: str) -> str:
    """Return the text of a page as the site shows it."""
    known = ["index.md", "howto/a.md", "studies/README.md", "benchmarks/README.md"]
    known += ["studies/one/README.md", "studies/one/a.svg", "studies/two/README.md"]
    config = SimpleNamespace(repo_url="https://example.org/mttl")
    page = SimpleNamespace(file=SimpleNamespace(src_uri=place), meta={})
    files = [SimpleNamespace(src_uri=path) for path in known]
    return SITE.on_page_markdown(text, page, config, files)


@pytest.mark.parametrize(
    ("place", "text", "expected"),
    [
        ("howto/a.md", "[it](../../LICENSE)", "[it](https://example.org/mttl/blob/main/LICENSE)"),
        ("howto/a.md", "[one](../index.md#two)", "[one](../index.md#two)"),
        ("howto/a.md", "[lost](../lost.md)", "[lost](../lost.md)"),  # which MkDocs reports
        ("howto/a.md", "[out](https://a.b/c)", "[out](https://a.b/c)"),
        (
            "howto/a.md",
            "[see](../../scripts/studies/one/README.md#cost)",
            "[see](../studies/one/README.md#cost)",
        ),
        ("index.md", "[all](../scripts/studies)", "[all](studies/README.md)"),
        ("index.md", "![an a](../scripts/studies/one/a.svg)", "![an a](studies/one/a.svg)"),
        ("studies/one/README.md", "[how](../../../docs/howto/a.md)", "[how](../../howto/a.md)"),
        ("studies/one/README.md", "[next](../two/README.md)", "[next](../two/README.md)"),
        ("studies/README.md", "[it](../benchmarks/README.md)", "[it](../benchmarks/README.md)"),
        (
            "studies/README.md",
            "[`run`](run.py)",
            "[`run`](https://example.org/mttl/blob/main/scripts/studies/run.py)",
        ),
        ("index.md", '<img src="a.gif" width="9" alt="b">', "![b](a.gif){ width=9 }"),
        ("index.md", "```\n[it](../LICENSE)\n```", "```\n[it](../LICENSE)\n```"),
    ],
)
def test_links_lead_to_the_site_or_the_repository(place: str, text: str, expected: str) -> None:
    assert shown(place, text) == expected


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("so :math:<code>w_k &lt; 1</code> is", "<mo>&#x0003C;</mo>"),
        ("<p>.. math:: a + b</p>", 'display="block"'),
        (
            '<p>.. math::</p>\n<div class="highlight"><pre><span></span><code>a &amp;= b \\\\ c\n'
            "</code></pre></div>",
            "<mtable",
        ),
        ("KronA\\ :sup:<code>B</code>\\ :sub:<code>res</code>", "KronA<sup>B</sup><sub>res</sub>"),
    ],
)
def test_formulas_are_drawn(text: str, part: str) -> None:
    if "math" in text:
        pytest.importorskip("latex2mathml")
    found = FORMULAS.with_formulas(text)
    assert part in found
    assert "math:" not in found
