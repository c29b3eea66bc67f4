"""The templates of the fact table, filled by a second interpreter, and records to fill them from.

Written from the legend of the table alone and record by record, so that it shares nothing with the
package. A slot of the table may end in ``tabs``, which the package calls several references.
"""

import csv
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

SHARED = Path(os.environ.get("MTTL_SHARED", Path(__file__).parents[3] / "shared"))
SLOT = re.compile(r"\{([^{}]*)\}")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def facts(name: str) -> list[dict[str, str]]:
    """Read a table of facts, or skip the test."""
    path = SHARED / name
    if not path.is_file():
        pytest.skip(f"the fact table {name} is not at {SHARED}; set MTTL_SHARED")
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def labels_of(row: Mapping[str, str]) -> dict[int, str]:
    """Return the label names by their numbers."""
    pairs = (pair.split("=", 1) for pair in row["labels"].split(" | ") if pair)
    return {int(number): name for number, name in pairs}


def filled(row: Mapping[str, str], record: Mapping[str, Any]) -> str:
    """Return the line that the table's words and templates give for a record."""
    labels = labels_of(row)
    text = SLOT.sub(lambda slot: str(slot_value(slot[1], record, labels)), row["input_format"])
    whole = re.search(r"whole input: (\w+)", row["cleaning"])
    if whole:
        text = apply(whole[1], text, record, labels)
    output = SLOT.sub(lambda slot: str(slot_value(slot[1], record, labels)), row["output_format"])
    return f"{text}\t{output}"


def slot_value(slot: str, record: Mapping[str, Any], labels: Mapping[int, str]) -> Any:
    """Return what a slot stands for."""
    field, *filters = slot.split("|")
    if field.startswith("["):
        value: Any = [record[name] for name in field.strip("[]").split(",")]
    else:
        value = record
        for part in field.split("."):
            value = [item[part] for item in value] if isinstance(value, list) else value[part]
    for name in filters:
        value = apply(name, value, record, labels)
    return value


def apply(name: str, value: Any, record: Mapping[str, Any], labels: Mapping[int, str]) -> Any:
    """Return a value after one filter."""
    name, _, other = name.partition(":")
    if name == "name":
        return labels[int(value)]
    if name in ("at", "at1"):
        index = str(record[other]).strip()
        return value[LETTERS.index(index) if index in LETTERS else int(index) - (name == "at1")]
    if name in ("keyed", "pick"):
        pairs = list(zip(value["label"], value["text"], strict=True))
        if name == "pick":
            return dict(pairs)[record[other]]
        return "".join(f" ({label}) {text}" for label, text in pairs)
    if name == "lettered":
        return "".join(f" ({LETTERS[i]}) {text}" for i, text in enumerate(value))
    if name == "tight":
        return "".join(f"({LETTERS[i]}){text}" for i, text in enumerate(value))
    if name == "nonempty":
        return [item for item in value if item != ""]
    if name == "set":
        return sorted(set(value), key=value.index)
    if name in ("join", "tabs"):
        return {"join": " ", "tabs": "\t"}[name].join(value)
    if name == "first":
        return value[0]
    if isinstance(value, list):
        return [apply(name, item, record, labels) for item in value]
    if name == "clean":
        for odd in ("\n", "\\n", "\r", "\t"):
            value = value.strip().replace(odd, " ")
        return re.sub(r"\s+", " ", value).strip()
    return {
        "strip": lambda: value.strip(),
        "lf": lambda: " ".join(value.split("\n")),
        "lf_n": lambda: " [n] ".join(value.split("\n")),
        "breaks": lambda: re.sub("[\n\t\r]", " ", value),
        "bsn": lambda: " ".join(value.split("\\n")),
        "unquoted": lambda: re.sub(r"\A'+|'+\Z", "", value),
        "unspaced": lambda: "".join(value.split(" ")),
        "lower": lambda: value.lower(),
    }[name]()


# Shapes that the filters of a slot do not tell.
SHAPES: dict[str, Any] = {
    "answers.text": {"text": "list", "answer_start": [3]},
    "choices.text": {"text": "list", "label": ["A", "B", "C", "D"]},
    "output.answer": "items",
    "sql.human_readable": {"human_readable": "text"},
    "question.normalized": {"normalized": "text"},
    "input_text.context": {"context": "text"},
    "dialogue": {"dream": "list"},
}
LISTS = ("lettered", "tight", "join", "tabs", "set", "first", "nonempty")


def records_for(row: Mapping[str, str]) -> list[dict[str, Any]]:
    """Make two records that a task's templates can be filled from: one plain, one awkward."""
    return [_record(row, n) for n in range(2)]


def _record(row: Mapping[str, str], n: int) -> dict[str, Any]:
    numbers = sorted(labels_of(row))
    record: dict[str, Any] = {}
    slots = SLOT.findall(row["input_format"] + row["output_format"])
    for slot in sorted(slots, key=lambda slot: "|" not in slot):
        field, *filters = slot.split("|")
        if field.startswith("["):
            for name in field.strip("[]").split(","):
                record[name] = text(name, n)
        elif "keyed" in filters or any(name.startswith("pick") for name in filters):
            own = ["1", "2", "3"] if n else ["A", "B", "C"]
            texts = [text(f"choice {label}", n) for label in own]
            record[field] = {"label": own, "text": texts}
        elif "name" in filters:
            boolean = row["task"] == "boolq"
            record[field] = bool(n) if boolean else numbers[-1 if n else 0]
        elif field in SHAPES and "." in field:
            first, second = field.split(".")
            shape = SHAPES[field]
            many = [text(f"{second} {i}", n) for i in range(4)]
            # One answer is asked for here, and repeated ones elsewhere.
            many = many[:1] if row["task"] == "adversarialqa" else [*many, many[0]]
            if "at" in slot.split("|")[-1]:
                many = many[:4]
            if shape == "items":
                record[first] = [{second: item} for item in [*many, ""]]
            else:
                kinds = {"list": many, "text": text(second, n)}
                record[first] = {
                    k: kinds.get(v, v) if isinstance(v, str) else v for k, v in shape.items()
                }
        elif _is_list(filters):
            record.setdefault(field, [text(f"{field} {i}", n) for i in range(3)])
        else:
            record.setdefault(field, text(field, n))
        for name in filters:
            kind, _, other = name.partition(":")
            if kind == "pick":
                record[other] = "2" if n else "C"
            elif kind in ("at", "at1"):
                letter = other in ("answer", "answerKey", "answer_label_as_choice")
                number = ["1", "2"][n] if kind == "at1" else [0, "1"][n]
                record[other] = ["A", "C"][n] if letter and kind == "at" else number
    return record


def _is_list(filters: list[str]) -> bool:
    return any(name in LISTS or name.startswith("at") for name in filters)


def text(name: str, n: int) -> str:
    """Return a text; every other one holds what cleaning is about."""
    return f"  '{name} \n of\\nThe\t{n}  x\r'\n" if n else f"{name} is {n}"
