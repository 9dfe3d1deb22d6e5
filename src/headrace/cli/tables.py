"""Tables on the screen, also those of thousands of rows.

rich measures and wraps every cell, half a millisecond a row.  A long table is written in plain
columns instead, each as wide as its widest cell.
"""

from __future__ import annotations

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

ROWS_MANY = 500


def show(console: Console, table: RenderableType) -> None:
    """Print what a command shows; a long table without colours and wrapping."""
    if not isinstance(table, Table) or table.row_count <= ROWS_MANY:
        console.print(table)
        return
    columns = []
    for column in table.columns:
        cells = [_plain(cell) for cell in (column.header, *column.cells)]
        width = max(map(len, cells))
        right = column.justify == "right"
        columns.append([cell.rjust(width) if right else cell.ljust(width) for cell in cells])
    for row in zip(*columns, strict=True):
        console.file.write(" ".join(row).rstrip() + "\n")


def _plain(cell: object) -> str:
    text = str(cell)
    if isinstance(cell, Text):
        return cell.plain
    return Text.from_markup(text).plain if "[" in text or "\\" in text else text
