"""What the next batch of a Spark query reads, of the segments that its reader has.

*Heads.*  News of a stream makes the next plan look at where segments end; a look is made soon
after it in any case, so that a segment that was sealed is completed though Spark asks for nothing.

*Available now.*  Such a query reads what there is, and ends when it is told that there is nothing
more.  So it waits for its share before it looks how much that is, and, when nothing is left of what
it has, for segments that are between two owners, or follow from those it has just finished.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from headrace.catalog import Tx, streams
from headrace.catalog.extents import Extent
from headrace.catalog.extents import every as every_extent
from headrace.errors import DataLossError
from headrace.groups.progress.store import load_all
from headrace.groups.readers.core.segments import SegmentId
from headrace.groups.readers.core.spark_batches import PlannedSpan, SpanRanges, intersected
from headrace.groups.readers.core.state import ReaderGroupState
from headrace.groups.readers.names import ReaderGroupName, ReaderGroupRecord
from headrace.groups.readers.runtime.hub import Following
from headrace.groups.readers.runtime.moment import GroupMoment
from headrace.groups.readers.runtime.spark_units import SparkUnits
from headrace.host import Host

SHARE_S = 15.0
"""How long a query that reads what there is waits for its share, and for what follows."""
STEP_S = 0.1

Missing = Mapping[SegmentId, SpanRanges]
Choose = Callable[[Tx, Missing], Mapping[SegmentId, int] | None]
"""Up to where the next batch reads of what is missing; None: wait for more."""
T = TypeVar("T")


class SparkPlanning:
    """See the module's text; ``news`` is called when a stream has changed."""

    def __init__(
        self, host: Host, name: ReaderGroupName, units: SparkUnits, news: Callable[[], None]
    ) -> None:
        self._host = host
        self._name = name
        self._units = units
        self._news = news
        self.fail_on_data_loss = True
        self.moved = asyncio.Event()
        """Set whenever something changed that a plan may wait for."""
        self._stops: list[Callable[[], None]] = []
        self._heard: set[int] = set()
        self._checked: dict[SegmentId, int] = {}
        self._freezing = False
        self._frozen: dict[SegmentId, int] | None = None

    def freeze(self) -> None:
        """Read what there is at the next plan, and no more."""
        self._freezing, self._frozen = True, None

    def stop(self) -> None:
        """Listen no longer."""
        for stop in self._stops:
            stop()

    async def spans(
        self, following: Following, reader: str, choose: Choose | None
    ) -> tuple[PlannedSpan, ...]:
        """What the next batch reads, lowest first."""
        record = following.record
        assert record is not None
        if self._freezing and self._frozen is None:
            await self._until(lambda: self._has_share(following.state, reader))
            self._frozen = await self._heads(record)
        until_ms = self._host.now_ms() + round(SHARE_S * 1000)
        while True:
            await self.look(record)
            missing = self._missing()
            if (
                missing
                or not self._more_may_come(following.state)
                or self._host.now_ms() > until_ms
            ):
                break
            await self._host.wait(self.moved, STEP_S)
            self.moved.clear()
        if choose is None or not missing:
            return tuple(PlannedSpan(segment, ranges) for segment, ranges in missing.items())
        ends = await self.read(lambda tx: choose(tx, missing))
        if ends is None:
            return ()
        cut = {s: intersected(ranges, ((0, ends.get(s, 0)),)) for s, ranges in missing.items()}
        return tuple(PlannedSpan(segment, ranges) for segment, ranges in cut.items() if ranges)

    def behind(self, planned: Missing) -> dict[SegmentId, int]:
        """How many offsets of each segment are missing beyond these."""
        found = {}
        for segment, unit in self._units.by_segment.items():
            missing = unit.missing()
            taken = intersected(missing, planned.get(segment, ()))
            found[segment] = _size(missing) - _size(taken)
        return found

    def _missing(self) -> dict[SegmentId, SpanRanges]:
        found = {}
        for segment, unit in self._units.by_segment.items():
            upto = None if self._frozen is None else self._frozen.get(segment, 0)
            ranges = () if unit.paused else unit.missing(upto)
            if ranges:
                found[segment] = ranges
        return found

    def _has_share(self, state: ReaderGroupState, reader: str) -> bool:
        """Whether nothing is on its way to this reader."""
        owned = len(state.owned(reader))
        share = state.segment_count // max(1, len(state.members))
        opened = len(self._units.by_segment) == owned
        return opened and not state.unassigned and owned >= share

    def _more_may_come(self, state: ReaderGroupState) -> bool:
        """Whether segments of what is to be read are between two owners, or about to follow."""
        if self._frozen is None:
            return False
        if any(self._frozen.get(segment) for segment in (*state.unassigned, *state.future)):
            return True
        return any(unit.through or unit.paused for unit in self._units.by_segment.values())

    async def _heads(self, record: ReaderGroupRecord) -> dict[SegmentId, int]:
        def look(tx: Tx) -> dict[SegmentId, int]:
            found = {}
            for stream in record.streams:
                for number, _, head, _, _ in every_extent(tx, stream.id):
                    found[SegmentId(stream.name, number)] = head
            return found

        return await self.read(look)

    async def look(self, record: ReaderGroupRecord) -> None:
        """Learn where the segments begin and end by now; raises if events are lost that must not
        be."""
        await self._listen(record)
        tokens, known = self._units.tokens, self._checked

        def look(tx: Tx) -> tuple[dict[SegmentId, Extent], dict[SegmentId, int]]:
            extents = GroupMoment(tx, self._name, record).extents(tokens)
            fresh = {e.id: s for s, e in extents.items() if e.tail and known.get(s) != tokens[s]}
            floors = load_all(tx, self._name.key, list(fresh)) if fresh else {}
            return extents, {s: floors[key].floor for key, s in fresh.items() if key in floors}

        extents, floors = await self.read(look)
        for segment, unit in sorted(self._units.by_segment.items()):
            extent = extents.get(segment)
            floor = floors.get(segment, unit.acked.floor)
            if self.fail_on_data_loss and extent is not None and floor < extent.tail:
                raise DataLossError(
                    f"stream {segment.stream!r} segment {segment.number}: offsets {floor} to "
                    f"{extent.tail - 1} were trimmed before the group read them; set "
                    "failOnDataLoss to false to go on without them"
                )
        self._checked = tokens
        self._units.looked(extents, tokens)

    async def ids(
        self, record: ReaderGroupRecord, segments: Sequence[SegmentId]
    ) -> dict[SegmentId, int]:
        """The catalog's ids of segments."""

        def look(tx: Tx) -> dict[SegmentId, int]:
            found = GroupMoment(tx, self._name, record).extents(segments)
            return {segment: extent.id for segment, extent in found.items()}

        return await self.read(look)

    async def _listen(self, record: ReaderGroupRecord) -> None:
        for stream in record.streams:
            if stream.id not in self._heard:
                self._heard.add(stream.id)
                channel = streams.channel(stream.id)
                stop = await self._host.listen(channel, self._news)
                self._stops.append(stop)

    async def read(self, look: Callable[[Tx], T]) -> T:
        """Read the catalog on a thread."""
        return await self._host.in_thread(self._host.log.catalog.read, look, snapshot=True)

    async def _until(self, holds: Callable[[], bool]) -> None:
        until_ms = self._host.now_ms() + round(SHARE_S * 1000)
        while not holds() and self._host.now_ms() < until_ms:
            await self._host.wait(self.moved, STEP_S)
            self.moved.clear()


def _size(ranges: SpanRanges) -> int:
    return sum(high - low for low, high in ranges)
