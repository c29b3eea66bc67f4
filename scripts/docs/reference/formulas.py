"""Formulas of docstrings as MathML, which browsers draw without scripts."""

import html
import re
from importlib import import_module
from importlib.util import find_spec

# Formulas of more characters scroll on a phone.
LONG = 30
_INLINE = re.compile(r":math:<code>(.*?)</code>", re.DOTALL)
_LINE = re.compile(r"<p>\.\. math::\s(.+?)</p>", re.DOTALL)
_BLOCK = re.compile(r"<p>\.\. math::</p>\s*<div[^>]*>\s*<pre>(.*?)</pre>\s*</div>", re.DOTALL)
_RAISED = re.compile(r"(?:\\ )?:(su[bp]):<code>(.*?)</code>(?:\\ (?=\w))?")


def with_formulas(page: str) -> str:
    """Return the HTML of a page whose formulas are drawn; those of LaTeX need `latex2mathml`."""
    page = _RAISED.sub(r"<\1>\2</\1>", page)
    page = _BLOCK.sub(lambda found: _formula(found[1], "block"), page)
    page = _LINE.sub(lambda found: _formula(found[1], "block"), page)
    return _INLINE.sub(lambda found: _formula(found[1], "inline"), page)


def _formula(latex: str, display: str) -> str:
    text = " ".join(html.unescape(re.sub(r"<[^>]+>", "", latex)).split())
    if find_spec("latex2mathml") is None:
        return f"<code>{html.escape(text)}</code>"
    if "&" in text:  # lines that are aligned
        text = rf"\begin{{matrix}}{text}\end{{matrix}}"
    drawn = import_module("latex2mathml.converter").convert(text, display=display)
    return f'<span class="formula">{drawn}</span>' if len(text) > LONG else drawn
