"""One segment of a linked stream, followed for the groups in the mode of snapshots.

The core (:class:`~headrace.regions.core.segment.LinkedSegment`) is fed from the local log: events
by the runs of their lanes, undecoded; markers by their bytes.  What it asks for is written in the
same transaction as the place up to which the log was read.  A transaction that does not come to its
end leaves a core that knows too much: it is made anew from what is stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

from headrace.catalog import Tx, lanes, markers, streams
from headrace.catalog.streams import Segment
from headrace.errors import InvalidMarkerError
from headrace.groups.progress import AckedRanges, Progress
from headrace.log.cursor import Cursor
from headrace.log.log import Log
from headrace.regions.core.effects import RegionEffect, SnapshotSettings
from headrace.regions.core.markers import LaneEnd, LaneHole, Marker, SnapshotMarker, decode_marker
from headrace.regions.core.segment import LinkedSegment
from headrace.regions.core.updates import SnapshotCursor
from headrace.regions.snapshots import SavedGroup, SnapshotState, get_state

NEAR = 1000
"""Markers that are no further apart are read together."""
KEPT_MAX = 4096
"""The newest snapshots are kept decoded; older ones are read again where a group needs one."""

Payloads = dict[int, Marker | None]
"""Markers by offset; None is one of another protocol."""


def read_markers(log: Log, stream: str, segment: Segment, lo: int, hi: int) -> Payloads:
    """The markers at the offsets ``lo`` to ``hi`` - 1 of a segment."""
    found: Payloads = {}
    spans = log.catalog.read(lambda tx: markers.spans(tx, segment.id, lo, hi))
    for start, end in _joined(spans):
        cursor = Cursor(log.catalog, log.store, stream, segment, start)
        while cursor.position < end:
            batch = cursor.next(end)
            if batch is None or "marker" not in batch.schema.names:
                continue
            rows = zip(
                batch.column("offset").to_pylist(), batch.column("marker").to_pylist(), strict=True
            )
            found.update(
                {offset: decoded_marker(data) for offset, data in rows if data is not None}
            )
    return found


def _joined(spans: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    at: tuple[int, int] | None = None
    for lo, hi in spans:
        if at is not None and lo - at[1] > NEAR:
            yield at
            at = None
        at = (lo if at is None else at[0], hi)
    if at is not None:
        yield at


def decoded_marker(data: bytes) -> Marker | None:
    """A marker of this protocol; None if it is of another one."""
    try:
        return decode_marker(data)
    except InvalidMarkerError:
        return None


class FollowedSegment:
    """The core of one segment, and how it is made of what is stored."""

    def __init__(
        self,
        log: Log,
        stream: str,
        segment: Segment,
        region: str,
        members: tuple[str, ...],
        settings: SnapshotSettings,
    ) -> None:
        self._log, self._stream, self._segment = log, stream, segment
        self._kept: dict[int, SnapshotMarker] = {}
        self._encodings: dict[str, tuple[AckedRanges | None, tuple[int, int], bytes]] = {}
        self.is_new = False
        """Whether nothing is stored of it yet."""
        saved, first, starts, absent = log.catalog.read(self._look, snapshot=True)
        self.state = saved
        self.core = LinkedSegment(
            region,
            saved.members or members,
            self._snapshots_between,
            settings,
            first=first,
            lanes=starts,
            absent=absent,
        )
        self._restore(saved)

    # -- made anew ----------------------------------------------------------------------

    def _look(
        self, tx: Tx
    ) -> tuple[SnapshotState, int, list[LaneEnd], dict[str, list[tuple[int, int]]]]:
        found = streams.require(tx, self._stream).segment(self._segment.number)
        assert found is not None
        self._segment = found
        saved = get_state(tx, self._stream, found.number)
        if saved is None or saved.segment_id != found.id or saved.place > found.head:
            self.is_new = True
            saved = SnapshotState(segment_id=found.id, place=found.head, first=found.tail)
        first = saved.first
        firsts = dict(lanes.ends(tx, found.id))
        for run in reversed(lanes.runs(tx, found.id, first, found.head)):
            firsts[run.lane] = run.sequence + max(0, first - run.start)
        absent = lanes.absent(tx, found.id)
        return saved, first, [LaneEnd(lane, firsts[lane]) for lane in sorted(firsts)], absent

    def _restore(self, saved: SnapshotState) -> None:
        core, segment = self.core, self._segment
        first = core.log.first
        payloads = read_markers(self._log, self._stream, segment, first, saved.place)
        runs = self._log.catalog.read(lambda tx: lanes.runs(tx, segment.id, first, saved.place))
        for lo, hi, run in _pieces(runs, first, saved.place):
            if run is None:
                for at in range(lo, hi):
                    self._restore_marker(at, payloads.get(at))
                continue
            sequence = run.sequence + lo - run.start
            if sequence > core.log.next_sequence(run.lane):
                core.log.skip_to(run.lane, sequence)
            if hi <= saved.quiet:
                core.log.events(lo, run.lane, sequence, hi - lo)
            else:
                core.events_restored(lo, run.lane, sequence, hi - lo)
        for name, group in saved.groups.items():
            core.snapshot_groups[name] = SnapshotCursor(
                core.region,
                name,
                core.log,
                acked=Progress.decode(group.acked).acked(),
                used=group.used,
                applied=group.applied,
                life=group.life,
                holes=_by_lane(group.holes),
            )
            core.lives[name] = group.life

    def _restore_marker(self, at: int, marker: Marker | None) -> None:
        if marker is None:
            self.core.log.marker(at)
        else:
            self.core.marker_restored(at, marker)
            self._keep(at, marker)

    # -- following ----------------------------------------------------------------------

    def unread(self, head: int) -> Payloads:
        """The markers that the core has not been told of."""
        end = self.core.log.end
        return read_markers(self._log, self._stream, self._segment, end, head) if end < head else {}

    def is_readable(self, tx: Tx, segment: Segment, payloads: Mapping[int, Marker | None]) -> bool:
        """Whether all markers up to the head were read; below the tail there are none."""
        end = self.core.log.end
        runs = lanes.runs(tx, segment.id, end, segment.head)
        return all(
            at in payloads
            for lo, hi, run in _pieces(runs, end, segment.head)
            if run is None
            for at in range(max(lo, segment.tail), hi)
        )

    def follow(
        self, tx: Tx, segment: Segment, payloads: Mapping[int, Marker | None]
    ) -> list[RegionEffect]:
        """Tell the core what was appended since; the markers in it were read before."""
        core, effects = self.core, list[RegionEffect]()
        end = core.log.end
        runs = lanes.runs(tx, segment.id, end, segment.head)
        for lo, hi, run in _pieces(runs, end, segment.head):
            if run is None:
                # Those that stand together are told together, as those that were written here: an
                # update of every group costs every group one step, and not one for each of them.
                found = groupby(range(lo, hi), lambda at: payloads.get(at) is None)
                for together in (list(places) for _, places in found):
                    effects += self.told(together[0], *map(payloads.get, together))
                continue
            sequence = run.sequence + lo - run.start
            if sequence > core.log.next_sequence(run.lane):
                core.skip_to(run.lane, sequence)
            core.events_appended(lo, run.lane, sequence, hi - lo)
        return effects

    def told(self, at: int, *found: Marker | None) -> list[RegionEffect]:
        """Markers stand at ``at`` and behind it."""
        known = [marker for marker in found if marker is not None]
        if len(known) < len(found):
            return self.core.others_appended(at, len(found))
        for offset, marker in enumerate(known, at):
            self._keep(offset, marker)
        return self.core.markers_appended(at, known)

    def _keep(self, at: int, marker: Marker) -> None:
        if isinstance(marker, SnapshotMarker):
            self._kept[at] = marker
            if len(self._kept) > KEPT_MAX:
                del self._kept[next(iter(self._kept))]

    def _snapshots_between(self, lo: int, hi: int) -> list[SnapshotMarker]:
        if self._kept and lo >= next(iter(self._kept)):
            if hi == lo + 1:
                return [self._kept[lo]] if lo in self._kept else []
            return [marker for at, marker in self._kept.items() if lo <= at < hi]
        found = read_markers(self._log, self._stream, self._segment, lo, hi)
        return [marker for marker in found.values() if isinstance(marker, SnapshotMarker)]

    def _encoded(self, name: str, acked: AckedRanges) -> bytes:
        """What is acked, encoded when it has grown: most groups stand still at any one time."""
        at = acked.floor, acked.acked_above_floor
        known, then, data = self._encodings.get(name, (None, at, b""))
        if known is not acked or then != at:
            data = Progress.encode_acked(acked)
            self._encodings[name] = acked, at, data
        return data

    def groups(self, owed: set[str]) -> dict[str, SavedGroup]:
        """What is to be stored of the cursors."""
        return {
            name: SavedGroup(
                used=cursor.used,
                applied=cursor.applied,
                life=cursor.life,
                holes=tuple(
                    LaneHole(lane, lo, hi)
                    for lane in sorted(cursor.holes)
                    for lo, hi in cursor.holes[lane]
                ),
                acked=self._encoded(name, cursor.acked),
                owed=name in owed,
            )
            for name, cursor in self.core.snapshot_groups.items()
        }


def _pieces(
    runs: list[lanes.Run], start: int, end: int
) -> Iterator[tuple[int, int, lanes.Run | None]]:
    """Offsets ``start`` to ``end`` - 1, as runs of events and, between them, markers."""
    at = start
    for run in runs:
        lo, hi = max(run.start, start), min(run.end, end)
        if lo >= hi:
            continue
        if at < lo:
            yield at, lo, None
        yield lo, hi, run
        at = hi
    if at < end:
        yield at, end, None


def _by_lane(holes: tuple[LaneHole, ...]) -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {}
    for hole in holes:
        found.setdefault(hole.lane, []).append((hole.start, hole.end))
    return found
