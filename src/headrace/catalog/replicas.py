"""What a region keeps of the others: how far each was copied, and progress by origin.

*Places*: up to which offset of another region's segment everything was copied here.  A round moves
a place only from exactly where its plan found it.  Of lanes that came by way of other regions it is
noted up to which sequence: such a row has the lane, behind a "=", in the place of the region.  And
how far another region has copied this one: such a row has its name behind a ">".

*Cursors*: the progress of replicated groups by origin, one row for each row of progress that is
translated (``reader`` is its name).  Revisions count up over all of them, so a neighbour reads what
changed since it last looked.

*Trims*: what a reader had acked when events it had not consumed were removed; and which of those it
passed over, *unread*.  What is acked of the others was in flight when it was trimmed, and counts.
Rows of the second kind have their end, counted down from -1, in the place of the first kind's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from headrace.catalog import schema
from headrace.catalog.transaction import Tx, in_parts

LOCK = "region-cursors"
"""Held while cursors change."""
CHANNEL = "region-cursors"
"""Told when cursors, groups or places changed that neighbours look at."""
_REVISION = "region_revision"


# --- places ----------------------------------------------------------------------------------


class ReplicaPlace(msgspec.Struct, frozen=True):
    """How far a segment of another region was copied into the one here."""

    segment_id: int
    source: str
    source_id: int
    next_offset: int
    missed: int = 0
    moved_us: int = 0


_EVENED = "="
_TAKER = ">"
_PLACE = "segment_id, source, source_id, next_offset, missed, moved_us"


def places(tx: Tx, source: str) -> dict[int, ReplicaPlace]:
    """The places in one region, by the segment here."""
    rows = tx.rows(f"SELECT {_PLACE} FROM replica_places WHERE source = ?", (source,))
    return {int(row[0]): ReplicaPlace(*row) for row in rows}


def all_places(tx: Tx) -> list[ReplicaPlace]:
    """Every place."""
    rows = tx.rows(
        f"SELECT {_PLACE} FROM replica_places WHERE source NOT LIKE '{_EVENED}%' "
        f"AND source NOT LIKE '{_TAKER}%' ORDER BY segment_id, source"
    )
    return [ReplicaPlace(*row) for row in rows]


def streams_of(tx: Tx, source: str) -> list[tuple[str, int]]:
    """The streams that are copied from a region, and when something last came."""
    rows = tx.rows(
        "SELECT t.name, MAX(p.moved_us) FROM replica_places AS p "
        "JOIN segments AS s ON s.id = p.segment_id JOIN streams AS t ON t.id = s.stream_id "
        "WHERE p.source = ? GROUP BY t.name ORDER BY t.name",
        (source,),
    )
    return [(str(name), int(moved_us)) for name, moved_us in rows]


def begin_place(tx: Tx, place: ReplicaPlace) -> bool:
    """Record where copying begins; false if it has begun."""
    done = tx.execute(
        f"INSERT INTO replica_places ({_PLACE}) VALUES (?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (segment_id, source) DO NOTHING",
        (
            place.segment_id,
            place.source,
            place.source_id,
            place.next_offset,
            place.missed,
            tx.now_us(),
        ),
    )
    return bool(done)


def move_place(
    tx: Tx,
    place: ReplicaPlace,
    next_offset: int,
    missed: int = 0,
    *,
    source_id: int | None = None,
) -> bool:
    """Move a place, if it is still exactly where it was.

    ``source_id``: the source began a new life, and copying goes on in that segment of it.
    """
    done = tx.execute(
        "UPDATE replica_places SET source_id = ?, next_offset = ?, missed = missed + ?, "
        "moved_us = ? WHERE segment_id = ? AND source = ? AND source_id = ? AND next_offset = ?",
        (
            place.source_id if source_id is None else source_id,
            next_offset,
            missed,
            tx.now_us(),
            place.segment_id,
            place.source,
            place.source_id,
            place.next_offset,
        ),
    )
    return bool(done)


def evened(tx: Tx) -> dict[int, dict[str, int]]:
    """Up to which sequence lanes came from others than their own region, by segment."""
    rows = tx.rows(
        f"SELECT segment_id, source, next_offset FROM replica_places WHERE source LIKE '{_EVENED}%'"
    )
    found: dict[int, dict[str, int]] = {}
    for segment_id, lane, sequence in rows:
        found.setdefault(int(segment_id), {})[str(lane)[1:]] = int(sequence)
    return found


def put_evened(tx: Tx, segment_id: int, lane: str, sequence: int) -> None:
    """Note that a lane came from another region than its own, up to a sequence."""
    tx.execute(
        f"INSERT INTO replica_places ({_PLACE}) VALUES (?, ?, 0, ?, 0, ?) "
        "ON CONFLICT (segment_id, source) DO UPDATE SET next_offset = excluded.next_offset",
        (segment_id, _EVENED + lane, sequence, tx.now_us()),
    )


def taken(tx: Tx, segment_ids: Sequence[int]) -> dict[int, dict[str, int]]:
    """How far other regions have copied segments of this one, as far as is known: by region."""
    found: dict[int, dict[str, int]] = {}
    for part, marks in in_parts(segment_ids):
        for segment_id, region, offset in tx.rows(
            "SELECT segment_id, source, next_offset FROM replica_places "
            f"WHERE source LIKE '{_TAKER}%' AND segment_id IN ({marks})",
            tuple(part),
        ):
            found.setdefault(int(segment_id), {})[str(region)[1:]] = int(offset)
    return found


def put_taken(tx: Tx, segment_id: int, region: str, offset: int) -> None:
    """Note how far another region has copied a segment; what it has not, is kept for it."""
    tx.execute(
        f"INSERT INTO replica_places ({_PLACE}) VALUES (?, ?, 0, ?, 0, ?) "
        "ON CONFLICT (segment_id, source) DO UPDATE SET next_offset = excluded.next_offset",
        (segment_id, _TAKER + region, offset, tx.now_us()),
    )


def drop_taken(tx: Tx, segment_id: int, region: str) -> None:
    """Nothing is kept for a region any more: it is lost, or was taken out."""
    tx.execute(
        "DELETE FROM replica_places WHERE segment_id = ? AND source = ?",
        (segment_id, _TAKER + region),
    )


# --- cursors ---------------------------------------------------------------------------------


class CursorRow(msgspec.Struct, frozen=True, gc=False):
    """A reader's progress by origin in a segment, and the local state that it was made of."""

    reader: str
    segment_id: int
    revision: int
    ahead: bool
    sought: int
    """0, or what kind of seek has not been translated yet: :data:`SOUGHT`, :data:`SOUGHT_END`."""
    state: bytes
    local: bytes


