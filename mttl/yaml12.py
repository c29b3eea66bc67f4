"""YAML 1.2: `1e-3` is a number, `010` is ten, `no` is a word, and no key stands twice."""

import io
from typing import Any

from ruamel.yaml import YAML, YAMLError
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.representer import SafeRepresenter
from ruamel.yaml.resolver import VersionedResolver

__all__ = ["YAMLError", "dump", "parse", "problem"]


class _CoreSchema(VersionedResolver):
    """The scalars of YAML 1.2's core schema: dates, `1_000` and `=` are words."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        tag = super().resolve(kind, value, implicit)
        name = str(tag).rpartition(":")[2]
        if name in ("timestamp", "value") or (name in ("int", "float") and "_" in value):
            return super().resolve(kind, "word", implicit)
        return tag


class _Representer(SafeRepresenter):
    """Writes floats with a point, which readers of YAML 1.1 need."""

    def represent_float(self, data: float) -> ScalarNode:
        node = super().represent_float(data)
        if "." not in node.value:
            node.value = node.value.replace("e", ".0e")
        return node


_Representer.add_representer(float, _Representer.represent_float)


def parse(text: str) -> Any:
    """Read YAML.

    Args:
        text: The document.

    Raises:
        YAMLError: If it is malformed, or a key stands twice.
    """
    return _yaml().load(text)


def dump(tree: Any) -> str:
    """Return a tree of mappings, lists and scalars as YAML that `parse` reads back."""
    text = io.StringIO()
    _yaml().dump(tree, text)
    return text.getvalue()


def problem(error: YAMLError) -> str:
    """Return an error of `parse` in one line."""
    mark = getattr(error, "problem_mark", None)
    where = f"line {mark.line + 1}: " if mark is not None else ""
    return " ".join(f"{where}{getattr(error, 'problem', None) or error}".split())


def _yaml() -> YAML:
    yaml = YAML(typ="safe", pure=True)
    yaml.Resolver, yaml.Representer = _CoreSchema, _Representer
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 80
    return yaml
