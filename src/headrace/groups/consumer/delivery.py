"""A delivery: one event in the hands of the application, and the ways to answer it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import repeat
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.groups.consumer import rows
from headrace.groups.consumer.held import Held
from headrace.log.events import int64s
from headrace.log.position import Position

if TYPE_CHECKING:
    from headrace.groups.consumer.events import EventRun
    from headrace.groups.consumer.run import Run

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Delivery(Held, gc=False, eq=False):
    """One event, to be answered once: acked (alone or in a transaction), nacked or rejected.

    Every answer raises :class:`~headrace.errors.Fenced` when the unit belongs to somebody else
    by now: the work does not count.
    """

    _run: Any
    offset: int
    subject: str
    value: bytes
    key: str | None
    timestamp_us: int
    headers: rows.Headers = ()
    attempt: int = 1
    """How often the event was handed out, this time included."""

    def __repr__(self) -> str:
        return (
            f"Delivery({self.subject!r}, {self.value!r}, key={self.key!r}, "
            f"position={self.stream}/{self.segment}/{self.offset}, attempt={self.attempt})"
        )

    @property
    def timestamp(self) -> datetime:
        """When the event happened, as its publisher says."""
        return _EPOCH + timedelta(microseconds=self.timestamp_us)

    @property
    def stream(self) -> str:
        """The stream that it was read from."""
        name: str = self._run.owned.stream
        return name

    @property
    def segment(self) -> int:
        """The segment that it was read from."""
        number: int = self._run.owned.segment
        return number

    @property
    def position(self) -> Position:
        """Its place in the log."""
        return Position(self.stream, self.segment, self.offset)

    def ack_soon(self) -> None:
        """The event is done with; stored with the next commit, without waiting for it.

        A failure is raised by the next delivery or by ``flush``.
        """
        run: EventRun = self._run
        if self._answer or run.gone is not None:
            self._check("ack")
        if self.attempt != 1:
            run.ack(self)
            run.soon_unstored = True
            self._answer = "acked"
            return
        self._answer = "acked"
        soon = run.soon
        if not soon:
            run.runtime.ack_soon(run)
        soon.append(self.offset)

    async def ack(self) -> None:
        """The event is done with; returns once that is stored."""
        self._check("ack")
        run: EventRun = self._run
        run.ack(self)
        self._answer = "acked"
        await run.stored()


def deliveries(run: Run, data: pa.RecordBatch, strip: int) -> list[Delivery]:
    """Stored rows as deliveries, column by column."""
    subjects = data.column("subject")
    keys, headers = _column(data, "key"), _column(data, "headers")
    columns: list[Iterable[Any]] = [
        repeat(run),
        int64s(data.column(0)).tolist(),
        rows.texts(subjects, rows.prefix_bytes(subjects, strip) if strip else None),
        rows.binaries(data.column("value")),
        repeat(None) if keys is None else rows.texts(keys),
        rows.stamps_us(data.column("timestamp")),
    ]
    if headers is not None:
        columns.append(rows.headers(headers))
    return list(map(Delivery, *columns))


def _column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    at = batch.schema.get_field_index(name)
    return None if at < 0 else batch.column(at)
