"""Every message that the code raises or warns with, as a page that can be searched."""

import ast
from collections.abc import Iterator
from pathlib import Path

HEAD = """\
# Messages

What the program says when something cannot be done, by the file that says it. What stands in braces
is filled in. A message names the thing, the value received, what is allowed and what to do; where
that is not enough, see [troubleshooting](troubleshooting.md). This page is generated from the code.
"""
WARNING = {"warning", "warn", "rank_zero_warn"}
# Functions that raise a text, and its place among their arguments.
RAISING = {"keep_settings": 2}


def messages_page(root: Path) -> str:
    """Return the page: for each file that says something, its first sentence and its messages."""
    parts = [HEAD]
    folders = [root / "mttl", root / "envs", root / "scripts"]
    files = [*sorted(root.glob("pl_*.py")), *(f for d in folders for f in sorted(d.rglob("*.py")))]
    for file in files:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        if found := sorted({text for text in messages(tree) if len(text.split()) > 2}):
            sentence = (ast.get_docstring(tree) or "").split("\n")[0]
            said = "\n".join(f"- {_span(text)}" for text in found)
            parts.append(f"## {file.relative_to(root).as_posix()}\n\n{sentence}\n\n{said}\n")
    return "\n".join(parts)


def messages(tree: ast.Module) -> Iterator[str]:
    """Give the texts of all exceptions that are made, and of all warnings."""
    for function in [tree, *(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))]:
        nodes = list(_own(function))
        texts = {
            node.targets[0].id: node.value
            for node in nodes
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        raised = [node.exc for node in nodes if isinstance(node, ast.Raise)]
        for node in nodes:
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if node in raised or name.endswith("Error") or name in WARNING or name in RAISING:
                said = node.args[RAISING.get(name, 0)]
                if isinstance(said, ast.Name):
                    said = texts.get(said.id, said)
                yield " ".join(_text(said).split())


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