SOUGHT = 1
SOUGHT_END = 2
"""A seek to the end of what was here then."""

_CURSOR = "reader, segment_id, revision, ahead, sought, state, local"


def _cursor(row: tuple[object, ...]) -> CursorRow:
    reader, segment_id, revision, ahead, sought, state, local = row
    return CursorRow(
        str(reader),
        int(segment_id),  # type: ignore[call-overload]
        int(revision),  # type: ignore[call-overload]
        bool(ahead),
        int(sought),  # type: ignore[call-overload]
        bytes(state),  # type: ignore[call-overload]
        bytes(local),  # type: ignore[call-overload]
    )


def cursors(
    tx: Tx, readers: Sequence[str], segment_id: int | None = None
) -> dict[tuple[str, int], CursorRow]:
    """The cursors of some readers, in all segments or in one, by reader and segment."""
    found = {}
    where, of = ("", ()) if segment_id is None else (" AND segment_id = ?", (segment_id,))
    for part, marks in in_parts(readers):
        query = f"SELECT {_CURSOR} FROM region_cursors WHERE reader IN ({marks}){where}"
        for row in tx.rows(query, (*part, *of)):
            cursor = _cursor(row)
            found[cursor.reader, cursor.segment_id] = cursor
    return found


def cursor(tx: Tx, reader: str, segment_id: int) -> CursorRow | None:
    return cursors(tx, [reader], segment_id).get((reader, segment_id))


