"""The packages and their files, from their first sentences and imports."""

import ast
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("mttl", "envs")


@dataclass(frozen=True)
class Room:
    """A folder of the package.

    Attributes:
        path: Path of the folder, from the root of the repository.
        sentence: First sentence of its docstring.
        files: The first sentence of each file, by name.
        uses: Other folders and files of the package that it imports, also within functions.
    """

    path: str
    sentence: str
    files: dict[str, str]
    uses: tuple[str, ...]


def read_rooms(root: Path) -> list[Room]:
    """Return all rooms of a checkout, in the order of their paths."""
    folders = {
        file.parent for package in PACKAGES for file in (root / package).rglob("__init__.py")
    }
    return [_read_room(root, folder) for folder in sorted(folders)]


def file_page(rooms: list[Room]) -> str:
    """Return the page of all files, room by room."""
    parts = ["# The files, room by room\n", "This page is generated from the files themselves.\n"]
    for room in rooms:
        rows = [f"| `{name}` | {sentence} |" for name, sentence in sorted(room.files.items())]
        if rows:
            parts.append(f"## {room.path}\n\n{room.sentence}\n")
            parts.append("\n".join(["| file | what it holds |", "|---|---|", *rows]) + "\n")
    return "\n".join(parts)


def _read_room(root: Path, folder: Path) -> Room:
    own = folder.relative_to(root)
    files: dict[str, str] = {}
    uses: set[str] = set()
    sentence = ""
    for file in sorted(folder.glob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        if file.name == "__init__.py":
            sentence = _first_sentence(tree)
        else:
            files[file.name] = _first_sentence(tree)
        uses |= {_room_of(root, name) for name in _imported(tree)}
    # A package and its subpackages count as one.
    others = {use for use in uses if use and not Path(use).is_relative_to(own)}
    return Room(str(own), sentence, files, tuple(sorted(others - set(map(str, own.parents)))))


def _imported(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.split(".")[0] in PACKAGES}


def _room_of(root: Path, name: str) -> str:
    """Return the folder, or the file of the top level, that a dotted name lies in."""
    path = Path(*name.split("."))
    while path.parts and not (root / path).is_dir():
        if path.with_suffix(".py").parent == Path("mttl") and (root / f"{path}.py").is_file():
            return f"{path}.py"
        path = path.parent
    return str(path)


def _first_sentence(tree: ast.Module) -> str:
    text = ast.get_docstring(tree) or ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    return paragraph.replace("|", "\\|")
