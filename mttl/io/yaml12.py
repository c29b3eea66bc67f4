"""YAML 1.2: `1e-3` is a number, `010` is ten, `no` is a string, and repeated keys are errors."""

import copy
import io
from functools import lru_cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML, YAMLError
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.representer import SafeRepresenter
from ruamel.yaml.resolver import VersionedResolver

from mttl.io.errors import MttlError, raised_as
from mttl.io.reading import read_text, reason

__all__ = ["YAMLError", "dump", "parse", "parse_at", "problem", "read_yaml"]


class _CoreSchema(VersionedResolver):
    """Scalars of YAML 1.2's core schema: dates, `1_000` and `=` are strings."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        tag = super().resolve(kind, value, implicit)
        name = str(tag).rpartition(":")[2]
        if name in ("timestamp", "value") or (name in ("int", "float") and "_" in value):
            return super().resolve(kind, "word", implicit)
        return tag


class _Representer(SafeRepresenter):
    """Writes floats with a decimal point, which YAML 1.1 parsers need."""

    def represent_float(self, data: float) -> ScalarNode:
        node = super().represent_float(data)
        if "." not in node.value:
            node.value = node.value.replace("e", ".0e")
        return node


_Representer.add_representer(float, _Representer.represent_float)


def parse(text: str) -> Any:
    """Return the tree of a YAML document; raises a `YAMLError` for malformed ones."""
    return copy.deepcopy(_parsed(text))


@lru_cache(maxsize=256)  # ruamel is slow, and fragments are reused
def _parsed(text: str) -> Any:
    try:
        return _yaml().load(text)
    except YAMLError:
        raise
    except Exception as error:  # keys that are lists, bugs of ruamel
        raise YAMLError(f"it cannot be read ({reason(error)})") from error


def parse_at(place: str, text: str, error: type[MttlError]) -> Any:
    """Return the tree of a YAML text; errors are of the given class, with the place."""
    with raised_as(error, place, YAMLError, text=problem):
        return parse(text)


def read_yaml(path: str | Path, error: type[MttlError]) -> Any:
    """Return the tree of a YAML file; errors are of the given class."""
    return parse_at(str(path), read_text(path, error), error)


def dump(tree: Any) -> str:
    """Return a tree of mappings, lists and scalars as YAML."""
    text = io.StringIO()
    _yaml().dump(tree, text)
    return text.getvalue()


def problem(error: YAMLError) -> str:
    """Return an error of `parse` as one line."""
    mark = getattr(error, "problem_mark", None)
    where = f"line {mark.line + 1}: " if mark is not None else ""
    # The message about a repeated key also quotes its values.
    text = str(getattr(error, "problem", None) or error).partition(" with value ")[0]
    return " ".join(f"{where}{text}".split())


def _yaml() -> YAML:
    yaml = YAML(typ="safe", pure=True)
    yaml.Resolver, yaml.Representer = _CoreSchema, _Representer
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 80
    return yaml
