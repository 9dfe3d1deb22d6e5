"""The Arrow IPC message of a batch of plain events, as a template with numbers to fill in.

A message is a flatbuffer header (here: the description) and a body.  The body is the columns'
buffers one after the other, each padded to eight bytes: the values of the times; for a text column
its offsets and its bytes.  Headers of one layout differ only in some integers: the number of rows,
the place and length of every buffer, and the size of the body.  Knowing where these stand, one can
write a message without calling Arrow: the compiled ``split`` does for many events, and ``single``
for one.  A lone publisher waits for every call, and Arrow takes 28 us to prepare an event, this
module 8 us, of a publish of 370 us.

Their places are found by comparing messages that Arrow wrote, and verified on others.  Should a
version of Arrow write another header, there is no template, and Arrow's own encoder is used.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.log import events

PLAIN = (events.PLAIN, events.PLAIN | events.KEY_BIT)
"""The layouts that have a form: time, subject and value, with or without keys."""


class Single(NamedTuple):
    """An encoded event that will be a batch of its own."""

    subject: str
    key: str | None
    blob: bytes
    layout: int
    ts_us: int


def single(event: events.Event, now: int, epoch: tuple[int, ...] = ()) -> Single | None:
    """A checked event as a blob, at the time of an epoch if one is given; None if it has to be
    written by Arrow."""
    if event.headers or event.epoch is not None:
        return None
    subject, key, timestamp = event.subject, event.key, event.timestamp
    layout = PLAIN[key is not None]
    form = form_of(layout, len(epoch))
    if form is None:
        return None
    texts = [subject.encode(), bytes(event.value)]
    if key is not None:
        texts.insert(1, key.encode())
    ts_us = now if timestamp is None else events.to_us(timestamp)
    if epoch:
        layout |= events.EPOCH_BIT
    return Single(subject, key, form.message(ts_us, texts, epoch), layout, ts_us)


class Form(NamedTuple):
    """A header as a template: its bytes, and where the integers stand in it."""

    description: bytes
    rows_at: int
    nodes_at: int
    """Where each column's numbers of rows and of nulls begin."""
    buffers_at: int
    """Where each buffer's offset and length begin."""
    body_at: int

    def message(self, ts_us: int, texts: Sequence[bytes], epoch: tuple[int, ...] = ()) -> bytes:
        """The message of one row."""
        parts = len(epoch)
        description, bounds, end = _frame(self, tuple(map(len, texts)), parts)
        stamp = ts_us.to_bytes(8, "little", signed=True)
        columns = chain.from_iterable(zip(bounds, texts, strict=True))
        last = struct.pack(f"<2i{parts}q", 0, parts, *epoch) if parts else b""
        return b"".join((description, stamp, *columns, end, last))

    def describe(self, rows: int, sizes: Sequence[int], parts: int = 0) -> bytes:
        """The header for ``rows`` rows, with ``sizes`` bytes in the text columns."""
        found = bytearray(self.description)
        for at, part in zip(self[1:], _numbers(rows, sizes, parts), strict=True):
            found[at : at + len(part)] = part
        return bytes(found)


@lru_cache(maxsize=1024)
def _frame(
    form: Form, sizes: tuple[int, ...], parts: int
) -> tuple[bytes, tuple[bytes, ...], bytes]:
    """The message of one row without its times and texts; events of a program are of few sizes.

    It is the header, what stands before each text (padding of the last, and offsets), and the end.
    """
    padding = [bytes(-size % 8) for size in sizes]
    offsets = [bytes(4) + size.to_bytes(4, "little") for size in sizes]
    bounds = tuple(map(bytes.__add__, [b"", *padding], offsets))
    return form.describe(1, sizes, parts), bounds, padding[-1]


