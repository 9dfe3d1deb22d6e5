"""A picture of the catalog: everything that looks at groups need, from one snapshot.

Each table is read once (:mod:`headrace.catalog.overview`), for all groups or for one.  A kind of
group then finds its own in it without asking the catalog again.  One thing cannot be told before
the looking: which units nobody has begun, whose first batch tells their age.  Those of streams
that people made are all read when the first is asked for; where one of a work queue is missing, it
is noted (``wanted``), read for all groups in one statement, and the groups that wanted one look
again.

Whoever takes pictures again and again keeps a memory of them (:class:`Memories`): what is as it was
is not made anew.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, cast

import msgspec

from headrace.catalog import Tx, markers, overview, streams
from headrace.catalog.leases import Ended
from headrace.catalog.memory import Memory
from headrace.catalog.overview import Claimed, KnownProgress, Reached
from headrace.catalog.streams import Segment, Stream
from headrace.groups.lag import OffsetRanges, is_exact, later, missed, unit_view
from headrace.groups.shapes import UnitView

MARKERS_MAX = 100_000
"""Up to this many markers are read at once; beyond, each range of a unit is looked up."""


REMEMBERED_US = 60_000_000
"""For this long; then everything is looked up and made anew, what was compacted meanwhile too."""


class Memories(Memory):
    """What the last picture of everything was, and what was made of it; for one thread."""

    def __init__(self) -> None:
        super().__init__()
        self.progress = KnownProgress()
        self._since_us = 0

    def begin(self, now_us: int) -> None:
        """Another picture is taken."""
        if not 0 <= now_us - self._since_us < REMEMBERED_US:
            self.forget()
            self.progress, self._since_us = KnownProgress(), now_us


UnitFrame: TypeAlias = tuple[Segment, UnitView]
"""A unit but for what is acked of it; ``exact`` if all that its segment holds counts."""

_MadeUnit: TypeAlias = tuple[Segment, UnitView, Reached | None, UnitView]
"""A unit that was made, and what it was made of: segment, frame, progress."""


class CatalogReach(msgspec.Struct, frozen=True, kw_only=True):
    """What of the catalog one group is about."""

    readers: Sequence[str]
    """The names of its claims and progress."""
    streams: Sequence[str] | None
    """None: all that people made."""
    leases: Sequence[str]
    """How the names of its leases begin."""


class Picture(msgspec.Struct, kw_only=True):
    """The catalog at one moment; used within its transaction."""

    tx: Tx
    now_us: int
    entries: Mapping[str, Mapping[str, bytes]]
    streams: Mapping[str, Stream]
    progress: Mapping[str, Mapping[int, Reached]]
    claims: Mapping[str, Claimed]
    leases: Mapping[str, Ended]
    memory: Memory
    own: dict[str, object]
    """What kinds have read from tables of their own, by family."""
    firsts: dict[int, Reached] = {}
    has_firsts: bool = False
    marked: dict[int, list[int]] | None = None
    wanted: set[int] = set()
    public: tuple[Stream, ...] = ()
    """The streams that people made."""
    rest: object = None
    """The same object as at the last look if entries, streams, claims, leases and ``own`` are the
    same; all that may have changed is progress."""

    def reached(self, reader: str, segment: Segment) -> Reached | None:
        """How far a reader has come in a segment, with the batch that comes next."""
        found = self.progress.get(reader, {}).get(segment.id)
        if found is None and segment.head > segment.tail:
            self.read_firsts()
            found = self.firsts.get(segment.id)
            if found is None:
                self.wanted.add(segment.id)
        return found

    def read_firsts(self) -> None:
        """Have the first batches of the streams that people made."""
        if not self.has_firsts:
            self.has_firsts = True
            kept = [s.id for each in self.public for s in each.segments if s.head > s.tail]
            self.firsts |= overview.first_batches(self.tx, kept)

    def markers(self, reached: Reached | None, segment: Segment) -> int:
        """How many of the retained offsets that a reader has not acked are markers."""
        if not segment.markers:
            return 0
        ranges = missed(reached, segment.head)
        if self.marked is None:
            kept = sum(max(0, hi - max(lo, segment.tail)) for lo, hi in ranges)
            return kept - markers.events_in(self.tx, segment, ranges)
        return _between(self.marked.get(segment.id, []), ranges)

    def units(
        self, frames: Iterable[UnitFrame], reader: str, begun: Mapping[int, Reached] | None = None
    ) -> list[UnitView]:
        """The units of a reader; ``begun`` if it has come further than its progress says.

        Where one of a group's units has changed, the others are only older.
        """
        known = self.progress.get(reader, {}) if begun is None else begun
        now_us = self.now_us
        before = cast(dict[int, _MadeUnit], self.memory.last(("parts", reader)) or {})
        kept: dict[int, _MadeUnit] = {}
        found = []
        for segment, frame in frames:
            id = segment.id
            reached = known.get(id) or self.reached(reader, segment)
            if segment.markers:
                markers = self.markers(reached, segment)
                found.append(unit_view(frame, reached, segment, now_us, markers))
                continue
            made = before.get(id)
            if made is None or made[0] is not segment or made[1] is not frame or made[2] != reached:
                unit = unit_view(frame, reached, segment, now_us)
                made = segment, frame, reached, unit
            else:
                unit = later(made[3], reached, now_us)
            kept[id] = made
            found.append(unit)
        self.memory.keep(("parts", reader), kept)
        return found

    def held(self, lease: str) -> Ended | None:
        """A lease that somebody holds now."""
        found = self.leases.get(lease)
        return found if found is not None and found.expires_us > self.now_us else None

    def exact(self, filters: tuple[str, ...], stream: Stream) -> bool:
        """Whether everything that a stream captures passes the filters, by their texts alone."""
        what = "exact", filters, stream.config.subjects
        return self.memory.made(what, None, lambda _: is_exact(filters, stream))

    def begin_again(self) -> None:
        """Read the first batches that were wanted."""
        self.firsts |= overview.first_batches(self.tx, sorted(self.wanted))
        self.wanted = set()


def _between(offsets: list[int], ranges: OffsetRanges) -> int:
    return sum(bisect_left(offsets, hi) - bisect_left(offsets, lo) for lo, hi in ranges)


def take(
    tx: Tx,
    entries: Mapping[str, Mapping[str, bytes]],
    own: dict[str, object],
    reach: CatalogReach | None = None,
    memories: Memories | None = None,
) -> Picture:
    """The rest of a picture whose entries are read already; of all groups, or within a reach."""
    memory = memories or Memory()
    if reach is None:
        found: Iterable[Stream] = streams.all_streams(tx, memory=memory)
    elif reach.streams is None:
        found = streams.all_streams(tx, internal=False)
    else:
        found = [each for name in reach.streams if (each := streams.get(tx, name)) is not None]
    known = {stream.name: stream for stream in found}
    readers = None if reach is None else reach.readers
    public = tuple(stream for stream in known.values() if not stream.config.internal)
    segments = [s for stream in known.values() for s in stream.segments if s.markers]
    few = sum(segment.markers for segment in segments) <= MARKERS_MAX
    claims = overview.claims(tx, readers, memory)
    leases = overview.leases(tx, None if reach is None else reach.leases, memory)
    rest = entries, known, claims, leases, own
    return Picture(
        tx=tx,
        now_us=tx.now_us(),
        entries=entries,
        streams=known,
        progress=overview.progress(tx, readers)
        if memories is None
        else _progress(tx, tuple(known.values()), memories),
        claims=claims,
        leases=leases,
        memory=memory,
        own=own,
        marked=overview.markers(tx, [s.id for s in segments]) if few else None,
        wanted=set(),
        public=public,
        rest=memory.made("rest", rest, lambda _: object()),
    )


def _progress(
    tx: Tx, known: tuple[Stream, ...], memories: Memories
) -> Mapping[str, Mapping[int, Reached]]:
    """The progress of all, which is remembered."""
    return memories.progress.read(tx, memories.made("bounds", known, _bounds))


def _bounds(known: tuple[Stream, ...]) -> dict[int, tuple[int, int]]:
    return {s.id: (s.tail, s.head) for stream in known for s in stream.segments}
