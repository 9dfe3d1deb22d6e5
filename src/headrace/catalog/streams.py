"""Streams, their segments, and the edges between segments.

The key hashes 0 to 2**32 - 1 are tiled by a stream's open segments.  A sealed segment takes no
more events; its successors cover what it covered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from headrace.catalog import lanes
from headrace.catalog.keys import undamaged
from headrace.catalog.memory import Memory
from headrace.catalog.notifier import STREAMS
from headrace.catalog.records import left_out
from headrace.catalog.stream_config import (
    SEGMENTS_MAX,
    ByBytes,
    ByEvents,
    Consumed,
    Epochs,
    Fixed,
    Groups,
    Limits,
    Positive,
    Retention,
    Scaling,
    StreamConfig,
    decode_config,
)
from headrace.catalog.stream_rows import SEALED, asking_segments, read_segments
from headrace.catalog.transaction import Query, Row, Tx, in_parts
from headrace.errors import UnknownStreamError, UnreadableRecordError

__all__ = [
    "SEGMENTS_MAX",
    "ByBytes",
    "ByEvents",
    "Consumed",
    "Epochs",
    "Fixed",
    "Groups",
    "Limits",
    "Positive",
    "Retention",
    "Scaling",
    "StreamConfig",
    "decode_config",
]
"""Configuration, known by this module's name."""


KEY_SPACE = 1 << 32
NO_TIME_US = -(1 << 62)
"""Earlier than any event: the greatest event time of an empty segment."""
LOCK_ALL = "streams"
"""Held while the set of streams changes."""


class Segment(msgspec.Struct, frozen=True, gc=False):
    """One segment as the catalog knows it; ``head`` is the offset the next event gets."""

    id: int
    number: int
    range_lo: int
    range_hi: int
    head: int
    tail: int
    bytes: int
    trimmed_bytes: int
    max_ts_us: int
    created_us: int
    sealed_us: int | None
    predecessors: tuple[int, ...] = ()
    successors: tuple[int, ...] = ()
    markers: int = 0
    """Internal records among what is retained; they have offsets and are no events."""
    lane: str | None = None
    """The lane of what is published here (:mod:`headrace.catalog.lanes`); None if not linked."""

    @property
    def sealed(self) -> bool:
        return self.sealed_us is not None

    @property
    def events(self) -> int:
        """How many events are retained."""
        return self.head - self.tail - self.markers

    @property
    def retained_bytes(self) -> int:
        return self.bytes - self.trimmed_bytes


class Stream(msgspec.Struct, frozen=True):
    """A stream with all its segments, in the order of their numbers."""

    id: int
    name: str
    config: StreamConfig
    created_us: int
    segments: tuple[Segment, ...]

    @property
    def open_segments(self) -> tuple[Segment, ...]:
        """Those that take events, in the order of their key ranges."""
        found = [segment for segment in self.segments if not segment.sealed]
        return tuple(sorted(found, key=lambda segment: segment.range_lo))

    def segment(self, number: int) -> Segment | None:
        return next((each for each in self.segments if each.number == number), None)


def channel(stream_id: int) -> str:
    """The channel that is notified when events arrive or segments change."""
    return f"{STREAMS}{stream_id}"


def lock(stream_id: int) -> str:
    """Held while a stream takes offsets or changes its segments."""
    return f"stream:{stream_id}"


_NAMED = "SELECT id, name, config, created_us FROM streams WHERE name = ?"


def asking(name: str) -> tuple[Query, Query, Query]:
    """The queries of :func:`get`."""
    where = "WHERE stream_id = (SELECT id FROM streams WHERE name = ?) "
    return (_NAMED, (name,)), *asking_segments(where, (name,))


def get(tx: Tx, name: str) -> Stream | None:
    found, segments, edges = tx.together(*asking(name))
    if not found:
        return None
    return _sound(next(_streams(found, segments, edges)))


def configs(tx: Tx, names: Sequence[str]) -> list[Row]:
    """The ids and configurations of streams as they are stored, by name; to see what changed."""
    found: list[Row] = []
    for part, marks in in_parts(names):
        query = f"SELECT name, id, config FROM streams WHERE name IN ({marks}) ORDER BY name"
        found += tx.rows(query, tuple(part))
    return found


