"""News of streams: how far their segments have come, told to whoever consumes them.

All consumers of a process share one subscription to a stream: an append wakes one callback and
costs one small query, whether one consumer waits or five hundred, and only those are told whose
segments moved.  There is no polling: while nothing is appended nothing runs.

From a server far away the first new events come along, for readers that have all there was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import msgspec

from headrace.catalog import ahead, streams
from headrace.catalog.batches import Batch
from headrace.catalog.streams import Segment, Stream
from headrace.errors import HeadraceError, UnknownSegmentError, UnknownStreamError
from headrace.host import Host

RETRY_S = 1.0
READ_AHEAD_MAX = 16
"""The most readers that get events along with the heads."""


class Reach(msgspec.Struct, frozen=True):
    """How far a segment goes."""

    head: int
    sealed: bool


Listener = Callable[[Reach | HeadraceError], None]


class Loadable(Protocol):
    """A reader that may have all there is."""

    @property
    def segment_id(self) -> int: ...

    @property
    def position(self) -> int: ...

    def load(self, found: Sequence[Batch], turn: int) -> None:
        """Take what comes next, if it is at ``position`` then; any thread may call."""


class StreamNews:
    """The heads of one stream's segments, kept up to date; made by :func:`follow`."""

    def __init__(self, host: Host, name: str) -> None:
        self._host = host
        self._name = name
        self._listeners: dict[int, dict[object, Listener]] = {}
        self._readers: dict[object, tuple[int, Loadable]] = {}
        """By who listens, with the number of the segment."""
        self._known: dict[int, Reach] = {}
        self._users = 0
        self._stream: Stream | None = None
        self._opening: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] | None = None
        self._looking = False
        self._again = False
        self._missed = False
        """There was news while nobody listened: the heads may be out of date."""

    async def open(self) -> Stream:
        """Begin to follow, if nobody does yet."""
        self._users += 1
        opening = self._opening
        if opening is None:
            opening = self._opening = self._host.spawn(self._open(), awaited=True)
        try:
            await asyncio.shield(opening)
        except BaseException:
            if opening.done() and self._opening is opening:
                self._opening = None
            self.close()
            raise
        assert self._stream is not None
        return self._stream

    async def _open(self) -> None:
        log = self._host.log
        self._stream = await self._host.in_thread(log.stream, self._name)
        channel = streams.channel(self._stream.id)
        self._unsubscribe = await self._host.listen(channel, self.look)
        self._missed = True  # what came before it listened: the first listener looks
        self._known = {s.number: Reach(s.head, s.sealed) for s in self._stream.segments}
        if not self._users:
            self._stop()

    def close(self) -> None:
        """One user less; the last one ends it."""
        self._users -= 1
        if not self._users:
            self._stop()

    def _stop(self) -> None:
        if self._host.parts.get((StreamNews, self._name)) is self:
            del self._host.parts[StreamNews, self._name]
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None

    async def segment(self, number: int) -> Segment:
        """One of the stream's segments."""
        assert self._stream is not None
        found = self._stream.segment(number)
        if found is None:
            self._stream = await self._host.in_thread(self._host.log.stream, self._name)
            found = self._stream.segment(number)
        if found is None:
            raise UnknownSegmentError(f"stream {self._name!r} has no segment {number}")
        return found

    def listen(
        self, number: int, who: object, listener: Listener, reader: Loadable | None = None
    ) -> None:
        """Tell ``listener`` how far the segment goes, now and whenever that changes.

        ``reader`` is given what is new, where it can be had along with that.
        """
        self._listeners.setdefault(number, {})[who] = listener
        if reader is not None:
            self._readers[who] = number, reader
        reach = self._known.get(number)
        if reach is not None:
            listener(reach)
        if reach is None or self._missed:
            self.look()

    def leave(self, number: int, who: object) -> None:
        """Tell it no more."""
        listeners = self._listeners.get(number, {})
        listeners.pop(who, None)
        self._readers.pop(who, None)
        if not listeners:
            self._listeners.pop(number, None)

    # -- looking ------------------------------------------------------------------------

    def look(self) -> None:
        """See how far the segments have come; one look at a time."""
        if self._looking:
            self._again = True
            return
        if self._stream is None or not self._listeners:
            self._missed = True
            return
        self._looking = True
        self._missed = False
        loads = self._host.loads
        if loads.may_read:
            try:
                self._found(loads.read(partial(self._read, ())))
            except HeadraceError:
                self._later()
            finally:
                self._looking = False
        else:
            looking = self._host.in_thread(self._read, self._caught_up())
            task = self._host.spawn(looking, awaited=True)
            task.add_done_callback(self._read_done)

    def _caught_up(self) -> list[Loadable]:
        """The readers that have all there was, if they are few and a trip is dear."""
        if self._host.log.catalog.quick or len(self._readers) > READ_AHEAD_MAX:
            return []
        return [
            reader
            for number, reader in self._readers.values()
            if number in self._known and reader.position >= self._known[number].head
        ]

    def _read(self, readers: Sequence[Loadable]) -> list[streams.Head]:
        assert self._stream is not None
        stream_id, catalog = self._stream.id, self._host.log.catalog
        if not readers:
            return catalog.read(lambda tx: streams.heads(tx, stream_id))
        places: dict[int, int] = {}
        for reader in readers:
            places[reader.segment_id] = max(reader.position, places.get(reader.segment_id, 0))
        turn = catalog.turns
        found, loaded = catalog.read(lambda tx: ahead.heads_and_batches(tx, stream_id, places))
        for reader in readers:
            reader.load(loaded.get(reader.segment_id, ()), turn)
        return found

    def _read_done(self, task: asyncio.Future[list[streams.Head]]) -> None:
        self._looking = False
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, HeadraceError):
            self._later()
        elif error is not None:
            raise error
        else:
            self._found(task.result())
        if self._again:
            self._again = False
            self.look()

    def _found(self, heads: list[streams.Head]) -> None:
        if not heads:
            gone = UnknownStreamError(f"stream {self._name!r} was deleted while it was consumed")
            self._tell_all(gone)
            return
        for number, _, head, sealed in heads:
            before = self._known.get(number)
            if before is None or before.head != head or before.sealed != sealed:
                reach = self._known[number] = Reach(head, sealed)
                for listener in list(self._listeners.get(number, {}).values()):
                    listener(reach)

    def _later(self) -> None:
        """The catalog could not be read; ask again in a while."""
        if self._users:
            self._host.after(RETRY_S, self.look)

    def _tell_all(self, error: HeadraceError) -> None:
        for listeners in list(self._listeners.values()):
            for listener in list(listeners.values()):
                listener(error)


def follow(host: Host, stream: str) -> StreamNews:
    """The news of a stream, shared by all that follow it in a program; then ``open`` it."""
    key = (StreamNews, stream)
    found: StreamNews | None = host.parts.get(key)
    if found is None:
        found = host.parts[key] = StreamNews(host, stream)
    return found
