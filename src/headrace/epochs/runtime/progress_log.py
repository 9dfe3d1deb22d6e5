"""The progress log of an epoch stream, read: lines by number, in order, and by frontier.

It is the internal stream ``NAME.epochs`` with one segment; a line's number is its offset there.
Synchronous, as the log is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.catalog import Tx, epochs, streams
from headrace.catalog.streams import Epochs, Stream
from headrace.epochs.core import ledger
from headrace.epochs.core.antichains import Frontier
from headrace.epochs.core.feed import first_line
from headrace.epochs.core.ledger import LedgerState, PublisherState
from headrace.epochs.core.lines import Line, decode_line
from headrace.epochs.core.times import TimeShape
from headrace.errors import NoEpochsError
from headrace.log import internal
from headrace.log.log import Log
from headrace.log.rows import RowCursor

if TYPE_CHECKING:
    import pyarrow as pa

FEW_LINES = 1000
"""So many are read without Arrow, which takes longer to load than they to decode one by one."""

StoredLine = tuple[int, bytes]
"""A line as it is stored, with the time when it was: never the same in another history."""


def last_stored(batch: pa.RecordBatch) -> StoredLine:
    """The last line in a batch of stored events."""
    from headrace.log.events import stamps_of  # it needs Arrow

    return int(stamps_of(batch)[-1]), batch.column("value")[-1].as_py()


def epochs_of(stream: Stream) -> Epochs:
    """How the stream's epochs are configured; raises if it has none."""
    if stream.config.epochs is None:
        raise NoEpochsError(
            f"stream {stream.name!r} has no epochs; they are chosen when a stream is created "
            "(epochs=Epochs(), or --epochs)"
        )
    return stream.config.epochs


def load_state(tx: Tx, stream: Stream) -> LedgerState:
    """The ledger of a stream as it stands; one without a publisher yet is at the beginning."""
    stored = epochs.stream_state(tx, stream.id)
    return begin(stream)[0] if stored is None else ledger.decode_state(stored[0], stream.name)


def begin(stream: Stream) -> tuple[LedgerState, tuple[PublisherState, ...]]:
    """The ledger of a stream that nothing was committed to."""
    config = epochs_of(stream)
    return ledger.begin(stream.name, TimeShape(config.length), config.publishers)


class ProgressLog:
    """The lines of one stream."""

    def __init__(self, log: Log, stream: Stream) -> None:
        self.stream = stream
        self.name = internal.progress_log(stream.name)
        self.shape = TimeShape(epochs_of(stream).length)
        self._log = log
        found = log.stream(self.name)
        self.stream_id = found.id
        """The id of the progress log itself, whose channel tells of new lines."""
        self._segment = found.segments[0]

    @property
    def channel(self) -> str:
        """Is notified when there are new lines."""
        return streams.channel(self.stream_id)

    def bounds(self) -> tuple[int, int]:
        """(first line that is kept, number of the next one)."""
        ((_, tail, head, _),) = self._log.catalog.read(lambda tx: streams.heads(tx, self.stream_id))
        return tail, head

    def line(self, number: int) -> Line:
        """One line."""
        return next(self.scan(number, number + 1))[1]

    def stored(self, number: int) -> StoredLine:
        """One line as it is stored."""
        return last_stored(next(self.batches(number, number + 1)))

    def scan(self, start: int, end: int) -> Iterator[tuple[int, Line]]:
        """(number, line) from ``start`` to ``end`` - 1, at most what was committed."""
        if end - start > FEW_LINES:
            for batch in self.batches(start, end):
                yield from self.decoded(batch)
            return
        for number, _, line in self.rows(start, end):
            yield number, line

    def rows(self, start: int, end: int) -> Iterator[tuple[int, int, Line]]:
        """(number, time in microseconds, line), without Arrow: for looks at a few lines."""
        at = RowCursor(self._log.catalog, self._log.store, self.name, self._segment, start)
        while at.position < end:
            rows = at.next(end)
            assert rows is not None  # damage raises
            for number, row in enumerate(rows, at.position - len(rows)):
                line = decode_line(row.value, self.stream.name, number)
                yield number, row.timestamp_us, line

    def batches(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Lines as they are stored: events (``offset``, ``timestamp``, ``value``)."""
        from headrace.log.cursor import Cursor  # it needs Arrow

        cursor = Cursor(self._log.catalog, self._log.store, self.name, self._segment, start)
        while cursor.position < end:
            batch = cursor.next(end)
            assert batch is not None  # damage raises
            yield batch

    def decoded(self, batch: pa.RecordBatch) -> Iterator[tuple[int, Line]]:
        """The lines in a batch of stored events."""
        values = batch.column("value").to_pylist()
        for number, data in enumerate(values, batch.column("offset")[0].as_py()):
            yield number, decode_line(data, self.stream.name, number)

    def start_of(self, frontier: Frontier) -> tuple[int, Frontier]:
        """Where to begin for everything at or after a frontier: (line, merged lower before it).

        The rows named from that line on hold all of it.  What retention took away is not looked at
        here.
        """
        tail, head = self.bounds()
        start = first_line(self.shape, self.line, tail, head, frontier)
        # A trimmed log does not tell the frontier before its first line: any earlier one will do.
        lower = self.line(start - 1).lower if start > tail else (self.shape.bottom,)
        return start, lower
