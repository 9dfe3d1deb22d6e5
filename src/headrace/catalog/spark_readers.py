"""Spark queries that read for reader groups: lines, bindings, and what was counted.

What a line holds is the business of ``groups/readers``.  Rows of lines are locked before those of
claims, by everybody, so that nobody waits in a circle.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headrace.catalog.transaction import Tx, in_parts

KEPT = 1000
"""So many batches of a query are remembered, as many as the sequences of a producer."""


class LineRow(msgspec.Struct, frozen=True):
    """A checkpoint directory, and the reader that it is in a group."""

    line: str
    group: str
    reader: str
    data: bytes


class BindingRow(msgspec.Struct, frozen=True):
    """To which opening of a line the rows of a run's batch belong."""

    run: str
    line: str
    opening: str
    planned: str


def channel(line: str) -> str:
    """The channel that is notified when what is stored of a line changes."""
    return f"spark-line:{line}"


_LINE = "SELECT line, group_name, reader, data FROM spark_lines WHERE"


def lines(tx: Tx, names: Iterable[str], *, hold: bool = False) -> dict[str, LineRow]:
    """Lines by name; with ``hold`` nobody else changes them before this transaction is over."""
    found: dict[str, LineRow] = {}
    end = f" ORDER BY line{tx.for_update}" if hold else ""
    for part, marks in in_parts(sorted(set(names))):
        for row in tx.rows(f"{_LINE} line IN ({marks}){end}", part):
            found[row[0]] = LineRow(row[0], row[1], row[2], bytes(row[3]))
    return found


def lines_of_group(tx: Tx, group: str, *, hold: bool = False) -> list[LineRow]:
    """All lines of a group, by name."""
    end = f" ORDER BY line{tx.for_update if hold else ''}"
    rows = tx.rows(f"{_LINE} group_name = ?{end}", (group,))
    return [LineRow(line, group, reader, bytes(data)) for line, group, reader, data in rows]


def put_line(tx: Tx, row: LineRow) -> None:
    """Store a line."""
    tx.execute(
        "INSERT INTO spark_lines (line, group_name, reader, data) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (line) DO UPDATE SET group_name = excluded.group_name, "
        "reader = excluded.reader, data = excluded.data",
        (row.line, row.group, row.reader, row.data),
    )
    tx.notify(channel(row.line))


def forget_group(tx: Tx, group: str) -> None:
    """A group is deleted: whoever is bound to one of its lines finds none."""
    for row in lines_of_group(tx, group):
        tx.notify(channel(row.line))
    tx.execute("DELETE FROM spark_lines WHERE group_name = ?", (group,))


def bind(tx: Tx, query: str, batch: int, row: BindingRow) -> None:
    """Note whose rows a batch has."""
    tx.execute(
        "INSERT INTO spark_bindings (query, batch, run, line, opening, planned) "
        "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (query, batch, run, line) DO UPDATE SET "
        "opening = excluded.opening, planned = excluded.planned",
        (query, batch, row.run, row.line, row.opening, row.planned),
    )
    tx.execute("DELETE FROM spark_bindings WHERE query = ? AND batch <= ?", (query, batch - KEPT))


def bindings(tx: Tx, query: str, batch: int) -> list[BindingRow]:
    """Whose rows the runs of a batch have."""
    rows = tx.rows(
        "SELECT run, line, opening, planned FROM spark_bindings WHERE query = ? AND batch = ? "
        "ORDER BY run, line",
        (query, batch),
    )
    return [BindingRow(*row) for row in rows]


def counted(tx: Tx, query: str, batch: int) -> frozenset[str] | None:
    """The planned batches that were counted under this number; None if it was not counted."""
    row = tx.row("SELECT planned FROM spark_counted WHERE query = ? AND batch = ?", (query, batch))
    return None if row is None else frozenset(str(row[0]).split())


def record(tx: Tx, query: str, batch: int, planned: Iterable[str]) -> None:
    """Note that planned batches were counted under this number."""
    tx.execute(
        "INSERT INTO spark_counted (query, batch, planned) VALUES (?, ?, ?)",
        (query, batch, " ".join(sorted(planned))),
    )
    tx.execute("DELETE FROM spark_counted WHERE query = ? AND batch <= ?", (query, batch - KEPT))
