"""Parts: every registered class with its paper, and every shipped file with every command."""

import ast
import inspect
import re
from functools import cache
from itertools import groupby
from pathlib import Path
from textwrap import dedent

from matrix.expected import AFTER, BACKBONES, COLUMNS, files, reasons
from mttl.plugins.describe import described
from mttl.plugins.parts import PARTS

ROOT = Path(__file__).parents[3]
HEAD = """\
# Parts: routers, skills, experts

Look up a built-in part: its name in a configuration, its class and its paper. Further tables say
which commands work with which of the shipped configuration files.
"""
FAMILY_TITLES = {
    "routers": ("Task routers", "router.kind", "router"),
    "token_routers": ("Token routers", "moe.router.kind", "moe"),
    "skills": ("Skills", "skills.kind", "skills"),
    "experts": ("Experts", "moe.experts.kind", "moe"),
}
TITLES = {"t5": "T5", "llama": "Llama"}
# Of messages of which the tests quote a part.
SENTENCES = {
    "matches no": "a pattern of skills.targets matches no layer of this backbone",
    "encoder": "it would show later tokens to a causal decoder; use it in an encoder",
    "router is of the kind": "adaptation gave the task another kind of router than the run has",
    "what the router has in common for all tasks": "adaptation changed parts of the router that "
    "all tasks share",
    "no bias": "the layers of a T5 have no bias; mttl export writes one for PEFT",
    "Only mttl answers with them": "PEFT and AdapterHub have no such adapter; only mttl answers "
    "with it (mttl predict, mttl serve)",
    "A whole model can be written instead": "PEFT and AdapterHub have no such adapter; write a "
    "whole model instead (mttl merge-task)",
}
FILES = """\
## Configuration files and commands

Which commands work with which file:

- *yes*: the command works; tests verify it on a small T5 and a small Llama.
- A number: the command ends with status 2, for the reason of that number.
- A dash: the file cannot be trained, so there is no run.

*export* is `mttl export --task`, *inventory* is `mttl export --inventory`. Files of `experts` are
combined with `router/token_top2.yaml`, all others with LoRA and Polytropon.
"""


def parts_page() -> str:
    """Return the page."""
    return "\n".join([HEAD, *(_family(family) for family in FAMILY_TITLES), FILES, _combinations()])


def _family(family: str) -> str:
    title, setting, section = FAMILY_TITLES[family]
    lines = [
        f"## {title}\n",
        f"Names for `{setting}`; see its [settings](settings/{section}.md).\n",
        "| name | class | what it does | source |",
        "|---|---|---|---|",
    ]
    for name, place in PARTS[family].items():
        dotted = place.replace(":", ".")
        link = f"[`{dotted.rpartition('.')[2]}`][{dotted}]"
        sentence = described(family)[name]["sentence"].replace("|", "\\|")
        lines.append(f"| `{name}` | {link} | {sentence} | {source(place)} |")
    return "\n".join(lines) + "\n"


def source(place: str) -> str:
    """Return the first reference of a class or of its nearest base: authors and link."""
    module, _, name = place.partition(":")
    classes = _classes(module)
    while name in classes:
        docstring = inspect.cleandoc(ast.get_docstring(classes[name]) or "")
        _, _, after = docstring.partition("\nReferences:\n")
        if after:
            return _cited(" ".join(dedent(after).split("\n\n")[0].split()))
        bases = classes[name].bases
        name = ast.unparse(bases[0]) if bases else ""
    return ""


def _cited(reference: str) -> str:
    """Return the first author and the number of a reference such as `A, B and C, *Title*, …`."""
    authors = re.sub(r"^.* in (?=[A-Z])", "", reference.partition(", *")[0])
    first, *others = re.split(r", | and ", authors)
    if " et al." in first or others:
        first = first.removesuffix(" et al.")
        first = f"{first} and {others[0]}" if len(others) == 1 else f"{first} et al."
    found = re.search(r"arXiv:(\d+\.\d+)", reference)
    return f"{first}, [arXiv:{found[1]}](https://arxiv.org/abs/{found[1]})" if found else first


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    path = ROOT / f"{module.replace('.', '/')}.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _combinations() -> str:
    notes: dict[str, int] = {}
    lines: list[str] = []
    for folder, group in groupby(files(), lambda file: file.partition("/")[0]):
        lines += [f"\n### {folder}\n", f"| file | {' | '.join(COLUMNS)} |"]
        lines.append(f"|---{'|---' * len(COLUMNS)}|")
        for file in group:
            rows = {name: _row(file, name, notes) for name in BACKBONES}
            if len({*rows.values()}) == 1:
                lines.append(f"| `{file}` | {rows[BACKBONES[0]]} |")
            else:
                lines += [f"| `{file}` ({TITLES[name]}) | {row} |" for name, row in rows.items()]
    numbered = [f"{number}. {text}" for text, number in notes.items()]
    return "\n".join([*lines, "", "### Reasons", "", *numbered, ""])


def _row(file: str, backbone: str, notes: dict[str, int]) -> str:
    return " | ".join(_cell(reasons((file,), backbone, column), notes) for column in COLUMNS)


def _cell(found: list[str], notes: dict[str, int]) -> str:
    if not found:
        return "yes"
    reason = re.sub(r"^.* does not work with .*?: ", "", found[0])
    reason = SENTENCES.get(reason, reason)
    return "-" if found[0] == AFTER else str(notes.setdefault(reason, len(notes) + 1))
