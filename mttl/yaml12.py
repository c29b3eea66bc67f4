"""YAML without its traps: `1e-3` is a number, `no` is a word, and no key stands twice."""

import re
from collections.abc import Hashable
from typing import Any

import yaml


class Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the scalars of YAML 1.2's core schema."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build a mapping and refuse a key that stands twice."""
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)  # type: ignore[no-untyped-call]
            line = key_node.start_mark.line + 1
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key in line {line} must be a word", None
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key '{key}' stands in lines {seen[key]} and {line}", None
                )
            seen[key] = line
        return super().construct_mapping(node, deep)


# YAML 1.1 reads yes, no, on and off as booleans, 1e-3 as text, and 1:30 as a number in base 60.
Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] in ("null", "merge")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^[-+]?[0-9]+$"), list("-+0123456789")
)
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$|^[-+]?\.(?:inf|Inf|INF)$"
    ),
    list("-+.0123456789"),
)


def parse(text: str) -> Any:
    """Read YAML.

    Args:
        text: The document.

    Raises:
        yaml.YAMLError: If it is malformed, or a key stands twice.
    """
    return yaml.load(text, Loader)  # a subclass of SafeLoader


def problem(error: yaml.YAMLError) -> str:
    """Return an error of `parse` in one line."""
    mark = getattr(error, "problem_mark", None)
    where = f"line {mark.line + 1}: " if mark is not None else ""
    return where + (getattr(error, "problem", None) or str(error))
