"""A blob of events decoded in plain Python.

To show a few events, loading Arrow and numpy takes longer than all the rest of a command.  A blob
is one Arrow IPC record batch message without its schema, which the layout gives: a header (a
flatbuffer) that names the columns' rows, nulls and buffers, and a body with those buffers, each
padded to eight bytes.  That is little enough to be read with ``struct``.

Everything is checked that a wrong number could reach beyond the blob by; what does not fit is a
``ValueError``, as it is where Arrow decodes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

COLUMNS = ("timestamp", "subject", "key", "value", "headers", "epoch", "origin", "marker")
"""Those of :data:`headrace.log.events.COLUMNS`: bit i of a layout is column i."""

RECORD_BATCH = 3
"""The type of the header of a record batch, in Arrow's ``MessageHeader``."""

T = TypeVar("T")
_SHORT, _INT, _LONG = struct.Struct("<H"), struct.Struct("<i"), struct.Struct("<q")
_PREFIX = struct.Struct("<Ii")


class Row(NamedTuple):
    """One event as it is stored, with its place."""

    segment: int | None
    offset: int | None
    """Null, as the segment, where the event is not stored."""
    timestamp_us: int
    subject: str
    key: str | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...] | None
    epoch: tuple[int, ...] | None
    origin: tuple[str, int] | None
    """Region and sequence."""
    marker: bytes | None = None


def rows_of(data: bytes, layout: int, segment: int, start: int, end: int) -> list[Row]:
    """The events of a blob, which has the offsets from ``start`` to ``end`` - 1."""
    try:
        message = _Message(data)
        if message.rows != end - start:
            raise ValueError(f"it holds {message.rows} events")
        columns = [
            _READERS[name](message) if layout >> bit & 1 else [None] * message.rows
            for bit, name in enumerate(COLUMNS)
        ]
    except (struct.error, IndexError, StopIteration) as error:
        raise ValueError(f"its header does not fit: {error or 'it is cut off'}") from None
    if any(len(column) != message.rows for column in columns):
        raise ValueError("its columns differ in length")
    return list(map(Row, [segment] * message.rows, range(start, end), *columns))


class _Message:
    """The header of a blob, and its body; columns take nodes and buffers in their order."""

    def __init__(self, data: bytes) -> None:
        mark, size = _PREFIX.unpack_from(data)
        if mark != 0xFFFFFFFF or not 0 < size <= len(data) - 8:
            raise ValueError("it does not begin as a message")
        self._body = data[8 + size :]
        self.rows, nodes, buffers = _described(data[8 : 8 + size])
        self._nodes, self._buffers = iter(nodes), iter(buffers)

    def node(self) -> tuple[int, int]:
        """Rows and nulls of the next column."""
        rows, nulls = next(self._nodes)
        if not 0 <= rows <= 8 * len(self._body) + self.rows:
            raise ValueError("a column has more rows than it has room for")
        return rows, nulls

    def buffer(self) -> bytes:
        at, size = next(self._buffers)
        if at < 0 or size < 0 or at + size > len(self._body):
            raise ValueError("a buffer lies outside of it")
        return self._body[at : at + size]

    def column(self) -> tuple[int, bytes]:
        """Rows of the next column, and a bit for each that is not null; no bits: none is."""
        rows, nulls = self.node()
        bits = self.buffer()
        return rows, bits if nulls else b""

    def numbers(self, count: int, kind: str) -> tuple[int, ...]:
        data = self.buffer()
        if not data and count <= 1:  # Arrow may leave out the bounds of nothing
            return (0,) * count
        return struct.unpack_from(f"<{count}{kind}", data)

    def bounds(self, rows: int) -> Iterator[tuple[int, int]]:
        """Where each row's part of a list begins and ends."""
        return pairwise(self.numbers(rows + 1, "i"))


Pairs = tuple[tuple[int, int], ...]


