"""Tables that commands print."""

from collections.abc import Iterable
from numbers import Integral, Real
from typing import Self

from rich.markup import escape
from rich.table import Table


class TextTable(Table):
    """A table with escaped text and a fixed number of digits."""

    def __init__(self, title: str | None = None, *, digits: int = 3) -> None:
        super().__init__(title=title and escape(title), title_justify="left")
        self.caption_justify = "left"
        self.digits = digits

    def words(self, *heads: str) -> Self:
        """Add text columns, which break long words."""
        for head in heads:
            self.add_column(escape(head), overflow="fold")
        return self

    def numbers(self, *heads: str) -> Self:
        """Add number columns."""
        for head in heads:
            self.add_column(escape(head), justify="right", no_wrap=True)
        return self

    def add(self, *cells: object, then: Iterable[object] = ()) -> None:
        """Add a row of ``cells`` followed by ``then``."""
        self.add_row(*map(self._cell, (*cells, *then)))

    def _cell(self, value: object) -> str:
        if isinstance(value, Real) and not isinstance(value, Integral):
            return f"{value:.{self.digits}f}"
        return escape(str(value))
