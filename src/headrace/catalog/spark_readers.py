"""Spark queries that read for reader groups: lines, their spans, bindings, and what was counted.

What a line holds is the business of ``groups/readers``.  Rows of lines are locked before those of
claims, by everybody, so that nobody waits in a circle.

A batch may have spans of a thousand segments, and a sink counts it within its own transaction.  So
the progress that it leaves is written beside the spans when the batch is opened, and counting is a
comparison of claims (:func:`hold_claims`) and a compare-and-set of progress
(``progress.put_prepared``), a statement each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from headrace.catalog.transaction import Tx, in_parts

KEPT = 1000
"""How many batches of a query are remembered; as many as sequences of a producer."""


class LineRow(msgspec.Struct, frozen=True):
    """A checkpoint directory, and the reader that it is in a group."""

    line: str
    group: str
    reader: str
    data: bytes


class SpanRow(msgspec.Struct, frozen=True):
    """What an opening reads of a segment, and what becomes of the group's progress there."""

    segment_id: int
    unit: str
    token: int
    ranges: bytes
    was: bytes | None
    """The state of the progress when it was opened; None: there was none."""
    floor: int
    state: bytes


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
    end = f" ORDER BY line{tx.by_bytes}{tx.for_update}" if hold else ""
    for part, marks in in_parts(sorted(set(names))):
        for row in tx.rows(f"{_LINE} line IN ({marks}){end}", part):
            found[row[0]] = LineRow(row[0], row[1], row[2], bytes(row[3]))
    return found


def lines_of_group(tx: Tx, group: str, *, hold: bool = False) -> list[LineRow]:
    """All lines of a group, by name."""
    end = f" ORDER BY line{tx.by_bytes}{tx.for_update if hold else ''}"
    rows = tx.rows(f"{_LINE} group_name = ?{end}", (group,))
    return [LineRow(line, group, reader, bytes(data)) for line, group, reader, data in rows]


def put_line(tx: Tx, row: LineRow) -> None:
    """Store a line."""
    tx.later(
        "INSERT INTO spark_lines (line, group_name, reader, data, used_us) "
        "VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (line) DO UPDATE SET group_name = excluded.group_name, "
        "reader = excluded.reader, data = excluded.data, used_us = excluded.used_us",
        (row.line, row.group, row.reader, row.data, tx.now_us()),
    )
    tx.notify(channel(row.line))


def unused(tx: Tx, before_us: int) -> list[str]:
    """Lines of which nothing was stored since, and those of which it is not known."""
    rows = tx.rows("SELECT line FROM spark_lines WHERE used_us < ? ORDER BY line", (before_us,))
    return [str(row[0]) for row in rows]


def stamp_lines(tx: Tx, now_us: int) -> None:
    """Lines of which it is not known when they were used count as used now."""
    tx.execute("UPDATE spark_lines SET used_us = ? WHERE used_us = 0", (now_us,))


_SPANS = "SELECT segment_id, unit, token, ranges, was, floor, state FROM spark_spans WHERE line = ?"


def spans(tx: Tx, line: str) -> list[SpanRow]:
    """What the newest opening of a line reads."""
    return [
        SpanRow(key, unit, token, bytes(ranges), None if was is None else bytes(was), floor, state)
        for key, unit, token, ranges, was, floor, state in tx.rows(_SPANS, (line,))
    ]


def put_spans(tx: Tx, line: str, rows: Iterable[SpanRow]) -> None:
    """Replace the spans of a line; the caller holds it."""
    tx.later("DELETE FROM spark_spans WHERE line = ?", (line,))
    tx.later(
        "INSERT INTO spark_spans (line, segment_id, unit, token, ranges, was, floor, state) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        *((line, *msgspec.structs.astuple(row)) for row in rows),
    )


def hold_claims(tx: Tx, line: str, group: str) -> int | None:
    """How many spans a line has, if all have the claims of the moment they were opened.

    If so, nobody else changes a claim of them before this transaction is over; see ``claims.hold``.
    """
    locked = f" ORDER BY claims.unit{tx.by_bytes}{tx.for_update} OF claims" if tx.for_update else ""
    with tx.joining_many():
        found = tx.row(
            "SELECT (SELECT COUNT(*) FROM spark_spans WHERE line = ?), COUNT(*) FROM ("
            "SELECT claims.unit FROM spark_spans JOIN claims ON claims.group_name = ? "
            "AND claims.unit = spark_spans.unit AND claims.token = spark_spans.token "
            f"WHERE spark_spans.line = ? AND claims.owner IS NOT NULL{locked}) AS held",
            (line, group, line),
        )
    assert found is not None
    return int(found[0]) if found[0] == found[1] else None


def forget_group(tx: Tx, group: str) -> None:
    """A group is deleted: whoever is bound to one of its lines finds none."""
    forget_lines(tx, [row.line for row in lines_of_group(tx, group)])


def forget_lines(tx: Tx, names: Sequence[str]) -> None:
    """Forget lines: whoever is bound to one of them finds none."""
    for part, marks in in_parts(names):
        tx.execute(f"DELETE FROM spark_lines WHERE line IN ({marks})", part)
        tx.execute(f"DELETE FROM spark_spans WHERE line IN ({marks})", part)
    for name in names:
        tx.notify(channel(name))


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
