"""A model of the durable log: segments own key ranges, split, merge, and remember their edges.

Appends are immediate and never fail: the log's own crash safety is proved elsewhere.  What
matters here is what the protocols see of it: heads that grow, segments that are sealed in the
middle of being consumed, and successors that must wait for all of their predecessors.
"""

from __future__ import annotations

import zlib

import msgspec

KEY_SPACE = 1 << 16


class Event(msgspec.Struct, frozen=True):
    """An event: its place, its key, and how many of its key came before it."""

    segment: int
    offset: int
    key: str
    key_sequence: int


class Segment:
    """An ordered part of the stream that owns the key hashes in [low, high)."""

    def __init__(self, number: int, low: int, high: int, predecessors: tuple[int, ...]) -> None:
        self.number = number
        self.low = low
        self.high = high
        self.predecessors = predecessors
        self.successors: tuple[int, ...] = ()
        self.sealed = False
        self.events: list[Event] = []

    @property
    def head(self) -> int:
        """The offset of the next event."""
        return len(self.events)


class ModelLog:
    """One stream of events."""

    def __init__(self) -> None:
        self.segments: dict[int, Segment] = {}
        self._open_now: list[Segment] | None = None
        """The open segments in key order, once somebody has asked."""
        self.key_counts: dict[str, int] = {}
        self.places: dict[tuple[str, int], tuple[int, int]] = {}
        """Where the n-th event of a key is."""

    def create(self, segments: int) -> None:
        """Open the first segments, each with an equal share of the key space."""
        for index in range(segments):
            low = KEY_SPACE * index // segments
            high = KEY_SPACE * (index + 1) // segments
            self._open(low, high, ())

    def _open(self, low: int, high: int, predecessors: tuple[int, ...]) -> Segment:
        segment = Segment(len(self.segments), low, high, predecessors)
        self.segments[segment.number] = segment
        self.scaled()
        return segment

    def scaled(self) -> None:
        """Segments were opened or sealed."""
        self._open_now = None

    @property
    def open_segments(self) -> list[Segment]:
        """Segments that still take appends, in key order."""
        if self._open_now is None:
            found = (s for s in self.segments.values() if not s.sealed)
            self._open_now = sorted(found, key=lambda s: s.low)
        return self._open_now

    @property
    def event_count(self) -> int:
        """How many events were appended."""
        return len(self.places)

    @staticmethod
    def slot(key: str) -> int:
        """Where a key stands in the key space."""
        return zlib.crc32(key.encode()) % KEY_SPACE

    def append(self, key: str) -> Event:
        """Append one event to the open segment that owns its key."""
        slot = self.slot(key)
        segment = next(s for s in self.open_segments if s.low <= slot < s.high)
        sequence = self.key_counts.get(key, 0)
        event = Event(segment.number, segment.head, key, sequence)
        segment.events.append(event)
        self.key_counts[key] = sequence + 1
        self.places[key, sequence] = (segment.number, event.offset)
        return event

    def split(self, number: int) -> tuple[int, ...] | None:
        """Seal a segment and open two in its place; None if it is sealed or cannot be cut."""
        segment = self.segments[number]
        if segment.sealed or segment.high - segment.low < 2:
            return None
        middle = (segment.low + segment.high) // 2
        segment.sealed = True
        self.scaled()
        segment.successors = tuple(
            self._open(low, high, (number,)).number
            for low, high in ((segment.low, middle), (middle, segment.high))
        )
        return segment.successors

    def split_twice(self, number: int) -> None:
        """Split a segment, and what follows from it before anything is written there."""
        for successor in self.split(number) or ():
            self.split(successor)

    def merge(self, left: int, right: int) -> int | None:
        """Seal two neighbours and open one in their place; None if they are not open neighbours."""
        first, second = self.segments[left], self.segments[right]
        if first.sealed or second.sealed or first.high != second.low:
            return None
        merged = self._open(first.low, second.high, (left, right))
        for segment in (first, second):
            segment.sealed = True
            segment.successors = (merged.number,)
        self.scaled()
        return merged.number
