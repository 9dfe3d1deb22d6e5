"""Walking forward through one segment, whatever its events become on the way.

A walk finds batches, notices what is missing, trimmed or damaged, and says so.  What it makes of
their bytes is up to who walks: :class:`~headrace.log.cursor.Cursor` makes Arrow of them,
:class:`~headrace.log.rows.RowCursor` plain rows, without loading Arrow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from headrace.catalog import Catalog, Tx, batches, streams, vacant
from headrace.catalog.batches import Batch
from headrace.catalog.streams import Segment
from headrace.errors import (
    DamagedBatchError,
    SegmentGoneError,
    TrimmedError,
    UnknownStreamError,
)
from headrace.log import checksums, limits
from headrace.store import Store

FETCH_MAX = 512

OnDamaged = Callable[[DamagedBatchError], None]
B = TypeVar("B")


class FileAhead(Exception):
    """The next batch is a file, which a ``brief`` read (on an event loop) must not open."""


class Taking(Protocol):
    """Takes the blobs of one load."""

    def put(self, batch: Batch) -> bool:
        """Take the blob of a batch; false if it is not what was stored."""


class Walk(ABC, Generic[B]):
    """A place in one segment; ``position`` is the next offset it will return."""

    def __init__(
        self,
        catalog: Catalog,
        store: Store | None,
        stream: str,
        segment: Segment,
        position: int,
        on_damaged: OnDamaged | None = None,
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._stream = stream
        self._segment_id = segment.id
        self.number = segment.number
        self.position = position
        self._on_damaged = on_damaged
        self._batches_wanted = 8
        self._loaded: tuple[Sequence[Batch], int] = (), 0
        self._at_head = False

    def expect(self, commits: int) -> None:
        """What is wanted are the rows of so many commits: the first load may ask for as many."""
        self._batches_wanted = min(FETCH_MAX, max(self._batches_wanted, commits))

    @property
    def segment_id(self) -> int:
        return self._segment_id

    def load(self, found: Sequence[Batch], turn: int) -> None:
        """These are the batches from ``position`` on: the next load need not ask.

        They were asked for when the catalog's history was the one of ``turn``: in another, they
        may never have been.  Any thread may call.
        """
        self._loaded = found, turn

    @property
    @abstractmethod
    def in_file(self) -> bool:
        """Whether the next events are in a file that is open already."""

    def next(self, end: int, *, brief: bool = False) -> B | None:
        """The next events below ``end``.

        None when events were skipped that are damaged or not wanted; ``position`` moves on either
        way.  With ``brief`` it raises :class:`FileAhead` instead of opening a file.
        """
        if self.in_file:
            if brief:
                raise FileAhead
            return self._next_of_file(end)
        start = self.position
        found, stop = self._read(end)
        if found is not None:
            self.position = start + self._count(found)
            return found
        if stop is None or stop.start > start:
            self._lost(stop.start if stop is not None else end)
        elif stop.path is not None:
            if brief:
                raise FileAhead
            self._open_file(stop)
            return self._next_of_file(end)
        else:
            self._damaged(stop.start, stop.end, self._flaw(stop))
            self.position = min(stop.end, end)
        return None

    def at_hand(self) -> B | None:
        """The next events if they lie in the catalog; None says nothing about what is missing."""
        if self.in_file:
            return None
        self._at_head = True
        try:
            found, _ = self._read(self.position + limits.READ_ROWS)
        finally:
            self._at_head = False
        if found is not None:
            self.position += self._count(found)
        return found

    @abstractmethod
    def _read(self, end: int) -> tuple[B | None, Batch | None]:
        """The blobs from ``position`` on, and the batch that ended them if it is no valid blob."""

    @abstractmethod
    def _count(self, found: B) -> int:
        """How many events there are."""

    @abstractmethod
    def _flaw(self, batch: Batch) -> str:
        """What is wrong with a blob that was not taken."""

    @abstractmethod
    def _open_file(self, batch: Batch, /) -> None:
        """Go on in a file."""

    @abstractmethod
    def _next_of_file(self, end: int) -> B | None:
        """The next events of the open file."""

    def _put_all(self, tx: Tx, end: int, shelf: Taking) -> tuple[int, Batch | None]:
        """Fill the shelf from ``position`` on; returns its first offset, and what ended it."""
        begin = at = self.position
        rows_end = min(end, at + limits.READ_ROWS)
        size = count = 0
        stop = None
        for batch in self._batches(tx):
            if batch.start > at or batch.path is not None or not shelf.put(batch):
                stop = batch
                break
            begin, at = min(begin, batch.start), batch.end
            size += batch.size_bytes
            count += 1
            if at >= rows_end or size >= limits.READ_BYTES:
                break
        if count:
            # Estimate from these sizes how many fill the next load; a wrong guess makes it short.
            wanted = limits.READ_BYTES * count // max(1, size) + 1
            self._batches_wanted = max(1, min(FETCH_MAX, wanted))
        return begin, stop

    def _batches(self, tx: Tx) -> Iterable[Batch]:
        (loaded, turn), self._loaded = self._loaded, ((), 0)
        if turn == self._catalog.turns and loaded and loaded[0].start == self.position:
            return loaded
        wanted = self._batches_wanted
        if self._at_head:  # what is new begins here, if there is anything
            return batches.starting(tx, self._segment_id, self.position, wanted)
        return batches.from_offset(tx, self._segment_id, self.position, wanted, limits.READ_BYTES)

    def _lost(self, upto: int) -> None:
        """There is no batch at ``position``: it was trimmed, or it is missing."""
        # Or it was compacted between two queries: a snapshot decides, and the next fetch finds it.
        found = self._catalog.read(
            lambda tx: next(batches.from_offset(tx, self._segment_id, self.position, 1, 1), None),
            snapshot=True,
        )
        if found is not None and found.start <= self.position < found.end:
            return
        tail = self._catalog.read(lambda tx: streams.tail_of(tx, self._segment_id))
        if tail is None:
            if self._catalog.read(lambda tx: vacant.is_gone(tx, self._stream, self.number)):
                raise SegmentGoneError(self._stream, self.number, self.position, upto)
            raise UnknownStreamError(f"stream {self._stream!r} was deleted while it was read")
        if self.position < tail:
            raise TrimmedError(self._stream, self.number, self.position, tail)
        self._damaged(self.position, upto, "its record is missing")
        self.position = upto

    def _damaged(self, start: int, end: int, reason: str) -> None:
        error = DamagedBatchError(self._stream, self.number, start, end, reason)
        if self._on_damaged is None:
            raise error
        self._on_damaged(error)


def is_whole(batch: Batch) -> bool:
    """Whether the blob of a batch is what was stored."""
    data = batch.data
    if data is None or len(data) != batch.size_bytes:
        return False
    return checksums.fits(batch.checksum, data, batch.layout)
