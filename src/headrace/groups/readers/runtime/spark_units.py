"""The segments of a Spark query that is a reader: what is acked, what is busy, what can be planned.

It stands where other readers have a consumer.  Nothing is handed out here: a batch takes all it
wants at once, and until it is settled its segments are *busy*, that is not at rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from headrace.catalog.extents import Extent
from headrace.errors import Fenced, HeadraceError
from headrace.groups.consumer import OwnedUnit, UnitEvents, UnitStanding
from headrace.groups.progress import Progress
from headrace.groups.readers.core.segments import SegmentId
from headrace.groups.readers.core.spark_batches import SpanRanges


class SparkUnit:
    """One segment in the hands of the query."""

    def __init__(self, unit: OwnedUnit, owner: UnitEvents) -> None:
        self.unit = unit
        self.owner = owner
        self.acked = unit.progress.acked()
        self.extent: Extent | None = None
        self.paused = False
        self.through = False
        self.draining = False

    def missing(self, upto: int | None = None) -> SpanRanges:
        """What is still to be read, as far as it is known."""
        if self.extent is None:
            return ()
        ends = [end for end in (self.unit.end, upto) if end is not None]
        return self.acked.missing(min([self.extent.head, *ends]))

    @property
    def is_through(self) -> bool:
        """Whether it is read to its end."""
        end = self.unit.end
        if end is None:
            extent = self.extent
            return extent is not None and extent.sealed and self.acked.floor >= extent.head
        return self.acked.floor >= end


class SparkUnits:
    """All of them; see the module's text."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self.closed = False
        self.valid_until_s = math.inf
        self.error: HeadraceError | None = None
        self.by_segment: dict[SegmentId, SparkUnit] = {}
        self._busy: dict[SegmentId, int] = {}

    # -- for the life of the reader ---------------------------------------------------------

    def open(self, unit: OwnedUnit, owner: UnitEvents) -> None:
        """Begin with a segment."""
        self.by_segment[SegmentId.parse(unit.unit)] = SparkUnit(unit, owner)
        self._changed()

    def pause(self, units: Mapping[str, int]) -> None:
        """Plan nothing more of segments."""
        for segment, found in self._of(units):
            found.paused = True
            self._tell_rest(segment, found)

    def resume(self, units: Mapping[str, int]) -> None:
        """Go on with segments."""
        for _, found in self._of(units):
            found.paused = False
        self._changed()

    def drain(self, units: Mapping[str, int]) -> None:
        """Give segments back as soon as they are at rest."""
        for segment, found in self._of(units):
            found.paused = found.draining = True
            self._tell_rest(segment, found)

    def abandon(self, unit: str, token: int, why: Fenced) -> None:  # noqa: ARG002
        """A segment is somebody else's."""
        segment = SegmentId.parse(unit)
        found = self.by_segment.get(segment)
        if found is not None and found.unit.token == token:
            del self.by_segment[segment]
            self._changed()

    def fail(self, error: HeadraceError) -> None:
        """Something is wrong that the query must hear of."""
        self.error = error
        self._changed()

    def standings(self, units: Iterable[str]) -> dict[str, UnitStanding]:
        """Where segments stand; those that are not open are left out."""
        found = {}
        for name in units:
            segment = SegmentId.parse(name)
            held = self.by_segment.get(segment)
            if held is not None:
                rest = not self._is_busy(segment, held)
                found[name] = UnitStanding(held.acked.floor, at_rest=rest)
        return found

    # -- for batches ------------------------------------------------------------------------

    @property
    def tokens(self) -> dict[SegmentId, int]:
        """The segments that are held, with the tokens of their claims."""
        return {segment: found.unit.token for segment, found in self.by_segment.items()}

    def occupy(self, tokens: Mapping[SegmentId, int]) -> None:
        """A batch has these; whatever another one had is free."""
        self._busy = dict(tokens)

    @property
    def is_occupied(self) -> bool:
        """Whether a batch is planned or open."""
        return bool(self._busy)

    @property
    def has_missing(self) -> bool:
        """Whether there is something to read, as far as it is known."""
        return any(unit.missing() for unit in self.by_segment.values())

    def settle(self, acks: Mapping[SegmentId, SpanRanges]) -> None:
        """The batch is over, and these are acked, as far as they are still held as they were."""
        for segment, ranges in acks.items():
            found = self.by_segment.get(segment)
            if found is not None and self._is_busy(segment, found):
                for low, high in ranges:
                    found.acked.ack_range(low, high)
        self._busy = {}
        for segment, found in list(self.by_segment.items()):
            self._look(found)
            self._tell_rest(segment, found)
        self._changed()

    def looked(self, extents: Mapping[SegmentId, Extent], tokens: Mapping[SegmentId, int]) -> None:
        """Where the segments begin and end by now; what is trimmed counts as read."""
        for segment, found in list(self.by_segment.items()):
            extent = extents.get(segment)
            if extent is None or tokens[segment] != found.unit.token:
                continue
            found.extent = extent
            if found.acked.floor < extent.tail:
                found.acked.ack_range(0, extent.tail)
            self._look(found)

    def _look(self, found: SparkUnit) -> None:
        if not found.through and found.is_through:
            found.through = True
            found.owner.finished(found.unit)

    def _is_busy(self, segment: SegmentId, found: SparkUnit) -> bool:
        return self._busy.get(segment) == found.unit.token

    def _tell_rest(self, segment: SegmentId, found: SparkUnit) -> None:
        if not found.paused or self._is_busy(segment, found):
            return
        progress = Progress.of(found.acked, dict(found.unit.progress.attempts))
        if found.draining:
            del self.by_segment[segment]
            found.owner.drained(found.unit, progress)
        else:
            found.owner.rested(found.unit, progress)

    def _of(self, units: Mapping[str, int]) -> list[tuple[SegmentId, SparkUnit]]:
        found = [(SegmentId.parse(name), token) for name, token in units.items()]
        return [
            (segment, self.by_segment[segment])
            for segment, token in found
            if segment in self.by_segment and self.by_segment[segment].unit.token == token
        ]
