"""The packages and their files, from their first sentences."""

import ast
from dataclasses import dataclass
from pathlib import Path

import mttl

PACKAGES = ("mttl", "envs")
FILES = """\
# Source files

Find the file that holds a part of the code: every package with its files.
"""
API = """\
# Python API

Look up a class or a function. Most programs need only these functions, and the methods of the run
that `mttl.load` returns; see [Predict](../../howto/predict.md).

| function | what it does |
|---|---|
{functions}

## Packages

| package | contents |
|---|---|
"""


@dataclass(frozen=True)
class Package:
    """A folder of the code.

    Attributes:
        path: Path of the folder, from the root of the repository.
        sentence: First sentence of its docstring.
        files: The first sentence of each file, by name.
    """

    path: str
    sentence: str
    files: dict[str, str]


def read_packages(root: Path) -> list[Package]:
    """Return all packages of a checkout, in the order of their paths."""
    folders = {file.parent for top in PACKAGES for file in (root / top).rglob("__init__.py")}
    return [_read_package(root, folder) for folder in sorted(folders)]


def file_page(packages: list[Package]) -> str:
    """Return the page of all files by package."""
    parts = [FILES]
    for package in packages:
        rows = [f"| `{name}` | {sentence} |" for name, sentence in sorted(package.files.items())]
        if rows:
            parts.append(f"## {package.path}\n\n{package.sentence}\n")
            parts.append("\n".join(["| file | contents |", "|---|---|", *rows]) + "\n")
    return "\n".join(parts)


def api_pages(root: Path) -> dict[str, str]:
    """Return a page for each package by its name, and one that lists them."""
    pages = {}
    rows = []
    packages = read_packages(root)
    for package in packages:
        if package.files:
            name = package.path.replace("/", ".")
            rows.append(f"| [`{name}`]({name}.md) | {package.sentence} |")
            modules = [_module(name, file.removesuffix(".py")) for file in sorted(package.files)]
            pages[name] = "\n\n".join([f"# `{name}`", package.sentence, *modules]) + "\n"
    functions = "\n".join(_function(root, name, *home) for name, home in mttl._HOMES.items())
    return {"index": API.format(functions=functions) + "\n".join(rows) + "\n", **pages}


def _module(package: str, name: str) -> str:
    """Return the line that shows a module; the sections of settings have pages of their own."""
    line = f"::: {package}.{name}"
    if not name.endswith("schema"):
        return line
    return f"{line}\n    options:\n      members: false\n\nSee [settings](../settings.md)."


def _function(root: Path, name: str, module: str, function: str) -> str:
    """Return a row for a function of the package's top level."""
    tree = ast.parse((root / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    (found,) = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == function]
    return f"| [`mttl.{name}`][{module}.{function}] | {_first_sentence(found)} |"


def _read_package(root: Path, folder: Path) -> Package:
    trees = {file.name: ast.parse(file.read_text(encoding="utf-8")) for file in folder.glob("*.py")}
    sentence = _first_sentence(trees.pop("__init__.py"))
    files = {name: _first_sentence(tree) for name, tree in sorted(trees.items())}
    return Package(str(folder.relative_to(root)), sentence, files)


def _first_sentence(tree: ast.Module | ast.FunctionDef) -> str:
    text = ast.get_docstring(tree) or ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    return paragraph.replace("|", "\\|")
