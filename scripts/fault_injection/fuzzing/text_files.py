"""Mutations of JSON, YAML and tables that know what these are."""

import csv
import io
import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

from fuzzing import hostile
from mttl.io import yaml12

_TAGS = (
    "!!python/object/apply:os.system [touch {marker}]",
    "!!python/object/new:os.system [touch {marker}]",
    "!!python/name:os.system",
    "!!python/object/apply:subprocess.check_output [[touch, {marker}]]",
    "!!binary gIGB",
    "!!set {{a, b}}",
    "!!timestamp 2001-01-01",
    "!include /etc/passwd",
    "*nowhere",
    "&a [*a]",
    "${{oc.env:HOME}}",
)


def mutate_json(path: Path, rng: random.Random, marker: Path) -> str:
    """Change a JSON file, or a line of JSON Lines, as a tree or by one of the tricks of JSON."""
    text = path.read_text("utf-8")
    lines = text.splitlines() if path.suffix == ".jsonl" else [text]
    at = rng.randrange(len(lines))
    kind = rng.choice(("tree", "tree", "tree", "tree", "tree", "deep", "digits", "scalar", "twice"))
    if kind == "tree":
        tree = hostile.replaced(json.loads(lines[at]), rng)
        lines[at] = dump_json(tree)
    elif kind == "deep":
        lines[at] = rng.choice(("[", '{"a":')) * rng.choice((500, 200_000))
    elif kind == "digits":
        lines[at] = rng.choice(("9" * 5000, "1e999999", "-" + "9" * 5000, "[1e400]", "NaN"))
    elif kind == "twice":
        lines[at] = lines[at].replace("{", '{"train": 1, "train": 2, ', 1)
    else:
        lines[at] = rng.choice(("null", "[]", "{}", "0", '""', "true", '"\\ud800"', "[[]]"))
    path.write_text("\n".join(lines) + "\n", "utf-8", errors="surrogatepass")
    return f"json {kind}"


def dump_json(tree: Any) -> str:
    """Return JSON text; trees may be deeper than the library writes."""
    try:
        return json.dumps(tree)
    except RecursionError:
        return "[" * 5000


def mutate_yaml(path: Path, rng: random.Random, marker: Path) -> str:
    """Change a YAML file as a tree, or by one of the many tricks of YAML."""
    text = path.read_text("utf-8")
    kind = rng.choice(
        ("tree", "tree", "tree", "tree", "bomb", "tag", "tag", "deep", "odd", "merge")
    )
    if kind == "tree":
        tree = hostile.replaced(yaml12.parse(text), rng)
        try:
            text = yaml12.dump(tree)
        except Exception:
            text = dump_json(tree)
    elif kind == "bomb":
        names = "abcdefghijklmnopqrstuvwxyz"[: rng.choice((6, 12, 26))]
        first = f"{names[0]}: &{names[0]} [x, x, x, x, x, x, x, x, x]\n"
        rest = [
            f"{name}: &{name} [{', '.join(['*' + before] * 9)}]\n"
            for before, name in pairwise(names)
        ]
        text = rng.choice((first + "".join(rest), text + first + "".join(rest)))
    elif kind == "merge":
        rows = ["a: &a {x: 1}\n"]
        for before, name in zip("abcdefghijklmn", "bcdefghijklmno", strict=True):
            rows.append(f"{name}: &{name} {{<<: [{', '.join(['*' + before] * 9)}]}}\n")
        text = "".join(rows)
    elif kind == "tag":
        tag = rng.choice(_TAGS).format(marker=marker)
        lines = text.splitlines()
        at = rng.randrange(len(lines))
        key, colon, _ = lines[at].partition(":")
        lines[at] = f"{key}{colon or ':'} {tag}"
        text = "\n".join(lines) + "\n"
    elif kind == "deep":
        opening = rng.choice(("[", "{a: ", "- ", "? "))
        text = opening * rng.choice((100, 3000, 100_000))
        if opening == "- " and rng.random() < 0.5:
            text = "\n".join(" " * n + "-" for n in range(1000))
    else:
        odd = ("---\na: 1\n---\nb: 2\n", "%YAML 9.9\n---\na: 1\n", "a: 1\na: 2\n", "? [a]\n: 1\n")
        more = ("a: " + "9" * 6000, "null", "[]", "a", "{a: 1, a: 2}", "\t", "a: 'x", "a: |\n\tb")
        text = rng.choice(odd + more)
    path.write_text(text, "utf-8", errors="surrogatepass")
    return f"yaml {kind}"


def mutate_table(path: Path, rng: random.Random, marker: Path) -> str:
    """Change cells, rows or the header of a CSV or TSV file."""
    tab = path.suffix == ".tsv"
    text = path.read_text("utf-8")
    rows = (
        [line.split("\t") for line in text.splitlines()]
        if tab
        else list(csv.reader([*text.splitlines()]))
    )
    row = rng.randrange(len(rows))
    column = rng.randrange(max(1, len(rows[row])))
    kind = rng.choice(
        (
            "cell",
            "cell",
            "cell",
            "name",
            "drop cell",
            "more cells",
            "drop row",
            "repeat",
            "quote",
            "header",
        )
    )
    if kind == "cell":
        cell = hostile.value(rng)
        rows[row][column] = cell if isinstance(cell, str) else repr(cell)[:100_000]
    elif kind == "name":
        rows[row][column] = rng.choice(hostile.NAMES)
    elif kind == "drop cell":
        del rows[row][column]
    elif kind == "more cells":
        rows[row] += ["x"] * rng.choice((1, 1000))
    elif kind == "drop row":
        del rows[row]
    elif kind == "repeat":
        rows.insert(row, rows[row])
    elif kind == "header":
        del rows[0]
    else:
        rows[row][column] = '"' + rows[row][column]
    if tab:
        text = "".join("\t".join(cells) + "\n" for cells in rows)
    else:
        out = io.StringIO()
        if kind == "quote":
            out.write("".join(",".join(cells) + "\n" for cells in rows))
        else:
            writer = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL)
            writer.writerows([[cell.replace("\0", "") for cell in cells] for cells in rows])
        text = out.getvalue()
    path.write_text(text, "utf-8", errors="surrogatepass", newline="")
    return f"table {kind}"
