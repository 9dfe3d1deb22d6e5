"""How a stream's events are read from any retained place, in order per key.

What they become is up to who reads: Arrow (:mod:`headrace.log.read`), or plain rows
(:mod:`headrace.log.rows`).

A reader walks the segments as they follow from each other, all predecessors first
(:mod:`headrace.log.order`), which is what keeps a key's events in order through splits and merges.
Segments that are ready take turns.

Without ``follow`` a read ends at the heads that it found at its start; with it, it never ends,
and ``next`` returns None when there is nothing yet.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Generic

from headrace.catalog import Catalog, Tx, batches, streams
from headrace.catalog.streams import Segment, Stream
from headrace.errors import (
    HeadraceError,
    InvalidPositionError,
    NotStoredError,
    SegmentGoneError,
    TrimmedError,
    UnknownSegmentError,
    UnknownStreamError,
)
from headrace.log import order
from headrace.log.query import Place, Query
from headrace.log.times import to_us
from headrace.log.walk import B, OnDamaged, Walk
from headrace.store import Store
from headrace.subjects import parse_filter

_log = logging.getLogger(__name__)

READ_AHEAD_MAX = 16
"""Of so many segments at most, the first new blobs are read together with the heads."""


class Reading(ABC, Generic[B]):
    """A read under way; not thread-safe."""

    def __init__(
        self,
        catalog: Catalog,
        store: Store | None,
        stream: str,
        query: Query,
        on_damaged: OnDamaged | None = None,
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._query = query
        self._on_damaged = on_damaged
        self._filter = None if query.subject is None else parse_filter(query.subject)
        _check(query)
        self._left = query.limit
        self._turns = catalog.turns
        self.stream = catalog.read(lambda tx: streams.require(tx, stream), snapshot=True)
        epochs = self.stream.config.epochs
        if epochs is not None and not epochs.stored:
            raise NotStoredError(
                f"stream {stream!r} stores nothing: its rows go from publishers to subscribers "
                "directly; hear them with hr.live_epochs, or headrace epoch read"
            )
        chosen = _chosen(self.stream, query)
        starts = self._places(query.start, chosen, "start")
        ends = None if query.follow else self._ends(query.until, chosen)
        self._ends_at = ends
        self._heads = {segment.number: segment.head for segment in self.stream.segments}
        self._sealed = {segment.number: segment.sealed for segment in self.stream.segments}
        self._order: order.Order[int] = order.Order()
        self._cursors: dict[int, Walk[B]] = {}
        """The cursors of segments that are not finished."""
        self._ready: deque[Walk[B]] = deque()
        self._taken: set[int] = set()
        """Every segment that took part."""
        self._ended: dict[int, int] = {}
        self._join([(s, starts[s.number]) for s in chosen if s.number in starts])

    @property
    def done(self) -> bool:
        """Whether there is nothing more to come."""
        if self._left is not None and self._left <= 0:
            return True
        endless = self._query.follow and self._query.segments is None
        return not endless and not self._cursors

    @property
    def positions(self) -> dict[int, int]:
        """Where another read could go on: {segment: offset} of all that may hold more."""
        return self._ended | {number: cursor.position for number, cursor in self._cursors.items()}

    @property
    def channel(self) -> str:
        """The catalog's channel to wait on when ``next`` returned None."""
        return streams.channel(self.stream.id)

    def expect(self, commits: int) -> None:
        """Of every segment about so many commits are wanted; see :meth:`Walk.expect`."""
        for cursor in self._cursors.values():
            cursor.expect(commits)

    def next(self, *, brief: bool = False) -> B | None:
        """The next events, or None when there are none (yet).

        With ``brief``, for an event loop, it fetches one load at most; if the filters leave no row
        of it, the batch is empty.  Where it would have to open a file, it raises ``FileAhead``; a
        call without ``brief`` goes on from there.
        """
        looked = not self._query.follow
        while not self.done:
            cursor = self._pick()
            if cursor is None:
                if looked:
                    return None
                if brief and (shown := self._at_hand()) is not None:
                    return shown
                self._look()
                looked = True
                continue
            found = cursor.next(self._end(cursor), brief=brief)
            shown = None if found is None else self._show(cursor, found)
            self._retire(cursor)
            if shown is not None and self._count(shown):
                return shown
            if brief:
                return self._nothing()
        return None

    # -- which segment is next ----------------------------------------------------------

    def _pick(self) -> Walk[B] | None:
        for _ in range(len(self._ready)):
            cursor = self._ready[0]
            self._ready.rotate(-1)
            if cursor.position < self._end(cursor):
                return cursor
        return None

    def _end(self, cursor: Walk[B]) -> int:
        if self._ends_at is not None:
            return self._ends_at.get(cursor.number, 0)
        return self._heads[cursor.number]

    def _is_through(self, cursor: Walk[B]) -> bool:
        if cursor.position < self._end(cursor):
            return False
        return self._ends_at is not None or self._sealed[cursor.number]

    def _retire(self, cursor: Walk[B]) -> None:
        """Drop the cursor of a finished segment, and make its successors ready."""
        due = [cursor]
        while due:
            through = due.pop()
            if not self._is_through(through):
                continue
            number = through.number
            self._ready.remove(through)
            del self._cursors[number]
            if not self._sealed[number] or through.position < self._heads[number]:
                self._ended[number] = through.position
            released = [self._cursors[follower] for follower in self._order.finish(number)]
            self._ready.extend(released)
            due += released

    def _join(self, segments: Sequence[tuple[Segment, int]]) -> None:
        """Take segments in at their offsets; they wait for predecessors that are being read."""
        for segment, offset in segments:
            self._taken.add(segment.number)
            self._cursors[segment.number] = self._cursor(
                segment, offset, self._on_damaged, origins=segment.lane is not None
            )
        ready = self._order.join({segment.number: segment.predecessors for segment, _ in segments})
        self._ready.extend(self._cursors[number] for number in ready)
        for cursor in list(self._ready):
            self._retire(cursor)

    def _at_hand(self) -> B | None:
        """What is new in the only segment, without a look at its head; None: look."""
        if len(self._ready) != 1 or not self._catalog.quick or self._turns != self._catalog.turns:
            return None
        cursor = self._ready[0]
        start = cursor.position
        if (found := cursor.at_hand()) is None:
            return None
        if self._turns != self._catalog.turns:
            cursor.position = start
            return None
        self._heads[cursor.number] = cursor.position
        return self._show(cursor, found)

    def _look(self) -> None:
        """Read the heads of the segments again, and find new segments."""
        turn = self._catalog.turns
        found = self._catalog.read(lambda tx: self._heads_now(tx, turn))
        fresh: list[Segment] = []
        if not found or any(number not in self._heads for number, *_ in found):
            # A stream that was deleted is an error here, not something to wait for.
            stream = self._catalog.read(
                lambda tx: streams.require(tx, self.stream.name), snapshot=True
            )
            if stream.id != self.stream.id:
                raise UnknownStreamError(
                    f"stream {self.stream.name!r} was deleted and made anew; read it from its start"
                )
            found = [(s.number, s.tail, s.head, s.sealed) for s in stream.segments]
            fresh = [s for s in stream.segments if s.number not in self._heads]
        if self._turns != self._catalog.turns:
            self._turns = self._catalog.turns
            self._go_back({number: head for number, _, head, _ in found})
        for number, _, head, sealed in found:
            self._heads[number] = head
            self._sealed[number] = sealed
        here = {number for number, *_ in found}
        for number, cursor in self._cursors.items():
            if number not in here:
                # What followed it may be gone, too, so nobody could tell where to go on.
                end = max(cursor.position, self._heads[number])
                raise SegmentGoneError(self.stream.name, number, cursor.position, end)
        followers: set[int] = set()
        if self._query.segments is None:
            followers = order.following(self._taken, {s.number: s.predecessors for s in fresh})
        self._join([(segment, 0) for segment in fresh if segment.number in followers])

    def _heads_now(self, tx: Tx, turn: int) -> list[streams.Head]:
        """How far the segments go; from a server far away the first batches come along."""
        if self._catalog.quick or len(self._ready) > READ_AHEAD_MAX:
            return streams.heads(tx, self.stream.id)
        # Most reads end before they come here, looks at the command line among them.
        from headrace.catalog import ahead

        positions = {cursor.segment_id: cursor.position for cursor in self._ready}
        found, loaded = ahead.heads_and_batches(tx, self.stream.id, positions)
        for cursor in self._ready:
            cursor.load(loaded.get(cursor.segment_id, ()), turn)
        return found

    def _go_back(self, heads: dict[int, int]) -> None:
        """The catalog's history is another one: what follows the old place may lie before it."""
        for number, cursor in list(self._cursors.items()):
            head = heads.get(number)
            if head is None:
                raise UnknownStreamError(
                    f"stream {self.stream.name!r} is not what it was, since the catalog went back; "
                    "read it from a place that you choose"
                )
            if cursor.position > head:
                _log.warning(
                    "stream %r, segment %d: the catalog went back, so this read does, too, from "
                    "offset %d to %d",
                    *(self.stream.name, number, cursor.position, head),
                )
                cursor.position = head

    # -- what is shown ------------------------------------------------------------------

    @abstractmethod
    def _cursor(
        self, segment: Segment, offset: int, on_damaged: OnDamaged | None, *, origins: bool
    ) -> Walk[B]:
        """A walk from an offset on."""

    @abstractmethod
    def _show(self, cursor: Walk[B], batch: B) -> B:
        """Those of the events that are wanted; a limit may move ``cursor`` back to its end."""

    @abstractmethod
    def _count(self, batch: B) -> int:
        """How many events there are."""

    @abstractmethod
    def _nothing(self) -> B:
        """No events."""

    @abstractmethod
    def _since(self, batch: B, ts_us: int) -> int | None:
        """The offset of the first event at or after a time."""

    # -- places -------------------------------------------------------------------------

    def _places(self, place: Place, chosen: list[Segment], what: str) -> dict[int, int]:
        """{segment: offset} for a place; segments before it are left out."""
        match place:
            case "earliest":
                return {segment.number: segment.tail for segment in chosen}
            case "latest":
                return {s.number: s.head for s in chosen if not s.sealed}
            case datetime():
                ts_us = to_us(place)
                found = {s.number: self._at_time(s, ts_us) for s in chosen}
                return {s.number: found[s.number] for s in chosen if _is_live(s, found[s.number])}
            case bool() | str():
                pass
            case int():
                if len(chosen) != 1:
                    raise InvalidPositionError(
                        f"{what}={place} needs a single segment, and stream {self.stream.name!r} "
                        f"has {len(chosen)}: give {{segment: offset}} or choose a segment"
                    )
                return self._cut({chosen[0].number: place}, chosen, what)
            case Mapping():
                return self._cut(place, chosen, what)
        raise InvalidPositionError(
            f"{what}={place!r} is not a place: give 'earliest', 'latest', a datetime, an offset or "
            "{segment: offset}"
        )

    def _cut(self, cut: Mapping[int, int], chosen: list[Segment], what: str) -> dict[int, int]:
        """The listed segments at their offsets, and all that follow from them at their start."""
        by_number = {segment.number: segment for segment in chosen}
        found: dict[int, int] = {}
        for number, offset in cut.items():
            segment = by_number.get(number)
            if segment is None:
                raise _missing(self.stream, number, offset)
            if not isinstance(offset, int) or not 0 <= offset <= segment.head:
                raise InvalidPositionError(
                    f"{what}: offset {offset!r} is outside segment {number}, "
                    f"which has {segment.tail} to {segment.head}"
                )
            if what == "start" and offset < segment.tail:
                raise TrimmedError(self.stream.name, number, offset, segment.tail)
            found[number] = offset
        for number in order.following(found, {s.number: s.predecessors for s in chosen}):
            found.setdefault(number, by_number[number].tail)
        return found

    def _ends(self, until: Place | None, chosen: list[Segment]) -> dict[int, int]:
        heads = {segment.number: segment.head for segment in chosen}
        if until is None or until == "latest":
            return heads
        if isinstance(until, datetime):
            ts_us = to_us(until)
            return {segment.number: self._at_time(segment, ts_us) for segment in chosen}
        if isinstance(until, Mapping):
            return heads | self._cut(until, chosen, "until")
        return self._places(until, chosen, "until")

    def _at_time(self, segment: Segment, ts_us: int) -> int:
        """The first offset whose event is at or after the time; the head when there is none."""
        place = self._catalog.read(
            lambda tx: batches.first_by_event_time(tx, segment, ts_us), snapshot=True
        )
        if place is None:
            return segment.head
        # Damage met by the search is reported when the read itself comes to it, if it does.
        skip = None if self._on_damaged is None else lambda _: None
        cursor = self._cursor(segment, place.start, skip, origins=False)
        while cursor.position < place.end:
            batch = cursor.next(place.end)
            found = None if batch is None else self._since(batch, ts_us)
            if found is not None:
                return found
        return place.end


def _is_live(segment: Segment, offset: int) -> bool:
    """Whether a read from here has anything to expect of the segment."""
    return not segment.sealed or offset < segment.head


def _chosen(stream: Stream, query: Query) -> list[Segment]:
    if query.segments is None:
        return list(stream.segments)
    found = []
    for number in sorted(set(query.segments)):
        segment = stream.segment(number)
        if segment is None:
            raise _missing(stream, number)
        found.append(segment)
    return found


def _missing(stream: Stream, number: int, offset: int = 0) -> HeadraceError:
    """What to say of a segment that is not there: numbers are given out once, one by one."""
    if isinstance(number, int) and 0 <= number < stream.segments[-1].number:
        return SegmentGoneError(stream.name, number, offset, offset)
    return UnknownSegmentError(f"stream {stream.name!r} has no segment {number}")


def _check(query: Query) -> None:
    if query.follow and query.until is not None:
        raise InvalidPositionError("a read that follows has no end: give follow or until")
    if query.limit is not None and query.limit < 1:
        raise InvalidPositionError(f"limit={query.limit}: read at least one event")
