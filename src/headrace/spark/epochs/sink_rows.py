"""Rows for an epoch stream, in a task: the epoch column, late rows, how many of which epochs."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.catalog import Tx, epochs, producers
from headrace.epochs.core import ledger
from headrace.epochs.core.antichains import Frontier, check_frontier, join
from headrace.epochs.core.arrays import at_or_after
from headrace.epochs.core.times import Time, TimeShape
from headrace.epochs.runtime.progress_log import load_state
from headrace.epochs.runtime.rows import RowTimes, distinct, timed
from headrace.errors import EpochStreamEndedError, LateEventError
from headrace.log import events
from headrace.log.log import Log
from headrace.log.message import with_column
from headrace.log.routing import Route
from headrace.spark.epochs.sink_options import EpochWrite
from headrace.spark.epochs.texts import frontier_text, parse_frontier

Counts = tuple[tuple[Time, int], ...]
"""How many rows of which time."""


class LateRows(msgspec.Struct, frozen=True):
    """The rows that are in time, and (place, reason) of the others."""

    rows: pa.RecordBatch
    late: tuple[tuple[int, str], ...]


class TaskEpochs(msgspec.Struct):
    """What a task knows of the publisher, and what it tells of its rows."""

    wanted: EpochWrite
    shape: TimeShape
    held: Frontier
    lower: Frontier
    repeated: bool
    """The batch was committed before: its rows are not late, they are there."""
    late: int = 0
    frontier: Frontier | None = None
    """What the rows say is still to come (``frontier=column:NAME``)."""

    @property
    def time(self) -> Time | None:
        """The epoch of all rows, if there is one for all."""
        if self.wanted.by_batch:
            return self.held[0] if self.held else None
        if self.wanted.time is not None:
            return parse_frontier(self.shape, self.wanted.time, "epoch")[0]
        return None

    def rows(self, batch: pa.RecordBatch, converted: pa.RecordBatch) -> pa.RecordBatch:
        """Converted rows with their epoch column, not judged yet."""
        column = self.wanted.frontier.column
        if column:
            self._hear(batch.column(column))
        if self.wanted.column is None:
            time = self.time
            assert time is not None
            return with_column(converted, tuple(self.shape.to_row(time)))
        values = epoch_array(batch.column(self.wanted.column), self.wanted.unit_us)
        return converted.append_column("epoch", values)

    def _hear(self, column: pa.Array) -> None:
        for value in pc.unique(column).to_pylist():
            if value is None:
                continue
            if isinstance(value, str):
                told = parse_frontier(self.shape, value, "frontier column")
            else:
                row = value if isinstance(value, list) else [value]
                told = check_frontier(self.shape, [self.shape.from_row(row)])
            known = self.frontier
            self.frontier = told if known is None else join(self.shape, known, told)

    def check(self, batch: pa.RecordBatch) -> None:
        """Raise if a row's epoch is no time of the stream."""
        timed(self.shape, batch, None)

    def late_rows(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """The places of rows at epochs that the publisher does not hold any more."""
        if self.repeated or not batch.num_rows:
            return np.empty(0, np.int64)
        _, times = timed(self.shape, batch, None)
        if isinstance(times, tuple):
            times = np.array([times], np.int64)
            times = np.broadcast_to(times, (batch.num_rows, times.shape[1]))
        flat = times[:, 0] if self.shape.length == 0 else times
        return np.flatnonzero(~at_or_after(flat, self.held))

    def without_late(self, batch: pa.RecordBatch, route: Route, first: int) -> LateRows:
        """The rows that are not late; an error if there are others and they are to fail."""
        late = self.late_rows(batch)
        if not len(late):
            return LateRows(batch, ())
        times = batch.column("epoch")
        if self.wanted.late == "fail":
            found = sorted({self.shape.from_row(times[int(at)].as_py()) for at in late})
            raise LateEventError(
                stream=route.stream.name,
                publisher=self.wanted.publisher,
                times=found,
                held=self.held,
                frontier=self.lower,
                rows=len(late),
                row=first + int(late[0]),
            )
        self.late += len(late)
        kept = np.ones(batch.num_rows, np.bool_)
        kept[late] = False
        holds = frontier_text(self.held)
        told = tuple(
            (at, f"epoch {times[at].as_py()} is late: {self.wanted.publisher!r} holds {holds}")
            for at in late.tolist()
        )
        return LateRows(batch.filter(pa.array(kept)), told)

    @property
    def told(self) -> str | None:
        return None if self.frontier is None else frontier_text(self.frontier)


def look(log: Log, route: Route, wanted: EpochWrite, batch: tuple[str, int] | None) -> TaskEpochs:
    """The publisher as it stands; ``batch`` is the (query, number) that is written."""
    stream = route.stream

    def read(tx: Tx) -> tuple[Frontier, Frontier, bool]:
        state = load_state(tx, stream)
        if state.status != ledger.OPEN:
            raise EpochStreamEndedError(stream.name, state.status, state.reason)
        known = epochs.standing(tx, stream.id, wanted.publisher).publisher
        held = state.lower
        if known is not None:
            publisher = ledger.decode_publisher(known, wanted.publisher, stream.name)
            held = ledger.minimal(state.shape, publisher.held)
        seen = batch is not None and producers.seen(tx, stream.id, *batch) is not None
        return held, state.lower, seen

    held, lower, seen = log.catalog.read(read, snapshot=True)
    config = stream.config.epochs
    assert config is not None
    return TaskEpochs(wanted, TimeShape(config.length), held, lower, seen)


def epoch_array(column: pa.Array, unit_us: int | None) -> pa.Array:
    """A column of integers, arrays or timestamps as epochs; what is null or negative stays so."""
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        return column.cast(events.EPOCH)
    if unit_us is not None:
        stamps = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
        missing = stamps.is_null()
        numbers = np.floor_divide(stamps.fill_null(0).to_numpy(zero_copy_only=False), unit_us)
    else:
        whole = column.cast(pa.int64())
        missing = whole.is_null()
        numbers = whole.fill_null(0).to_numpy(zero_copy_only=False)
    # A null becomes an empty list, which is no time of any stream.
    present = ~missing.to_numpy(zero_copy_only=False)
    bounds = np.concatenate(([0], np.cumsum(present))).astype(np.int32)
    child = events.numbers(np.ascontiguousarray(numbers[present], np.int64))
    return pa.Array.from_buffers(
        events.EPOCH, len(column), [None, pa.py_buffer(bounds)], children=[child]
    )


def counts_of(shape: TimeShape, batch: pa.RecordBatch) -> Counts:
    """How many rows of which times a checked batch has."""
    _, times = timed(shape, batch, None)
    return counted_times(shape, times, batch.num_rows)


def counted_times(shape: TimeShape, times: RowTimes, rows: int) -> Counts:
    known, places = distinct(shape, times)
    if len(known) == 1:
        return ((known[0], rows),)
    return tuple(zip(known, np.bincount(places).tolist(), strict=True))


def added(total: dict[Time, int], more: Mapping[Time, int] | Counts) -> None:
    """Add counts to others."""
    for time, count in more.items() if isinstance(more, Mapping) else more:
        total[time] = total.get(time, 0) + count