def ahead_in(tx: Tx, segment_id: int) -> list[CursorRow]:
    """The cursors with acks of events that have not come to a segment yet."""
    query = f"SELECT {_CURSOR} FROM region_cursors WHERE segment_id = ? AND ahead = 1"
    return [_cursor(row) for row in tx.rows(query, (segment_id,))]


def untranslated(tx: Tx, readers: Sequence[str]) -> set[str]:
    """The readers whose progress, in linked segments, changed since it was translated."""
    found: set[str] = set()
    for part, marks in in_parts(readers):
        rows = tx.rows(
            "SELECT DISTINCT p.group_name FROM progress AS p JOIN segments AS s "
            "ON s.id = p.segment_id AND s.lane IS NOT NULL LEFT JOIN region_cursors AS c "
            "ON c.reader = p.group_name AND c.segment_id = p.segment_id "
            f"WHERE p.group_name IN ({marks}) "
            "AND (c.reader IS NULL OR c.local <> p.state OR c.sought > 0)",
            tuple(part),
        )
        found.update(str(reader) for (reader,) in rows)
    return found


def is_untaken(tx: Tx, reader: str, queue: str) -> bool:
    """Whether a reader's progress in a stream changed since its cursors there were stored."""
    row = tx.row(
        "SELECT 1 FROM progress AS p JOIN segments AS s ON s.id = p.segment_id "
        "JOIN streams AS t ON t.id = s.stream_id LEFT JOIN region_cursors AS c "
        "ON c.reader = p.group_name AND c.segment_id = p.segment_id WHERE p.group_name = ? "
        "AND t.name = ? AND (c.reader IS NULL OR c.local <> p.state) LIMIT 1",
        (reader, queue),
    )
    return row is not None


def changed_since(tx: Tx, revision: int) -> list[tuple[CursorRow, str, int]]:
    """The cursors that changed after a revision, each with its stream and segment number."""
    rows = tx.rows(
        "SELECT c.reader, c.segment_id, c.revision, c.ahead, c.sought, c.state, c.local, "
        "t.name, s.number FROM region_cursors AS c JOIN segments AS s ON s.id = c.segment_id "
        "JOIN streams AS t ON t.id = s.stream_id WHERE c.revision > ? AND LENGTH(c.state) > 0 "
        "ORDER BY c.revision",
        (revision,),
    )
    return [(_cursor(row[:7]), str(row[7]), int(row[8])) for row in rows]


def revision(tx: Tx) -> int:
    """The latest revision."""
    return int(schema.get_setting(tx, _REVISION) or 0)


def next_revision(tx: Tx) -> int:
    """A new revision; the caller holds :data:`LOCK`."""
    found = revision(tx) + 1
    schema.put_setting(tx, _REVISION, str(found))
    tx.notify(CHANNEL)
    return found


def put_cursor(tx: Tx, *rows: CursorRow) -> None:
    """Store cursors, and that the seeks they know of are done."""
    tx.later(
        f"INSERT INTO region_cursors ({_CURSOR}) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT "
        "(reader, segment_id) DO UPDATE SET revision = excluded.revision, ahead = excluded.ahead, "
        "sought = excluded.sought, state = excluded.state, local = excluded.local",
        *(
            (r.reader, r.segment_id, r.revision, int(r.ahead), r.sought, r.state, r.local)
            for r in rows
        ),
    )


def sought(tx: Tx, reader: str, floors: Mapping[int, int]) -> None:
    """A reader was put elsewhere by command: its acks count anew, in every region.

    ``floors`` are its new floors by segment.  Whether that is the end is judged now: events that
    come until the seek is translated do not change what was meant.
    """
    tx.executemany(
        "UPDATE region_cursors SET sought = CASE WHEN ? >= "
        "(SELECT head FROM segments WHERE id = region_cursors.segment_id) "
        f"THEN {SOUGHT_END} ELSE {SOUGHT} END WHERE reader = ? AND segment_id = ?",
        [(floor, reader, segment_id) for segment_id, floor in floors.items()],
    )


