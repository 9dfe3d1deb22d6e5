"""Snapshots by command: take one now, and list those that the log holds.

The agent takes snapshots.  So a command leaves its wish in the catalog, under an id of its own; the
agent begins it in its next transaction over the segment, and tells there what came of it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

import msgspec

from headrace.catalog import Tx, entries, streams
from headrace.catalog.streams import Segment
from headrace.errors import InvalidInputError, LinkError
from headrace.host.clock import rest_s, steady_s
from headrace.log.cursor import Cursor
from headrace.log.log import Log
from headrace.log.times import to_us
from headrace.regions.core.markers import SnapshotMarker
from headrace.regions.records import AGENT_LEASE, check_timeout, require_link
from headrace.regions.runtime.following import decoded_marker
from headrace.regions.snapshots import (
    ASKED_BUCKET,
    AskedSnapshot,
    get_state,
    state_key,
    streams_under_snapshots,
)

POLL_S = 0.02
LIST_MAX = 1000
WINDOW = 10_000
"""Offsets of a segment that are looked through at once, from its end on."""


class TakeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshots of a stream that were asked for, one for each segment."""

    stream: str
    snapshots: tuple[AskedSnapshot, ...]
    took_s: float

    @property
    def complete(self) -> bool:
        return all(each.outcome == "complete" for each in self.snapshots)


class ListedSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that stands in the log of this region."""

    segment: int
    snapshot_id: str
    local: int
    """Who has acked everything up to this offset here …"""
    positions: dict[str, int]
    """… has met everything up to these, by region."""
    missing: tuple[str, ...] = ()
    """Regions that an operator did not wait for."""
    taken_us: int
    """When it was complete, in microseconds since 1970, by the clock of this region."""
    passed_by: tuple[str, ...] = ()
    """Readers that have passed it: other regions were told, of this one or of a later one."""


def take_snapshots(
    log: Log, stream: str, *, timeout_s: float = 30.0, clock: Callable[[], float] = steady_s
) -> TakeReport:
    """Take a snapshot of each segment of a stream, also without traffic, and wait for them."""
    check_timeout(timeout_s)
    began = clock()
    wanted = {number: uuid.uuid4().hex for number in log.catalog.read(_followed(stream))}
    if log.catalog.leases.get(AGENT_LEASE) is None:
        raise LinkError("no agent runs here, which takes them; start one: headrace region run")

    def ask(tx: Tx) -> None:
        for number, snapshot_id in wanted.items():
            entries.put(tx, ASKED_BUCKET, state_key(stream, number), snapshot_id.encode())

    def look(tx: Tx) -> list[AskedSnapshot]:
        found = []
        for number, snapshot_id in wanted.items():
            state = get_state(tx, stream, number)
            asked = None if state is None else state.asked
            if asked is None or asked.snapshot_id != snapshot_id:
                asked = AskedSnapshot(segment=number, snapshot_id=snapshot_id)
            found.append(asked)
        return found

    log.catalog.write(ask, locks=(entries.lock(ASKED_BUCKET),))
    while True:
        found = log.catalog.read(look, snapshot=True)
        if all(each.outcome for each in found) or clock() - began > timeout_s:
            return TakeReport(stream=stream, snapshots=tuple(found), took_s=clock() - began)
        rest_s(POLL_S)


def _followed(stream: str) -> Callable[[Tx], list[int]]:
    """The segments of a stream with a group in the mode of snapshots; refuses any other."""

    def look(tx: Tx) -> list[int]:
        require_link(tx, stream)
        if stream not in streams_under_snapshots(tx):
            raise LinkError(
                f"no group of stream {stream!r} is replicated by snapshot; enable one with: "
                f"headrace region group enable {stream} GROUP --mode snapshot"
            )
        return [s.number for s in streams.require(tx, stream).segments if s.sealed_us is None]

    return look


def list_snapshots(log: Log, stream: str, limit: int = 10) -> tuple[ListedSnapshot, ...]:
    """The newest snapshots that this region's log holds, ``limit`` of each segment at most."""
    if not 1 <= limit <= LIST_MAX:
        raise InvalidInputError(f"limit={limit!r}: give 1 to {LIST_MAX}")
    log.catalog.read(lambda tx: require_link(tx, stream))
    found: list[ListedSnapshot] = []
    for segment in log.stream(stream).segments:
        newest: list[ListedSnapshot] = []
        hi = segment.head
        while segment.markers and hi > segment.tail and len(newest) < limit:
            lo = max(segment.tail, hi - WINDOW)
            newest = _between(log, stream, segment, lo, hi) + newest
            hi = lo
        found += newest[-limit:]
    return tuple(found)


def _between(log: Log, stream: str, segment: Segment, lo: int, hi: int) -> list[ListedSnapshot]:
    state = log.catalog.read(lambda tx: get_state(tx, stream, segment.number))
    groups = {} if state is None else state.groups
    found = []
    for at, marker, taken_us in _snapshot_markers(log, stream, segment, lo, hi):
        if lo <= at < hi:
            found.append(
                ListedSnapshot(
                    segment=segment.number,
                    snapshot_id=marker.snapshot_id,
                    local=marker.local,
                    positions={each.region: each.position for each in marker.positions},
                    missing=marker.missing,
                    taken_us=taken_us,
                    passed_by=tuple(n for n, g in sorted(groups.items()) if g.used >= marker.local),
                )
            )
    return found


def _snapshot_markers(
    log: Log, stream: str, segment: Segment, lo: int, hi: int
) -> list[tuple[int, SnapshotMarker, int]]:
    from headrace.catalog import markers

    found = []
    for start, end in log.catalog.read(lambda tx: markers.spans(tx, segment.id, lo, hi)):
        cursor = Cursor(log.catalog, log.store, stream, segment, start)
        while cursor.position < end:
            batch = cursor.next(end)
            for row in () if batch is None else batch.to_pylist():
                marker = decoded_marker(row["marker"]) if row.get("marker") is not None else None
                if isinstance(marker, SnapshotMarker):
                    found.append((row["offset"], marker, to_us(row["timestamp"])))
    return found