def require(tx: Tx, name: str) -> Stream:
    stream = get(tx, name)
    if stream is None:
        # Names with a dot are streams of groups, which nobody asks for by accident.
        rows = tx.rows("SELECT name FROM streams WHERE name NOT LIKE '%.%' ORDER BY name LIMIT 20")
        known = [row[0] for row in rows]
        listed = f"known streams: {', '.join(known)}" if known else "there are no streams yet"
        raise UnknownStreamError(f"there is no stream {name!r}; {listed}")
    return stream


def removable(tx: Tx, name: str) -> Stream:
    """A stream that is to be removed; what cannot be read of it is left open.

    One without a readable configuration captures nothing; its events and segments are all there.
    """
    row = tx.row(_NAMED, (name,))
    if row is None:
        return require(tx, name)
    (stream,) = _with_segments(tx, [row])
    if not isinstance(stream, UnreadableRecordError):
        return stream
    # Whether it had epochs is not known; where it had none there is nothing of them to remove.
    bare = msgspec.json.encode(StreamConfig((), internal="." in name, epochs=Epochs()))
    (stream,) = _with_segments(tx, [(row[0], name, bare, row[3])], in_order=False)
    assert not isinstance(stream, UnreadableRecordError)
    return stream


def asking_all(*, internal: bool = True) -> tuple[Query, Query, Query]:
    """The queries of :func:`all_streams`, where each is a round trip."""
    left_out = ("" if internal else "%.%",)
    where = "WHERE stream_id IN (SELECT id FROM streams WHERE name NOT LIKE ?) "
    named = "SELECT id, name, config, created_us FROM streams WHERE name NOT LIKE ? ORDER BY name"
    return (named, left_out), *asking_segments(where, left_out)


def all_streams(
    tx: Tx, *, internal: bool = True, memory: Memory | None = None
) -> tuple[Stream, ...]:
    """All streams by name; only the names of internal ones hold a dot.

    Those that are as they were are the same objects to whoever remembers.
    """
    first, *others = asking_all(internal=internal)
    if tx.lazy:
        rows = tx.rows(*first)
        read = (rows, *read_segments(tx, rows, None if internal else others))
    else:  # a server far away is asked for all at once
        rows, segments, edges = tx.together(first, *others)
        read = (rows, segments, edges)
    made = (memory or Memory()).each(f"streams, {internal=}", read, _sound_streams)
    return tuple(made.values())


def _sound_streams(read: tuple[list[Row], list[Row], list[Row]]) -> dict[int, Stream]:
    found = {}
    for stream in _streams(*read):
        with left_out():
            sound = _sound(stream)
            found[sound.id] = sound
    return found


def _sound(stream: Stream | UnreadableRecordError) -> Stream:
    """A stream that was read, and whose name is undamaged."""
    if isinstance(stream, UnreadableRecordError):
        raise stream
    undamaged("streams", stream.name)
    return stream


def stored_configs(tx: Tx, after_id: int = -1) -> list[tuple[int, str, bytes]]:
    """(id, name, configuration as it is stored) of streams that are not internal.

    Ids grow: the streams that were made since are those after the greatest id seen.
    """
    rows = tx.rows(
        "SELECT id, name, config FROM streams WHERE id > ? AND name NOT LIKE ? ORDER BY id",
        (after_id, "%.%"),
    )
    return [(stream_id, name, _bytes(data)) for stream_id, name, data in rows]


def id_of(tx: Tx, name: str) -> int | None:
    row = tx.row("SELECT id FROM streams WHERE name = ?", (name,))
    return None if row is None else int(row[0])


def names(tx: Tx) -> list[str]:
    """The names of all streams, also of those whose configuration cannot be read."""
    return [str(row[0]) for row in tx.rows("SELECT name FROM streams ORDER BY name")]


def name_of(tx: Tx, stream_id: int) -> str | None:
    row = tx.row("SELECT name FROM streams WHERE id = ?", (stream_id,))
    return None if row is None else str(row[0])


def segment_ids(tx: Tx, name: str, numbers: Sequence[int]) -> dict[int, int]:
    """{number: id} of those of the segments that exist."""
    found: list[Row] = []
    for part, marks in in_parts(numbers):
        found += tx.rows(
            "SELECT number, id FROM segments WHERE stream_id = "
            f"(SELECT id FROM streams WHERE name = ?) AND number IN ({marks})",
            (name, *part),
        )
    return {int(number): int(segment_id) for number, segment_id in found}


