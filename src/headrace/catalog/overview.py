"""What the catalog knows of all groups, or of some, in a fixed number of statements.

Whoever looks at one group could ask for its rows one by one; for a thousand groups that is tens of
thousands of questions.  Here each table is read once, whatever the number of groups, units and
segments.  The rows of progress come with the batch in which the group goes on, found by its place
in the index, so that bytes and age need no question of their own.

Whoever looks again and again (:class:`~headrace.catalog.memory.Memory`) gets what is as it was as
the same objects, and asks for batches only where a group has come to another one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import compress, groupby
from operator import eq, itemgetter, ne
from typing import Any, NamedTuple, TypeAlias

from headrace.catalog.leases import Ended
from headrace.catalog.memory import Memory
from headrace.catalog.progress import BOTH, LAYERED, Progress, with_base
from headrace.catalog.transaction import IN_ONE_QUERY, Row, Tx, in_parts


class Reached(NamedTuple):
    """How far a group has come in a segment, and the batch that holds what comes next.

    The batch is that of the first offset that is neither acked nor trimmed; all None where there
    is nothing to come.
    """

    floor: int
    state: bytes
    """Where it names a base: both, after :data:`~headrace.catalog.progress.BOTH`."""
    start: int | None
    end: int | None
    size_bytes: int | None
    total_bytes: int | None
    created_us: int | None


_BATCH = "b.start_offset, b.end_offset, b.bytes, b.total_bytes, b.created_us"

_PROGRESS = (
    f"SELECT p.group_name, p.segment_id, p.floor, p.state, {_BATCH} "
    "FROM progress p JOIN segments s ON s.id = p.segment_id LEFT JOIN "
)
_NEXT = (
    "FROM batches c WHERE c.segment_id = p.segment_id AND p.floor < s.head AND c.start_offset <= "
    "CASE WHEN p.floor < s.tail THEN s.tail ELSE p.floor END ORDER BY c.start_offset DESC LIMIT 1"
)
_PROGRESS_BY_ID = f"{_PROGRESS} batches b ON b.id = (SELECT c.id {_NEXT})"
_PROGRESS_LATERAL = f"{_PROGRESS} LATERAL (SELECT c.* {_NEXT}) b ON TRUE"
"""Where there is LATERAL, by it: else PostgreSQL looks each batch up twice, or, without statistics,
reads all batches that there are."""

_FIRST = (
    f"SELECT s.id, {_BATCH} FROM segments s JOIN batches b ON b.id = (SELECT c.id FROM batches c "
    "WHERE c.segment_id = s.id ORDER BY c.start_offset LIMIT 1)"
)


def progress(tx: Tx, groups: Sequence[str] | None = None) -> dict[str, dict[int, Reached]]:
    """{name of a reader: {segment id: how far it has come}}, of all or of some."""
    found: defaultdict[str, dict[int, Reached]] = defaultdict(dict)
    make = partial(tuple.__new__, Reached)  # as Reached._make, without a count of the fields
    query = _PROGRESS_LATERAL if tx.lateral else _PROGRESS_BY_ID
    for row in _rows(tx, query, "p.group_name", groups):
        found[row[0]][row[1]] = make(row[2:])
        if row[3][:2] == LAYERED:
            whole = _with_base(tx, *row[:4])
            found[row[0]][row[1]] = found[row[0]][row[1]]._replace(state=whole)
    return dict(found)


def _with_base(tx: Tx, group: str, segment_id: int, floor: int, state: bytes) -> bytes:
    """A state that names a base with what that holds, each by its length."""
    row = with_base(tx, Progress(group, segment_id, floor, bytes(state)))
    return BOTH + len(row.state).to_bytes(4, "little") + row.state + row.base


class KnownProgress:
    """The progress of all, as it was last read."""

    def __init__(self) -> None:
        self.found: dict[str, Mapping[int, Reached]] = {}
        self._rows: list[Row] = []
        self._bounds: Mapping[int, tuple[int, int]] = {}

    def read(
        self, tx: Tx, bounds: Mapping[int, tuple[int, int]]
    ) -> Mapping[str, Mapping[int, Reached]]:
        """As :func:`progress`, of all; ``bounds`` are {segment id: (tail, head)}.

        What is as it was is the same object.  The batch that came next still does while the place
        to go on from lies in it, and where that is the head there is none; elsewhere it is looked
        up.  (Batches that were compacted meanwhile are taken for what they were.)
        """
        rows = tx.rows("SELECT group_name, segment_id, floor, state FROM progress ORDER BY 1, 2")
        changed = self._changed(rows) if bounds is self._bounds else None
        found = {} if changed is None else self.found.copy()
        unknown: list[str] = []
        for name, each in groupby(rows if changed is None else changed, itemgetter(0)):
            known = self.found.get(name)
            seen = None if known is None else _reached(each, known, bounds)
            if seen is None or known is None:
                unknown.append(name)
                found.pop(name, None)
            elif changed is None:
                found[name] = known if known == seen else seen
            else:
                found[name] = seen if len(seen) == len(known) else {**known, **seen}
        few = len(unknown) <= IN_ONE_QUERY
        for name, reached in (progress(tx, unknown if few else None) if unknown else {}).items():
            known = self.found.get(name)
            found[name] = known if known is not None and known == reached else reached
        self.found, self._rows, self._bounds = found, rows, bounds
        return found

    def _changed(self, rows: list[Row]) -> list[Row] | None:
        """The rows that are other than at the last time; None if there are others or fewer."""
        if len(rows) != len(self._rows):
            return None
        differ = [*map(ne, rows, self._rows)]
        changed, before = [*compress(rows, differ)], [*compress(self._rows, differ)]
        for column in (itemgetter(0), itemgetter(1)):  # the same readers in the same segments?
            if not all(map(eq, map(column, changed), map(column, before))):
                return None
        return changed


def _reached(
    rows: Iterable[Row], known: Mapping[int, Reached], bounds: Mapping[int, tuple[int, int]]
) -> dict[int, Reached] | None:
    """How far a reader has come by its rows; None if a batch that comes next is not known."""
    make = partial(tuple.__new__, Reached)
    found = {}
    for _, id, floor, state in rows:
        was, bound = known.get(id), bounds.get(id)
        if bound is None:  # a segment that is gone
            continue
        if was is None or state[:2] == LAYERED:
            return None
        tail, head = bound
        start, end = was[2], was[3]
        if floor >= head:
            if start is not None:
                was = _NOTHING_YET
        elif start is None or end is None or not start <= (floor if floor > tail else tail) < end:
            return None
        same = floor == was[0] and state == was[1]
        found[id] = was if same else make((floor, state, *was[2:]))
    return found


_NOTHING_YET = Reached(-1, b"", None, None, None, None, None)


def first_batches(tx: Tx, ids: Sequence[int]) -> dict[int, Reached]:
    """The first batch that segments retain, for readers that have not begun there."""
    some = ids if len(ids) <= IN_ONE_QUERY else None
    return {
        segment_id: Reached(0, b"", *batch)
        for segment_id, *batch in _rows(tx, _FIRST, "s.id", some)
    }


def markers(tx: Tx, ids: Sequence[int]) -> dict[int, list[int]]:
    """{segment id: offsets of its markers, ascending}."""
    found: dict[int, list[int]] = {}
    query = "SELECT segment_id, at_offset FROM markers"
    for segment_id, offset in _rows(tx, query, "segment_id", ids):
        found.setdefault(segment_id, []).append(offset)
    return {segment_id: sorted(offsets) for segment_id, offsets in found.items()}


Claimed: TypeAlias = Mapping[str, tuple[str | None, int]]
"""{unit: (owner, token)} of a reader."""


def claims(
    tx: Tx, groups: Sequence[str] | None = None, memory: Memory | None = None
) -> Mapping[str, Claimed]:
    """{name of a reader: its claims}, of all or of some."""
    query = "SELECT group_name, unit, owner, token FROM claims"
    rows = _rows(tx, query, "group_name", groups)
    return (memory or Memory()).each("claims", rows, _claims)


def _claims(rows: list[Row]) -> dict[str, Claimed]:
    found: defaultdict[str, dict[str, tuple[str | None, int]]] = defaultdict(dict)
    for name, unit, owner, token in rows:
        if unit:
            found[name][unit] = owner, token
    return dict(found)


def leases(
    tx: Tx, beginnings: Sequence[str] | None = None, memory: Memory | None = None
) -> Mapping[str, Ended]:
    """Leases that have an owner, also those that have run out; all, or by how their names begin."""
    query = (
        "SELECT name, owner, token, expires_us, heard_us, told >= token FROM leases "
        "WHERE owner IS NOT NULL"
    )
    params: list[Any] = []
    if beginnings is not None:
        query += f" AND ({' OR '.join(['substr(name, 1, ?) = ?'] * len(beginnings)) or '1 = 0'})"
        params = [value for text in beginnings for value in (len(text), text)]
    return (memory or Memory()).each("leases", tx.rows(query, params), _leases)


def _leases(rows: list[Row]) -> dict[str, Ended]:
    return {
        name: Ended(name, owner, token, expires_us, heard_us, bool(told))
        for name, owner, token, expires_us, heard_us, told in rows
    }


def entries(
    tx: Tx, buckets: Sequence[str], keys: Sequence[str] | None = None
) -> dict[str, dict[str, bytes]]:
    """{bucket: {key: value}} of buckets, whole or the entries of some keys.

    A bucket that ends in ``:`` stands for all whose names begin like that.
    """
    if not buckets:
        return {}
    plain = [bucket for bucket in buckets if not bucket.endswith(":")]
    begun = [bucket for bucket in buckets if bucket.endswith(":")]
    tests = [f"bucket IN ({', '.join('?' * len(plain))})"] if plain else []
    tests += ["substr(bucket, 1, ?) = ?"] * len(begun)
    params: list[Any] = [*plain, *(value for text in begun for value in (len(text), text))]
    query = f"SELECT bucket, key, value FROM entries WHERE ({' OR '.join(tests)})"
    query += " AND value IS NOT NULL"
    if keys is not None:
        query += f" AND key IN ({', '.join('?' * len(keys))})"
        params += keys
    found: dict[str, dict[str, bytes]] = {bucket: {} for bucket in plain}
    for bucket, key, value in tx.rows(query, params):
        found.setdefault(bucket, {})[key] = bytes(value)
    return found


def _rows(tx: Tx, query: str, column: str, values: Sequence[Any] | None) -> list[Row]:
    """All rows, or those with one of the values, 400 of them at a time."""
    if values is None:
        return tx.rows(query)
    found: list[Row] = []
    for part, marks in in_parts(values):
        found += tx.rows(f"{query} WHERE {column} IN ({marks})", part)
    return found


class BlobRow(NamedTuple):
    """A batch whose events stand in the catalog, as they were stored."""

    segment_id: int
    start: int
    end: int
    layout: int
    checksum: int
    data: bytes


def blobs(tx: Tx, places: Sequence[tuple[int, int]]) -> list[BlobRow]:
    """Those of the batches, by segment and first offset, that are no files."""
    found: list[BlobRow] = []
    for part, _ in in_parts(places):
        tests = " OR ".join(["(segment_id = ? AND start_offset = ?)"] * len(part))
        query = (
            "SELECT segment_id, start_offset, end_offset, layout, checksum, data FROM batches "
            f"WHERE data IS NOT NULL AND ({tests})"
        )
        rows = tx.rows(query, [value for place in part for value in place])
        found += [BlobRow(*row) for row in rows]
    return found
