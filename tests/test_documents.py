"""What the documents name exists: paths, classes, functions and settings."""

import re
import subprocess
from functools import cache
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
# Words of other projects, and files that a run or a user makes.
ELSEWHERE = {
    *("nn.Module", "nn.Linear", "functional_call", "vmap", "minigrid", "gymnasium"),
    *("transformers", "safetensors", "fsdp", "pip", "venv", "pytest", "PyTorch", "NumPy"),
    *("BabyAI", "CrossFit", "LoRA", "TIES", "DARE", "CaPE", "PEFT", "AdapterFusion"),
    *("HyperFormer", "OpenMP", "YAML", "FSDPStrategy"),
}


@cache
def words() -> frozenset[str]:
    """Return every word of the code and of the configurations."""
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.yaml", "*.toml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    paths = [ROOT / name for name in listed if (ROOT / name).is_file()]
    return frozenset(word for path in paths for word in re.findall(r"\w+", path.read_text("utf-8")))


def named(text: str) -> set[str]:
    """Return what a document sets in code: inline spans, and the class names in its blocks."""
    blocks = re.findall(r"```.*?```", text, flags=re.DOTALL)
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    classes = {word for block in blocks for word in re.findall(r"\b[A-Z][a-z]+[A-Z]\w+", block)}
    return {span for span in inline} | classes


@pytest.mark.parametrize("document", DOCUMENTS)
def test_paths_in_a_document_exist(document: str) -> None:
    spans = named((ROOT / document).read_text(encoding="utf-8"))
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


@pytest.mark.parametrize("document", DOCUMENTS)
def test_names_in_a_document_exist(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    spans, defined = named(text), set(re.findall(r"^\+class (\w+)", text, flags=re.MULTILINE))
    names = {
        match[0]
        for span in spans
        if not set("/ <>-{") & set(span)
        for match in re.finditer(r"^[A-Za-z_][\w.]*", span)
    }
    unknown = sorted(
        name
        for name in names - ELSEWHERE - defined
        if not (ROOT / name).exists() and not set(re.findall(r"\w+", name)) <= words()
    )
    assert not unknown


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


def test_tutorials_show_outputs_and_no_folder_of_the_machine_that_ran_them() -> None:
    absolute = re.compile(r"(?<![\w.])/(?:home|mnt|opt|root|tmp|Users|work)/")
    pages = {path.name: path.read_text(encoding="utf-8") for path in ROOT.glob("docs/tutorials/*")}
    assert [name for name, page in pages.items() if absolute.search(page)] == []
    assert [name for name, page in pages.items() if "```text\n```" in page] == []
    assert {"first_run.md", "custom_tasks.md", "policies.md"} <= pages.keys()