def tail_of(tx: Tx, segment_id: int) -> int | None:
    """The first offset of a segment that is retained; None if the segment is gone."""
    row = tx.row("SELECT tail FROM segments WHERE id = ?", (segment_id,))
    return None if row is None else int(row[0])


Head = tuple[int, int, int, bool]
"""Number, tail, head, and whether it is sealed, of a segment."""


def heads(tx: Tx, stream_id: int) -> list[Head]:
    """Those of every segment: the cheap query of a waiting reader."""
    rows = tx.rows(
        "SELECT number, tail, head, sealed_us IS NOT NULL FROM segments WHERE stream_id = ? "
        "ORDER BY number",
        (stream_id,),
    )
    return [(number, tail, head, bool(sealed)) for number, tail, head, sealed in rows]


def configure(tx: Tx, stream_id: int, config: StreamConfig) -> None:
    tx.execute(
        "UPDATE streams SET config = ? WHERE id = ?", (msgspec.json.encode(config), stream_id)
    )
    tx.notify(channel(stream_id))


def delete(tx: Tx, stream: Stream) -> None:
    """Remove the stream and everything recorded about it; its files go to the graveyard."""
    ids = [segment.id for segment in stream.segments]
    for segment_id in ids:
        tx.execute(
            "INSERT INTO graveyard (path, buried_us) "
            "SELECT path, ? FROM batches WHERE segment_id = ? AND path IS NOT NULL",
            (tx.now_us(), segment_id),
        )
        for table in ("batches", "markers", "progress", "progress_bases"):
            tx.execute(f"DELETE FROM {table} WHERE segment_id = ?", (segment_id,))
    for segment in stream.segments:
        lanes.drop(tx, segment.id)
    for table in ("segments", "segment_edges", "subscriptions"):
        tx.execute(f"DELETE FROM {table} WHERE stream_id = ?", (stream.id,))
    tx.execute("DELETE FROM producers WHERE scope = ?", (stream.id,))
    tx.execute("DELETE FROM streams WHERE id = ?", (stream.id,))
    tx.notify(channel(stream.id))


def _with_segments(
    tx: Tx, rows: list[Row], *, in_order: bool = True
) -> Iterator[Stream | UnreadableRecordError]:
    """Streams with their segments: a few by queries of their own, many by one over all.

    An error stands in the place of one whose configuration cannot be read, or whose segments do not
    follow from earlier ones (unless ``in_order`` says that this does not matter).
    """
    return _streams(rows, *read_segments(tx, rows), in_order=in_order)


def _streams(
    rows: Iterable[Row], parts: Iterable[Row], edges: Iterable[Row], *, in_order: bool = True
) -> Iterator[Stream | UnreadableRecordError]:
    before: dict[tuple[int, int], list[int]] = {}
    after: dict[tuple[int, int], list[int]] = {}
    segments: dict[int, list[Segment]] = {}
    damaged: dict[int, str] = {}
    found = {(each[0], each[2]): each for each in parts}
    for stream_id, first, second in edges:
        if not (isinstance(second, int) and first < second):
            # Whoever waited for it would wait for ever.
            damaged[stream_id] = f"segment {second} cannot follow from segment {first}"
        place = stream_id, first
        if place in found and found[place][SEALED] is None:
            continue  # it was split after the segments were read
        before.setdefault((stream_id, second), []).append(first)
        after.setdefault(place, []).append(second)
    for place, (stream_id, *about, markers, lane) in found.items():
        about += (tuple(before.get(place, ())), tuple(after.get(place, ())), markers, lane)
        segments.setdefault(stream_id, []).append(Segment(*about))
    for stream_id, name, config, created_us in rows:
        own = tuple(segments.get(stream_id, ()))
        try:
            if in_order and stream_id in damaged:
                raise ValueError(damaged[stream_id])
            yield Stream(stream_id, name, decode_config(_bytes(config)), created_us, own)
        except (msgspec.MsgspecError, ValueError) as error:
            remedy = f"restore the catalog from a backup, or give it up: headrace stream rm {name}"
            yield UnreadableRecordError(f"stream {name!r} cannot be read ({error}); {remedy}", name)


def _bytes(config: object) -> bytes:
    """A configuration as it is stored; SQLite gives whatever a damaged row says that it holds."""
    return config.encode() if isinstance(config, str) else bytes(config)  # type: ignore[call-overload]
