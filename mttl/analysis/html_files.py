"""The files that the page is made of, and data inside them."""

import json
from importlib import resources
from typing import Any


def html_text(name: str) -> str:
    """Return a file of this folder, as text; names to fill in stand in double braces."""
    return resources.files("mttl.analysis").joinpath(name).read_text("utf-8")


def inside_script(data: Any) -> str:
    """Return JSON that can neither end the element it stands in nor open a comment."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
