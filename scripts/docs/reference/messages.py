"""Every message that the code raises or warns with, as pages that can be searched."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

HEAD = """\
# Error messages and warnings

Look up an error message or a warning. Search this site for some words of it, or open the package
that it comes from. A word in braces stands for a value. A message says what is wrong, the value
received, what is allowed and what to do.
[Troubleshooting](../../howto/troubleshooting.md) lists common problems by symptom.

| package | messages |
|---|---|
"""
PAGE = "# Messages of `{name}`\n\nErrors and warnings of this package, by file.\n"
# Tables of a section or a part, whose values are sentences.
NOTES = ("lacks", "refuses")
WARNING = {"warning", "warn", "rank_zero_warn"}
# Functions that raise a text, and its place among their arguments.
RAISING = {"keep_settings": 2}


def messages_pages(root: Path) -> dict[str, str]:
    """Return a page for each package that has messages, by its name, and one that lists them."""
    folders = [root / "mttl", root / "envs", root / "scripts"]
    files = [*sorted(root.glob("pl_*.py")), *(f for d in folders for f in sorted(d.rglob("*.py")))]
    pages: dict[str, list[str]] = {}
    counts: dict[str, int] = {}
    for file in files:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        if found := sorted({text for text in messages(tree) if len(text.split()) > 2}):
            path = file.relative_to(root)
            name = _package(path)
            said = "\n\n".join(f"### {_span(text)}" for text in found)
            sentence = (ast.get_docstring(tree) or "").split("\n")[0]
            parts = pages.setdefault(name, [PAGE.format(name=name)])
            parts.append(f"## {path.as_posix()}\n\n{sentence}\n\n{said}\n")
            counts[name] = counts.get(name, 0) + len(found)
    rows = [f"| [`{name}`]({name}.md) | {counts[name]} |" for name in pages]
    return {"index": HEAD + "\n".join(rows) + "\n"} | {
        name: "\n".join(parts) for name, parts in pages.items()
    }


def _package(path: Path) -> str:
    """Return the package of a file: its folder below `mttl`, or the folder at the top."""
    depth = 2 if path.parts[0] == "mttl" and len(path.parts) > 2 else 1
    return ".".join(path.parts[:depth]) if len(path.parts) > 1 else "recipes"


def messages(tree: ast.Module) -> Iterator[str]:
    """Yield the texts of exceptions and warnings, of `lacks` and `refuses`, and of problems."""
    constants = _assigned(tree.body)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            notes = _assigned(node.body)
            said = [text for name in NOTES for text in _noted(notes.get(name), constants)]
            yield from (" ".join(_text(text).split()) for text in said)
    for function in [tree, *(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))]:
        nodes = list(_own(function))
        texts = _assigned(nodes)
        raised = [node.exc for node in nodes if isinstance(node, ast.Raise)]
        finds_problems = "problems" in getattr(function, "name", "")
        for node in nodes:
            if isinstance(node, ast.Yield) and node.value and finds_problems:
                yield " ".join(_text(node.value).split())
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if node in raised or name.endswith("Error") or name in WARNING or name in RAISING:
                said = node.args[RAISING.get(name, 0)]
                for one in [said.body, said.orelse] if isinstance(said, ast.IfExp) else [said]:
                    found = texts.get(one.id, one) if isinstance(one, ast.Name) else one
                    yield " ".join(_text(found).split())


def _assigned(nodes: Iterable[ast.AST]) -> dict[str, ast.expr]:
    """Return the values that are assigned to names."""
    found = {}
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found[name] = value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                found[name] = value
    return found


def _noted(node: ast.expr | None, constants: Mapping[str, ast.expr]) -> Iterator[ast.expr]:
    """Yield the sentences of a table: its values, or their last parts, without its keys."""
    match node:
        case ast.Name(id=name) if name in constants:
            yield from _noted(constants[name], {})
        case ast.Dict(values=values):
            for value in values:
                yield from _noted(value, constants)
        case ast.DictComp(value=value) | ast.Tuple(elts=[_, value]):
            yield from _noted(value, constants)
        case ast.Call(func=ast.Attribute(attr="fromkeys"), args=[_, value]):
            yield from _noted(value, constants)
        case ast.Constant(value=text) if not text:  # takes back an entry of a base class
            return
        case ast.Constant() | ast.JoinedStr() | ast.BinOp():
            yield node


def _own(function: ast.AST) -> Iterator[ast.AST]:
    """Give the nodes of a function without those of functions inside it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, ast.FunctionDef):
            yield child
            yield from _own(child)


def _text(node: ast.AST) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_text(value) for value in values)
        case ast.FormattedValue(value=value):
            return f"{{{_label(value)}}}"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return (_text(left) or "{…}") + (_text(right) or "{…}")
    return ""


def _label(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return "…"


def _span(text: str) -> str:
    """Return a text as inline code, whatever ticks are in it."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"