@lru_cache(maxsize=1024)
def _described(header: bytes) -> tuple[int, Pairs, Pairs]:
    """Rows, nodes and buffers; small blobs of a stream often have the same header."""
    message = _pointer(header, 0)
    kind = _field(header, message, 1)
    if not kind or header[kind] != RECORD_BATCH:
        raise ValueError("it is no record batch")
    batch = _pointer(header, _field(header, message, 2))
    if _field(header, batch, 3):
        raise ValueError("it is compressed")
    length = _field(header, batch, 0)
    rows: int = _LONG.unpack_from(header, length)[0] if length else 0
    nodes, buffers = _field(header, batch, 1), _field(header, batch, 2)
    return rows, _pairs(header, nodes), _pairs(header, buffers)


def _pointer(data: bytes, at: int) -> int:
    found: int = at + _INT.unpack_from(data, at)[0]
    if not 0 < found < len(data):
        raise ValueError("its header points outside of it")
    return found


def _field(data: bytes, table: int, number: int) -> int:
    """Where a field of a flatbuffer's table is; 0 if it has its default."""
    names = table - _INT.unpack_from(data, table)[0]
    if names < 0:
        raise ValueError("its header points outside of it")
    (size,) = _SHORT.unpack_from(data, names)
    at = 4 + 2 * number
    if at + 2 > size:
        return 0
    (found,) = _SHORT.unpack_from(data, names + at)
    return table + found if found else 0


def _pairs(data: bytes, field: int) -> Pairs:
    """A vector of structs of two longs."""
    if not field:
        return ()
    at = _pointer(data, field)
    (count,) = _INT.unpack_from(data, at)
    if not 0 <= count <= len(data) // 16:
        raise ValueError("its header lists more than it has room for")
    values = struct.unpack_from(f"<{2 * count}q", data, at + 4)
    return tuple(zip(values[::2], values[1::2], strict=True))


# --- columns -------------------------------------------------------------------------------


def _nulled(found: Sequence[T], bits: bytes) -> Sequence[T | None]:
    if not bits:
        return found
    return [each if bits[at >> 3] >> (at & 7) & 1 else None for at, each in enumerate(found)]


def _longs(message: _Message) -> Sequence[int | None]:
    rows, bits = message.column()
    return _nulled(message.numbers(rows, "q"), bits)


def _binary(message: _Message) -> Sequence[bytes | None]:
    rows, bits = message.column()
    bounds = message.bounds(rows)
    data = message.buffer()
    return _nulled(_cut(data, bounds), bits)


def _texts(message: _Message) -> Sequence[str | None]:
    rows, bits = message.column()
    bounds = message.bounds(rows)
    data = message.buffer()
    if data.isascii():
        return _nulled(_cut(data.decode(), bounds), bits)
    return _nulled([part.decode() for part in _cut(data, bounds)], bits)


def _cut(data: Any, bounds: Iterator[tuple[int, int]]) -> list[Any]:
    found, size = [], len(data)
    for begin, end in bounds:
        if not 0 <= begin <= end <= size:
            raise ValueError("a value lies outside of its column")
        found.append(data[begin:end])
    return found


def _headers(message: _Message) -> Sequence[tuple[tuple[str, bytes], ...] | None]:
    rows, bits = message.column()
    bounds = message.bounds(rows)
    message.column()  # the pairs, none of which is null
    pairs = list(zip(_texts(message), _binary(message), strict=True))
    return _nulled([tuple(part) for part in _cut(pairs, bounds)], bits)


def _epochs(message: _Message) -> Sequence[tuple[int, ...] | None]:
    rows, bits = message.column()
    bounds = message.bounds(rows)
    return _nulled([tuple(part) for part in _cut(_longs(message), bounds)], bits)


def _origins(message: _Message) -> Sequence[tuple[str, int] | None]:
    _, bits = message.column()
    pairs: list[Any] = list(zip(_texts(message), _longs(message), strict=True))
    return _nulled(pairs, bits)


_READERS: dict[str, Callable[[_Message], Sequence[Any]]] = {
    "timestamp": _longs,
    "subject": _texts,
    "key": _texts,
    "value": _binary,
    "headers": _headers,
    "epoch": _epochs,
    "origin": _origins,
    "marker": _binary,
}
