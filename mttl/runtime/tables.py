"""Tables that commands print."""

from collections.abc import Iterable, Sequence

from rich.markup import escape
from rich.table import Table


def make_table(
    title: str,
    texts: Sequence[str],
    numbers: Sequence[str],
    rows: Iterable[Sequence[object]] = (),
    *,
    caption: str | None = None,
    last: Sequence[object] | None = None,
) -> Table:
    """Return a table: texts fold where the terminal is narrow, and numbers never do.

    Args:
        title: Its title.
        texts: Headings of the first columns.
        numbers: Headings of the others.
        rows: Cells of every row; brackets in them are no markup.
        caption: What stands below.
        last: A row of its own, such as means.
    """
    table = Table(title=escape(title), title_justify="left", caption_justify="left")
    table.caption = caption
    for heading in texts:
        table.add_column(escape(heading), overflow="fold")
    for heading in numbers:
        table.add_column(escape(heading), justify="right", no_wrap=True, min_width=5)
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row))
    if last is not None:
        table.add_section()
        table.add_row(*(escape(str(cell)) for cell in last))
    return table
