"""The progress of groups: per group and segment, the floor and the state above it.

``floor`` is a column, so that retention can compare it; ``state`` (acked ranges, attempts) is the
group's own and opaque here.  A group counts for a stream's retention once it is subscribed.

A state of very many acked ranges names a *base* that holds most of them (``progress_bases``), so
that a commit does not write a million ranges again.  What names one begins with
:data:`_NAMES_BASE`, and whoever reads a row is given its base.  A base stays as long as anything
names it.

Rows are read and written by ``groups/progress/store.py``.  :func:`put` and :func:`replace` let no
floor fall, whatever they are given; :func:`reset` is the one that does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec

from headrace.catalog.transaction import FREQUENT, Query, Tx, in_parts

_INSERT = (
    "INSERT INTO progress (group_name, segment_id, floor, state) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (group_name, segment_id) DO UPDATE "
    "SET floor = excluded.floor, state = excluded.state"
)
_PUT = f"{_INSERT} WHERE excluded.floor >= progress.floor"
_REPLACE = (
    "UPDATE progress SET floor = ?, state = ? "
    "WHERE group_name = ? AND segment_id = ? AND state = ? AND floor <= ?"
)


LAYERED = b"\x94\x02"
"""With what a state begins that names a base."""
BOTH = b"\x00"
"""With what a state and its base begin, where a look gives them as one."""
_NAMES_BASE = LAYERED + b"\xc4\x10"
_NAME_AT, _NAME_BYTES = len(_NAMES_BASE), 16
_PUT_BASE = (
    "INSERT INTO progress_bases (group_name, segment_id, name, ranges) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (group_name, segment_id, name) DO NOTHING"
)
_NAMED = f"substr({{}}, {_NAME_AT + 1}, {_NAME_BYTES}) = b.name"
_DROP_BASES = (
    "DELETE FROM progress_bases AS b WHERE b.group_name = ? AND b.segment_id = ? AND NOT EXISTS ("
    "SELECT 1 FROM progress AS p WHERE p.group_name = b.group_name AND p.segment_id = b.segment_id "
    f"AND {_NAMED.format('p.state')}) AND NOT EXISTS (SELECT 1 FROM region_cursors AS c "
    "WHERE c.reader = b.group_name AND c.segment_id = b.segment_id "
    f"AND {_NAMED.format('c.local')}) AND NOT EXISTS (SELECT 1 FROM region_trims AS t "
    "WHERE t.reader = b.group_name AND t.segment_id = b.segment_id "
    f"AND {_NAMED.format('t.state')})"
)


class Progress(msgspec.Struct, frozen=True, gc=False):
    """A group's place in one segment: everything below ``floor`` is acked."""

    group: str
    segment_id: int
    floor: int
    state: bytes = b""
    base: bytes = b""
    """What the base holds that ``state`` names; to be written with it, if it may not be there."""


def base_name(state: bytes) -> bytes:
    """The name of the base that a state stands on; empty without one."""
    if not state.startswith(_NAMES_BASE):
        return b""
    return state[_NAME_AT : _NAME_AT + _NAME_BYTES]


def base_of(tx: Tx, group: str, segment_id: int, state: bytes) -> bytes:
    """What the base holds that a state names; empty without one, or where it is missing."""
    name = base_name(state)
    row = name and tx.row(
        "SELECT ranges FROM progress_bases WHERE group_name = ? AND segment_id = ? AND name = ?",
        (group, segment_id, name),
    )
    return bytes(row[0]) if row else b""


def with_base(tx: Tx, row: Progress) -> Progress:
    """A row with what its base holds.

    On PostgreSQL it may have been given another one since it was read: then it is read again.  One
    whose base is missing is given as it is, and cannot be decoded.
    """
    while base_name(row.state):  # seldom
        found = base_of(tx, row.group, row.segment_id, row.state)
        if found:
            return msgspec.structs.replace(row, base=found)
        again = tx.row(
            "SELECT floor, state FROM progress WHERE group_name = ? AND segment_id = ?",
            (row.group, row.segment_id),
        )
        if again is None or bytes(again[1]) == row.state:
            return row
        row = Progress(row.group, row.segment_id, int(again[0]), bytes(again[1]))
    return row


def drop_bases(tx: Tx, places: Iterable[tuple[str, int]]) -> None:
    """Forget the bases of rows, of groups and segments, that nothing names any more."""
    tx.later(_DROP_BASES, *places)


def subscribe(tx: Tx, stream_id: int, group: str) -> None:
    """From now on, this group holds back the stream's retention."""
    tx.later(
        "INSERT INTO subscriptions (stream_id, group_name, created_us) VALUES (?, ?, ?) "
        "ON CONFLICT (stream_id, group_name) DO NOTHING",
        (stream_id, group, tx.now_us()),
    )


def unsubscribe(tx: Tx, stream_id: int, group: str) -> None:
    """Forget the group and its progress in this stream."""
    tx.execute(
        "DELETE FROM progress WHERE group_name = ? AND segment_id IN "
        "(SELECT id FROM segments WHERE stream_id = ?)",
        (group, stream_id),
    )
    tx.execute(
        "DELETE FROM progress_bases WHERE group_name = ? AND segment_id IN "
        "(SELECT id FROM segments WHERE stream_id = ?)",
        (group, stream_id),
    )
    tx.execute(
        "DELETE FROM subscriptions WHERE stream_id = ? AND group_name = ?", (stream_id, group)
    )


def let_go(tx: Tx, stream_id: int, group: str) -> None:
    """Retention waits for this group no longer; its progress stays as it is."""
    tx.execute(
        "DELETE FROM subscriptions WHERE stream_id = ? AND group_name = ?", (stream_id, group)
    )


