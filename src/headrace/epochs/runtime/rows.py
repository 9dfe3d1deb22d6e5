"""The times of rows that are to be appended: one for all of them, or one in every row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.epochs.core import ledger
from headrace.epochs.core.antichains import Frontier, check_frontier
from headrace.epochs.core.commits import Step
from headrace.epochs.core.ledger import LedgerState, PublisherState
from headrace.epochs.core.times import TIME_MAX, Time, TimeShape
from headrace.errors import InvalidEventError, LateEventError, TimeShapeError
from headrace.log import events
from headrace.log.events import Event
from headrace.log.message import Single, single

Wanted = object
"""A frontier as a caller gives it: a time, or some."""

RowTimes = tuple[int, ...] | npt.NDArray[np.int64]
"""The parts of the time of all rows, or an array with a row for each."""


_PLAIN = events.schema_of(events.PLAIN)
# Not by ``from_pylist``, which imports pandas where it is installed.
EMPTY = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in _PLAIN], schema=_PLAIN)
"""No rows: what an advance appends."""


_NONE = np.empty(0, np.int64)


def frontier_of(shape: TimeShape, wanted: object) -> Frontier:
    """A frontier as a caller gives it: one time, or some of them."""
    if isinstance(wanted, int) or (
        isinstance(wanted, tuple) and shape.length and all(type(part) is int for part in wanted)
    ):
        return (shape.check(wanted),)
    if isinstance(wanted, str | bytes) or not isinstance(wanted, Iterable):
        raise TimeShapeError(f"{wanted!r} is no frontier: give a time ({shape}), or some of them")
    return check_frontier(shape, wanted)


def timed(shape: TimeShape, batch: pa.RecordBatch, time: object) -> tuple[pa.RecordBatch, RowTimes]:
    """A checked batch and the times of its rows; a column of one time is made when it is read."""
    given = "epoch" in batch.schema.names
    if time is None:
        if not given:
            if not batch.num_rows:
                return batch, tuple(shape.to_row(shape.bottom))
            raise InvalidEventError("the rows have no epoch column, and no time was given for all")
        times = _column(shape, batch.column("epoch"))
        if len(times) and bool((times == times[0]).all()):
            return batch, tuple(times[0].tolist())
        return batch, times
    row = tuple(shape.to_row(shape.check(time)))
    if given:
        differs = (_column(shape, batch.column("epoch")) != np.array(row, np.int64)).any(axis=1)
        if bool(differs.any()):
            at = int(differs.argmax())
            raise InvalidEventError(
                f"row {at}: its epoch is {batch.column('epoch')[at].as_py()}, and the time given "
                f"for all rows is {time}; leave one of them out",
                row=at,
            )
        return batch, row
    return batch, row


def lone_of(shape: TimeShape, data: object, time: object) -> tuple[Single, RowTimes] | None:
    """An event of an epoch, checked and encoded without Arrow, and its time.

    None if it is not a lone event, or one that Arrow has to encode.
    """
    if not isinstance(data, Event) or time is None:
        return None
    row = tuple(shape.to_row(shape.check(time)))
    one = single(events.check_event(data), events.now_us(), row)
    return one and (one, row)


def rows_in(given: pa.RecordBatch | Single) -> int:
    """How many rows an append has."""
    return 1 if isinstance(given, Single) else given.num_rows


def _column(shape: TimeShape, column: pa.ListArray) -> npt.NDArray[np.int64]:
    """The times of an epoch column, a row for each; raises at the first that is none."""
    parts = shape.length or 1
    bounds = events.bounds_of(column)
    wrong = np.diff(bounds) != parts
    if column.null_count:
        wrong |= np.array(column.is_null().to_pylist(), np.bool_)
    if bool(wrong.any()):
        at = int(wrong.argmax())
        raise InvalidEventError(
            f"row {at}: its epoch is {column[at].as_py()}; the stream's times are {shape}", row=at
        )
    values = events.int64s(column.values)[bounds[0] : bounds[-1]].reshape(-1, parts)
    bad = ((values < 0) | (values > TIME_MAX)).any(axis=1)
    if bool(bad.any()):
        at = int(bad.argmax())
        raise InvalidEventError(
            f"row {at}: epoch {column[at].as_py()} is no time; a part is 0 to {TIME_MAX}", row=at
        )
    return np.ascontiguousarray(values)


def distinct(shape: TimeShape, times: RowTimes) -> tuple[tuple[Time, ...], npt.NDArray[np.int64]]:
    """The distinct times, sorted, and for each row which of them it has (empty if only one)."""
    if isinstance(times, tuple):
        return (shape.from_row(times),), _NONE
    if not len(times):
        return (), _NONE
    if times.shape[1] == 1:
        values = times[:, 0]
        steps = np.diff(values)
        if (steps >= 0).all():
            changes = steps > 0
            places = np.concatenate(([0], np.cumsum(changes)))
            found = values[np.concatenate(([True], changes))]
        else:
            found, places = np.unique(values, return_inverse=True)
        return tuple(shape.from_row([value]) for value in found.tolist()), places
    found, places = np.unique(times, axis=0, return_inverse=True)
    return tuple(shape.from_row(row) for row in found.tolist()), places.reshape(-1)


@lru_cache(maxsize=16)
def _begun(stream: str, shape: TimeShape) -> LedgerState:
    return ledger.begin(stream, shape)[0]


def refuse_late(
    stream: str,
    shape: TimeShape,
    held: PublisherState,
    lower: Frontier,
    rows: int,
    times: RowTimes,
) -> None:
    """Refuse rows that are late for sure, before they are sent on their way."""
    if not rows:
        return
    known, places = distinct(shape, times)
    try:
        ledger.check_steps(_begun(stream, shape), held, [Step(times=known)])
    except LateEventError as error:
        late = [known.index(time) for time in error.times if time in known]
        row = 0
        if len(known) > 1:
            mask = np.isin(places, late)
            rows, row = int(mask.sum()), int(mask.argmax())
        raise LateEventError(
            stream=stream,
            publisher=held.name,
            times=error.times,
            held=error.held,
            frontier=lower,
            rows=rows,
            row=row,
        ) from None


def distinct_of(
    shape: TimeShape, parts: Sequence[tuple[tuple[int, ...], int]]
) -> tuple[tuple[Time, ...], npt.NDArray[np.int64]]:
    """As :func:`distinct`, of parts that have one time each, with their numbers of rows."""
    known = sorted({row for row, _ in parts})
    place_of = {row: place for place, row in enumerate(known)}
    places = np.array([place_of[row] for row, _ in parts], np.int64)
    return tuple(map(shape.from_row, known)), places.repeat([rows for _, rows in parts])


def one_each(
    parts: Sequence[tuple[RowTimes, int]],
) -> list[tuple[tuple[int, ...], int]] | None:
    """The parts, if each has one time for all its rows."""
    found = [(each, rows) for each, rows in parts if isinstance(each, tuple)]
    return found if len(found) == len(parts) else None


def together(parts: Sequence[tuple[RowTimes, int]]) -> RowTimes:
    """The times of several appends (each with its number of rows) as those of one."""
    if (single := one_each(parts)) is not None:
        first = single[0][0]
        if all(each == first for each, _ in single):
            return first
        times = np.array([each for each, _ in single], np.int64)
        return times.repeat([rows for _, rows in single], axis=0)
    arrays = [
        np.repeat(np.array([each], np.int64), rows, axis=0) if isinstance(each, tuple) else each
        for each, rows in parts
    ]
    return np.concatenate(arrays)