@lru_cache(maxsize=32)
def form_of(layout: int, parts: int = 0) -> Form | None:
    """The template of a layout, if it has one; with an epoch column of ``parts`` integers."""
    if layout not in PLAIN:
        return None
    # Numbers that occur nowhere else in the header, so that a search finds their places.
    rows, sizes = 77, [77 * 13, 77 * 11, 77 * 17][: _texts_in(layout)]
    message, body = _example(layout, rows, sizes, parts)
    description = message[: len(message) - len(body)]
    count, *others = _numbers(rows, sizes, parts)
    if any(description.count(part) != 1 for part in others):
        return None
    places = [description.index(part) for part in others]
    # The number of rows occurs once for the batch, and once in the list of columns.
    nodes_at, nodes = places[0], len(others[0])
    without = description[:nodes_at] + bytes(nodes) + description[nodes_at + nodes :]
    if without.count(count) != 1 or any(at % 8 for at in (without.index(count), *places)):
        return None
    form = Form(description, without.index(count), *places)
    for tried in ((rows, sizes), (1, [0] * len(sizes)), (2, list(range(1, len(sizes) + 1)))):
        message, body = _example(layout, *tried, parts)
        if message != form.describe(*tried, parts) + body:
            return None
    return form


def epoch_bounds(rows: int, parts: int) -> memoryview:
    """Where the lists of an epoch column begin, all of ``parts`` integers: its offsets."""
    found = _many_bounds(parts, max(rows, _BOUNDED_ROWS))
    return memoryview(found)[: 4 * (rows + 1)]


_BOUNDED_ROWS = 65_536


@lru_cache(maxsize=2)
def _many_bounds(parts: int, rows: int) -> bytes:
    return np.arange(0, parts * (rows + 1), parts, dtype=np.int32).tobytes()


def epoch_column(rows: int, times: tuple[int, ...] | npt.NDArray[np.int64]) -> pa.Array:
    """An epoch column: one time for all rows, or one for each."""
    if isinstance(times, tuple):
        parts = len(times)
        values = np.full(rows, times[0], np.int64) if parts == 1 else np.tile(times, rows)
    else:
        parts = times.shape[1]
        values = np.ascontiguousarray(times).reshape(-1)
    bounds = pa.py_buffer(epoch_bounds(rows, parts))
    child = events.numbers(values)
    return pa.Array.from_buffers(events.EPOCH, rows, [None, bounds], children=[child])


def with_column(
    batch: pa.RecordBatch, times: tuple[int, ...] | npt.NDArray[np.int64]
) -> pa.RecordBatch:
    """A batch without an epoch column with one."""
    layout = events.layout_of(batch.schema) | events.EPOCH_BIT
    place = (layout & (events.EPOCH_BIT - 1)).bit_count()  # columns stand in the order of bits
    arrays = batch.columns
    arrays.insert(place, epoch_column(batch.num_rows, times))
    return pa.RecordBatch.from_arrays(arrays, schema=events.schema_of(layout))


def with_epochs(
    blob: bytes,
    layout: int,
    rows: int,
    times: tuple[int, ...] | npt.NDArray[np.int64],
    order: bytes | None,
) -> bytes:
    """A message of plain events with an epoch column: one time for all rows, or one for each.

    ``times`` are those of the whole append, ``order`` the rows of this share.  Measured with four
    shares of 250 events, this takes a quarter of what Arrow takes to write the column.
    """
    parts = len(times) if isinstance(times, tuple) else times.shape[1]
    plain, form = form_of(layout), form_of(layout, parts)
    if isinstance(times, tuple):
        values = struct.pack(f"<{parts}q", *times) * rows
    elif order is None:
        values = times.tobytes()
    elif parts == 1:
        values = times.reshape(-1).take(np.frombuffer(order, np.int64)).tobytes()
    else:
        values = times[np.frombuffer(order, np.int64)].tobytes()
    bounds = epoch_bounds(rows, parts)
    if plain is None or form is None:
        batch = events.decode_blob(blob, layout)
        child = events.numbers(np.frombuffer(values, np.int64))
        places = [None, pa.py_buffer(bounds)]
        column = pa.Array.from_buffers(events.EPOCH, rows, places, children=[child])
        batch = batch.append_column(pa.field("epoch", events.EPOCH), column)
        return bytes(events.encode_blob(batch))
    head = len(plain.description)
    texts = _texts_in(layout)
    body = len(blob) - head
    buffers = blob[plain.buffers_at : plain.buffers_at + 16 * (2 + 3 * texts)]
    found = bytearray(form.description)
    for at, part in (
        (form.rows_at, struct.pack("<q", rows)),
        (form.nodes_at, _nodes(rows, texts, parts)),
        (form.buffers_at, buffers + struct.pack("<8q", *_epoch_buffers(body, rows, parts))),
        (form.body_at, struct.pack("<q", body + padded(len(bounds)) + len(values))),
    ):
        found[at : at + len(part)] = part
    return b"".join((found, memoryview(blob)[head:], bounds, bytes(-len(bounds) % 8), values))


