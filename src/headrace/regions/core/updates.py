"""A group's cursor in one region under snapshots, and what updates do to it.

Theory of operation
-------------------
The cursor is the set of acked positions of the local log.  Markers count as acked the moment they
are written, so *mark-delete*, the last position with nothing unacked at or below it, walks over
them.

Outgoing: whenever mark-delete has grown **or** a snapshot has become known, the newest snapshot
at or below mark-delete is used, once, for an update to the other regions.  Either trigger alone
would leave something out: a cursor that waits for a snapshot, or a snapshot that came after the
last ack of a quiet stream.

Incoming: an update acks what lies at or below its position, and never un-acks anything.  What its
source had not *seen* when the snapshot was taken stays unacked as a hole below the position: events
of this region only, and in a forced snapshot those of the regions left out.  A group that is not
here yet is created with exactly that state.

Holes: what was trimmed here before anybody consumed it, and what never was here, is done with in
this region only.  It goes along with every update by lane and sequence, and is acked nowhere, until
an update of a region whose consumers have met it says so.

Commands: a seek or a delete for all regions starts a new *life* of the group.  Updates name the
life that they are about, and one of a life that is over is refused, so it cannot undo the command.
An update of a new life may overtake the command by way of a third region; then the command adds its
own when it comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headrace.errors import UnknownRegionError, UpdateAheadError
from headrace.groups.progress.ranges import AckedRanges
from headrace.regions.core.index import SnapshotIndex
from headrace.regions.core.markers import Command, LaneEnd, LaneHole, UpdateMarker
from headrace.regions.core.origins import (
    Lane,
    OriginMap,
    TrimmedRuns,
    lane_reaches,
)
from headrace.regions.core.spans import RangeList, difference, intersection, union
from headrace.regions.core.stamps import Life


class SnapshotCursor:
    """One group in one region; positions are those of the local log."""

    def __init__(
        self,
        region: str,
        group: str,
        log: OriginMap,
        *,
        acked: AckedRanges | None = None,
        used: int = -1,
        applied: int | None = None,
        life: Life | None = None,
        holes: Mapping[Lane, Sequence[tuple[int, int]]] | None = None,
        left: TrimmedRuns | None = None,
    ) -> None:
        self.region = region
        self.group = group
        self.life = life if life is not None else Life()
        """The command that this cursor follows."""
        self._log = log
        self.left = left if left is not None else TrimmedRuns()
        self.holes: dict[Lane, RangeList] = (
            _past(log) if holes is None else {lane: list(known) for lane, known in holes.items()}
        )
        """Nobody consumed it here, and it does not stand here either."""
        self.acked = acked if acked is not None else AckedRanges(floor=log.first)
        for lo, hi in log.markers(self.acked.floor, log.end):
            self.acked.ack_range(lo, hi)
        self.used = used
        """Local position of the snapshot that was last sent as an update."""
        self.applied = applied
        """Highest position that an update has brought; may lie below mark-delete, or above."""

    @property
    def mark_delete(self) -> int:
        """The last position with nothing unacked at or below it; -1 at the very beginning."""
        return self.acked.floor - 1

    def __str__(self) -> str:
        return f"group {self.group!r} in {self.region} is at {self.mark_delete}"

    def ack(self, lo: int, hi: int | None = None) -> int:
        """Ack a position, or the positions ``lo`` to ``hi`` (exclusive); how many were new."""
        hi = lo + 1 if hi is None else hi
        if hi > self._log.end:
            raise UpdateAheadError(
                f"ack of [{lo}, {hi})", str(self), f"the log ends at {self._log.end}"
            )
        for lane, first, last in self.left.origins(lo, min(hi, self._log.first)):
            self._met(lane, [(first, last)])
        return self.acked.ack_range(lo, hi)

    def trim(self, first: int) -> None:
        """The log is about to begin at ``first``: what goes unacked is done with here only."""
        first = min(first, self._log.end)
        for lo, hi in self.acked.missing(first):
            gone = list(self._log.pieces(lo, hi))
            self.left.add(gone)
            for start, end, lane, sequence in gone:
                self.skipped(lane, sequence, sequence + end - start)
        self.acked.ack_range(0, first)

    def skipped(self, lane: Lane, lo: int, hi: int) -> None:
        """Events of a lane are not here, and nobody consumed them here."""
        self.holes[lane] = union(self.holes.get(lane, ()), [(lo, hi)])

    def _met(self, lane: Lane, ranges: Iterable[tuple[int, int]]) -> None:
        left = difference(self.holes.get(lane, ()), ranges)
        if left:
            self.holes[lane] = left
        else:
            self.holes.pop(lane, None)

    def walk_over(self, position: int, count: int = 1) -> None:
        """Markers were written."""
        self.acked.ack_range(position, position + count)

    def seek(self, mark_delete: int) -> None:
        """A user sets the cursor: everything up to ``mark_delete`` is acked and nothing else.

        This is a matter of one region, as the protocol has it; the other regions' cursors stay
        where they are.  :meth:`command_to` makes it a matter of all.
        """
        self._check_seek(mark_delete)
        acked = AckedRanges(floor=max(mark_delete + 1, self._log.first))
        for lo, hi in self._log.markers(acked.floor, self._log.end):
            acked.ack_range(lo, hi)
        self.acked = acked

    def _check_seek(self, mark_delete: int) -> None:
        if not -1 <= mark_delete < self._log.end:
            raise UpdateAheadError(
                f"seek to {mark_delete}", str(self), f"the log is 0 to {self._log.end - 1}"
            )

    def command_to(self, mark_delete: int, life: Life, *, at_end: bool = False) -> Command:
        """The command that seeks here and, by origin, to the same place in every region."""
        self._check_seek(mark_delete)
        # From the beginning of what is retained, other regions begin where they can.
        cut = self._log.cut(mark_delete + 1) if mark_delete >= self._log.first or at_end else {}
        floors = tuple(LaneEnd(lane, cut[lane]) for lane in sorted(cut))
        return Command(self.group, self.region, life, floors, _told(self._log.absent), at_end)

    def beyond(self, command: Command) -> list[LaneHole]:
        """What stays as it is here, since a command to the end did not have it yet."""
        floors = {floor.lane: floor.sequence for floor in command.floors}
        ends = {lane: self._log.next_sequence(lane) for lane in self._log.lanes()}
        return [
            LaneHole(lane, floors.get(lane, 0), end)
            for lane, end in ends.items()
            if command.at_end and floors.get(lane, 0) < end
        ]

    def renewed(self, life: Life, kept: Iterable[LaneHole] = ()) -> SnapshotCursor:
        """The cursor of a new life: nothing is acked but what the command's region never sees.

        Those are the lanes that do not go there, and of others what is ``kept``.
        """
        stays: dict[Lane, RangeList] = {}
        for each in kept:
            stays[each.lane] = union(stays.get(each.lane, ()), [(each.start, each.end)])
        for lane in self._log.lanes():
            if not lane_reaches(lane, life.stamp.region):
                stays[lane] = [(0, self._log.next_sequence(lane))]
        fresh = SnapshotCursor(self.region, self.group, self._log, life=life)
        for lane, ranges in stays.items():
            for first, last in ranges:
                for lo, hi in self._log.offsets(lane, first, last):
                    fresh.acked.ack_many(o for o in range(lo, hi) if o in self.acked)
            fresh._met(lane, difference(ranges, self.holes.get(lane, ())))
        return fresh

    def obey(self, command: Command) -> None:
        """Ack what a command of this life says."""
        holes = _by_lane(command.holes)
        for floor in command.floors:
            told = difference([(0, floor.sequence)], holes.get(floor.lane, ()))
            self._met(floor.lane, told)
            for first, last in told:
                for lo, hi in self._log.offsets(floor.lane, first, last):
                    self.acked.ack_range(lo, hi)

    def next_update(self, index: SnapshotIndex) -> UpdateMarker | None:
        """The update that is due; ask when the cursor has moved and when a snapshot is new."""
        snapshot = index.newest_at(self.mark_delete, after=self.used)
        if snapshot is None:
            return None
        self.used = snapshot.local
        return UpdateMarker(
            group=self.group,
            source=self.region,
            snapshot_id=snapshot.snapshot_id,
            positions=snapshot.positions,
            seen=snapshot.seen,
            life=self.life,
            holes=_told(self.holes),
        )

    def check(self, update: UpdateMarker) -> int | None:
        """The position that an update has for this region; refuses one that cannot be."""
        named = f"update of {update.group!r} from {update.source} by {update.snapshot_id!r}"
        if update.source == self.region:
            raise UnknownRegionError(named, str(self), "it is this region's own")
        position = update.position_in(self.region)
        if position is not None and position >= self._log.end:
            raise UpdateAheadError(
                f"{named} to {position}", str(self), f"the log ends at {self._log.end}"
            )
        return position

    def apply(self, update: UpdateMarker) -> int:
        """Take an update of another region over; returns how many positions are newly acked."""
        position = self.check(update)
        if position is None:
            return 0
        gained = 0
        at = self.acked.floor
        for lo, hi in self._unseen(update, position + 1):
            if at < lo:
                gained += self.acked.ack_range(at, lo)
            at = max(at, hi)
        if at <= position:
            gained += self.acked.ack_range(at, position + 1)
        self.applied = position if self.applied is None else max(self.applied, position)
        holes = _by_lane(update.holes)
        for known in update.seen:
            self._met(known.lane, difference([(0, known.sequence)], holes.get(known.lane, ())))
        return gained

    def _unseen(self, update: UpdateMarker, end: int) -> list[tuple[int, int]]:
        """Ranges below ``end`` of what the update's source does not speak for, ascending."""
        seen = {known.lane: known.sequence for known in update.seen}
        holes = _by_lane(update.holes)
        here = self._log.cut(self.acked.floor)
        there = self._log.cut(end)
        found: RangeList = []
        for lane, start in here.items():
            last, known = there[lane], seen.get(lane, 0)
            if start >= last:
                continue  # nothing of it stands in between
            beyond = [(max(known, start), last)] if known < last else []
            if lane in holes:
                beyond = intersection(union(holes[lane], beyond), [(start, last)])
            for lo, hi in beyond:
                found += self._log.offsets(lane, lo, hi)
        found.sort()
        return found


def _past(log: OriginMap) -> dict[Lane, RangeList]:
    """All that ever was or never was before what the log holds now, by lane."""
    found = {each.lane: [(0, each.sequence)] for each in log.retained() if each.sequence}
    for lane, ranges in log.absent.items():
        found[lane] = union(found.get(lane, ()), ranges)
    return found


def _told(holes: Mapping[Lane, Sequence[tuple[int, int]]]) -> tuple[LaneHole, ...]:
    return tuple(LaneHole(lane, lo, hi) for lane in sorted(holes) for lo, hi in holes[lane])


def _by_lane(holes: Iterable[LaneHole]) -> dict[Lane, RangeList]:
    found: dict[Lane, RangeList] = {}
    for hole in holes:
        found.setdefault(hole.lane, []).append((hole.start, hole.end))
    return found