def subscribed(tx: Tx, stream_id: int) -> list[str]:
    rows = tx.rows(
        "SELECT group_name FROM subscriptions WHERE stream_id = ? ORDER BY group_name", (stream_id,)
    )
    return [str(row[0]) for row in rows]


def subscribed_to(tx: Tx, stream_ids: Sequence[int]) -> dict[int, list[str]]:
    """As :func:`subscribed`, of several streams."""
    found: dict[int, list[str]] = {}
    for part, marks in in_parts(stream_ids):
        query = f"SELECT stream_id, group_name FROM subscriptions WHERE stream_id IN ({marks})"
        for stream_id, group in tx.rows(query, tuple(part)):
            found.setdefault(int(stream_id), []).append(str(group))
    return found


@lru_cache(maxsize=256)
def channel(group: str) -> str:
    """The channel that is told, a few times a second at most, that the group's progress moved."""
    return f"{FREQUENT}progress:{group}"


def seek_channel(group: str) -> str:
    """The channel that tells the owners of a group's units that they may have lost them."""
    return f"seek:{group}"


def asking(group: str, ids: Sequence[int] | None = None) -> list[Query]:
    """The queries of :func:`of_group`."""
    query = "SELECT segment_id, floor, state FROM progress WHERE group_name = ?"
    if ids is None:
        return [(query, (group,))]
    return [
        (f"{query} AND segment_id IN ({marks})", (group, *part)) for part, marks in in_parts(ids)
    ]


def of_groups(tx: Tx, groups: Sequence[str], segment_id: int) -> dict[str, Progress]:
    """The rows of several groups in one segment, by group."""
    found = {}
    for part, marks in in_parts(groups):
        query = (
            "SELECT group_name, floor, state FROM progress WHERE segment_id = ? "
            f"AND group_name IN ({marks})"
        )
        for group, floor, state in tx.rows(query, (segment_id, *part)):
            found[group] = with_base(tx, Progress(group, segment_id, floor, bytes(state)))
    return found


def of_group(tx: Tx, group: str, ids: Sequence[int] | None = None) -> list[Progress]:
    """The rows of a group, all or those of some segments."""
    found = []
    for query in asking(group, ids):
        found += tx.rows(*query)
    return [
        with_base(tx, Progress(group, segment_id, floor, bytes(state)))
        for segment_id, floor, state in found
    ]


def put(tx: Tx, *rows: Progress) -> None:
    """Record progress, row by row; one whose floor would fall is left as it is."""
    _put_bases(tx, rows)
    tx.later(_PUT, *((row.group, row.segment_id, row.floor, row.state) for row in rows))


def replace(tx: Tx, rows: Sequence[tuple[Progress, bytes]]) -> int:
    """Compare-and-set: record rows whose state is still the given one; returns how many were."""
    params = [
        (row.floor, row.state, row.group, row.segment_id, before, row.floor) for row, before in rows
    ]
    return _each(tx, _REPLACE, params)


def reset(tx: Tx, *rows: Progress) -> None:
    """Record progress in place of what is there, whatever that is."""
    _put_bases(tx, rows)
    tx.later(_INSERT, *((row.group, row.segment_id, row.floor, row.state) for row in rows))
    drop_bases(tx, ((row.group, row.segment_id) for row in rows))


def _put_bases(tx: Tx, rows: Sequence[Progress]) -> None:
    bases = [(r.group, r.segment_id, base_name(r.state), r.base) for r in rows if r.base]
    if bases:
        tx.later(_PUT_BASE, *bases)


def put_prepared(tx: Tx, group: str, line: str, count: int) -> bool:
    """Compare-and-set: record what was prepared with the ``count`` spans of a line of Spark.

    All, if each row is still what it was prepared from, or else none.  The caller holds the claims:
    an ack that was under way is stored by then.
    """
    tx.later("SAVEPOINT prepared", ())
    with tx.joining_many():
        put = tx.execute(
            "UPDATE progress SET floor = spark_spans.floor, state = spark_spans.state "
            "FROM spark_spans WHERE spark_spans.line = ? AND progress.group_name = ? "
            "AND progress.segment_id = spark_spans.segment_id AND progress.state = spark_spans.was",
            (line, group),
        )
    if put < count:
        put += tx.execute(
            "INSERT INTO progress (group_name, segment_id, floor, state) "
            "SELECT ?, segment_id, floor, state FROM spark_spans WHERE line = ? AND was IS NULL "
            "ON CONFLICT (group_name, segment_id) DO NOTHING",
            (group, line),
        )
    if put < count:
        tx.later("ROLLBACK TO SAVEPOINT prepared", ())
    tx.later("RELEASE SAVEPOINT prepared", ())
    return put == count


def _each(tx: Tx, sql: str, params: Sequence[Sequence[object]]) -> int:
    if len(params) == 1:
        return tx.execute(sql, params[0])
    return tx.executemany(sql, params) if params else 0


def forget(tx: Tx, group: str) -> None:
    """Delete everything that is known of a group's progress and of what it reads."""
    tx.execute("DELETE FROM progress WHERE group_name = ?", (group,))
    tx.execute("DELETE FROM progress_bases WHERE group_name = ?", (group,))
    tx.execute("DELETE FROM subscriptions WHERE group_name = ?", (group,))


def floors(tx: Tx, segment_ids: Sequence[int]) -> dict[int, dict[str, int]]:
    """{segment id: {reader: its floor}} of those that have come anywhere."""
    found: dict[int, dict[str, int]] = {}
    for part, marks in in_parts(segment_ids):
        query = f"SELECT segment_id, group_name, floor FROM progress WHERE segment_id IN ({marks})"
        for segment_id, group, floor in tx.rows(query, tuple(part)):
            found.setdefault(int(segment_id), {})[str(group)] = int(floor)
    return found