def padded(size: int) -> int:
    """A buffer's size, padded to eight bytes."""
    return -(-size // 8) * 8


def _numbers(rows: int, sizes: Sequence[int], parts: int = 0) -> tuple[bytes, bytes, bytes, bytes]:
    """All integers of a header, in the order of the template's places."""
    buffers, at = [0, 0, 0, 8 * rows], 8 * rows
    for size in sizes:
        bounds = 4 * (rows + 1)
        buffers += (at, 0, at, bounds)
        at += padded(bounds)
        buffers += (at, size)
        at += padded(size)
    if parts:
        buffers += _epoch_buffers(at, rows, parts)
        at += padded(4 * (rows + 1)) + 8 * rows * parts
    return (
        struct.pack("<q", rows),
        _nodes(rows, len(sizes), parts),
        struct.pack(f"<{len(buffers)}q", *buffers),
        struct.pack("<q", at),
    )


def _nodes(rows: int, texts: int, parts: int) -> bytes:
    """Rows and nulls of every column; a list has its values as one more."""
    plain = struct.pack("<2q", rows, 0) * (1 + texts)
    return plain + struct.pack("<4q", rows, 0, rows * parts, 0) if parts else plain


def _epoch_buffers(at: int, rows: int, parts: int) -> tuple[int, ...]:
    """Where the buffers of an epoch column are that begins at ``at``."""
    bounds = 4 * (rows + 1)
    values_at = at + padded(bounds)
    return (at, 0, at, bounds, values_at, 0, values_at, 8 * rows * parts)


def _texts_in(layout: int) -> int:
    return 3 if layout & events.KEY_BIT else 2


def _example(layout: int, rows: int, sizes: Sequence[int], parts: int = 0) -> tuple[bytes, bytes]:
    """A message that Arrow wrote, and the body that it should have."""
    stamps = bytes(range(8)) * rows
    arrays = [pa.Array.from_buffers(events.TIMESTAMP, rows, [None, pa.py_buffer(stamps)])]
    body = [stamps]
    for field, size in zip(list(events.schema_of(layout))[1:], sizes, strict=True):
        bounds = struct.pack(f"<{rows + 1}i", *(size * row // rows for row in range(rows + 1)))
        texts = b"x" * size
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(texts)]
        arrays.append(pa.Array.from_buffers(field.type, rows, buffers))
        body += [bounds.ljust(padded(len(bounds)), b"\0"), texts.ljust(padded(size), b"\0")]
    if parts:
        layout |= events.EPOCH_BIT
        bounds = struct.pack(f"<{rows + 1}i", *range(0, parts * (rows + 1), parts))
        values = bytes(range(8)) * rows * parts
        child = pa.Array.from_buffers(pa.int64(), rows * parts, [None, pa.py_buffer(values)])
        lists = [None, pa.py_buffer(bounds)]
        arrays.append(pa.Array.from_buffers(events.EPOCH, rows, lists, children=[child]))
        body += [bounds.ljust(padded(len(bounds)), b"\0"), values]
    batch = pa.RecordBatch.from_arrays(arrays, schema=events.schema_of(layout))
    return bytes(events.encode_blob(batch)), b"".join(body)