def readers(tx: Tx) -> list[str]:
    """Every reader that has a cursor, or of which trims tell."""
    rows = tx.rows(
        "SELECT reader FROM region_cursors UNION SELECT reader FROM region_trims ORDER BY reader"
    )
    return [str(reader) for (reader,) in rows]


def forget_cursor(tx: Tx, reader: str, segment_id: int) -> None:
    """Forget a reader's cursor in a segment."""
    tx.execute(
        "DELETE FROM region_cursors WHERE reader = ? AND segment_id = ?", (reader, segment_id)
    )


def forget_reader(tx: Tx, reader: str) -> None:
    """A group is not replicated any more, or gone."""
    tx.execute("DELETE FROM region_cursors WHERE reader = ?", (reader,))
    tx.execute("DELETE FROM region_trims WHERE reader = ?", (reader,))


# --- trims -----------------------------------------------------------------------------------


class TrimRow(msgspec.Struct, frozen=True):
    """What a reader had acked when everything below ``upto`` was removed."""

    upto: int
    floor: int
    state: bytes


def trims(tx: Tx, reader: str, segment_id: int) -> list[TrimRow]:
    """The trims that a reader's cursor has not taken in yet, oldest first."""
    rows = tx.rows(
        "SELECT upto, floor, state FROM region_trims WHERE segment_id = ? AND reader = ? "
        "AND upto >= 0 ORDER BY upto",
        (segment_id, reader),
    )
    return [TrimRow(int(upto), int(floor), bytes(state)) for upto, floor, state in rows]


def forget_trims(tx: Tx, reader: str, segment_id: int, upto: int) -> None:
    tx.execute(
        "DELETE FROM region_trims WHERE segment_id = ? AND reader = ? "
        "AND CASE WHEN upto < 0 THEN -1 - upto ELSE upto END <= ?",
        (segment_id, reader, upto),
    )


def pass_unread(tx: Tx, reader: str, segment_id: int, ranges: Sequence[tuple[int, int]]) -> None:
    """A replicated reader goes on behind ranges of offsets that were trimmed before it read them.

    It has to be stored before the progress is that counts them as done.
    """
    if ranges and cursor(tx, reader, segment_id) is not None:
        tx.executemany(
            "INSERT INTO region_trims (segment_id, reader, upto, floor, state) "
            "VALUES (?, ?, ?, ?, ?) ON CONFLICT (segment_id, reader, upto) DO UPDATE SET floor = "
            "CASE WHEN excluded.floor < region_trims.floor THEN excluded.floor "
            "ELSE region_trims.floor END",
            [(segment_id, reader, -1 - hi, lo, b"") for lo, hi in ranges],
        )


def unread(tx: Tx, reader: str, segment_id: int) -> list[tuple[int, int]]:
    """What a reader passed over unread, ascending; ranges may overlap."""
    rows = tx.rows(
        "SELECT floor, -1 - upto FROM region_trims WHERE segment_id = ? AND reader = ? "
        "AND upto < 0 ORDER BY floor, upto DESC",
        (segment_id, reader),
    )
    return [(int(lo), int(hi)) for lo, hi in rows]


def readers_of_trims(tx: Tx, segment_id: int) -> set[str]:
    """The readers of which trims of a segment tell anything."""
    rows = tx.rows("SELECT DISTINCT reader FROM region_trims WHERE segment_id = ?", (segment_id,))
    return {str(reader) for (reader,) in rows}


def has_trims(tx: Tx, segment_id: int) -> bool:
    """Whether somebody has not taken in a trim of a segment: its old runs are still needed."""
    row = tx.row(
        "SELECT 1 FROM region_trims WHERE segment_id = ? AND upto >= 0 LIMIT 1", (segment_id,)
    )
    return row is not None
