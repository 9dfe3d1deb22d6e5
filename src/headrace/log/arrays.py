"""Arrow arrays from lists of plain values.

``pa.array`` imports pandas where that is installed, to see whether it was given one of its objects:
0.35 s of CPU and 40 MB for the first list that a program appends.  Buffers need none of it.  They
take about as long (90 against 70 us for 1,000 texts), and longer where some are null (220 against
45 us).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from typing import cast

import numpy as np
import pyarrow as pa

from headrace.errors import AppendTooLargeError
from headrace.log import limits


def integers(values: Sequence[int], type_: pa.DataType) -> pa.Array:
    """Whole numbers, or microseconds; none is missing."""
    data = pa.py_buffer(np.array(values, np.int64))
    return pa.Array.from_buffers(type_, len(values), [None, data])


def texts(values: Sequence[str | None], type_: pa.DataType) -> pa.Array:
    """Texts, which can be encoded; one that is ``None`` is null."""
    valid, given = None, cast("Sequence[str]", values)
    try:
        joined = "".join(given)
    except TypeError:
        valid, given = _validity(values), [value or "" for value in values]
        joined = "".join(given)
    if joined.isascii():
        return _bytes(given, joined.encode(), valid, type_)
    encoded = [value.encode() for value in given]
    return _bytes(encoded, b"".join(encoded), valid, type_)


def binaries(values: Sequence[bytes | None], type_: pa.DataType) -> pa.Array:
    """Values in bytes; one that is ``None`` is null."""
    valid, given = None, cast("Sequence[bytes]", values)
    try:
        joined = b"".join(given)
    except TypeError:
        valid, given = _validity(values), [value or b"" for value in values]
        joined = b"".join(given)
    return _bytes(given, joined, valid, type_)


def lists(counts: Sequence[int | None], items: pa.Array, type_: pa.DataType) -> pa.Array:
    """Lists that have so many of the items each; one that is ``None`` is null."""
    offsets = _offsets((count or 0 for count in counts), len(counts))
    buffers = [_validity(counts), offsets]
    return pa.Array.from_buffers(type_, len(counts), buffers, children=[items])


def too_large() -> AppendTooLargeError:
    return AppendTooLargeError(
        f"too much for one append (at most {limits.APPEND_ROWS_MAX} events and "
        f"{limits.APPEND_BYTES_MAX} bytes); append in parts"
    )


def _bytes(
    values: Sequence[Sized], data: bytes, valid: pa.Buffer | None, type_: pa.DataType
) -> pa.Array:
    if len(data) > limits.APPEND_BYTES_MAX:  # offsets have 31 bits
        raise too_large()
    buffers = [valid, _offsets(map(len, values), len(values)), pa.py_buffer(data)]
    return pa.Array.from_buffers(type_, len(values), buffers)


def _offsets(sizes: Iterable[int], count: int) -> pa.Buffer:
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(np.fromiter(sizes, np.int32, count), out=offsets[1:])
    return pa.py_buffer(offsets)


def _validity(values: Sequence[object]) -> pa.Buffer | None:
    valid = np.fromiter((value is not None for value in values), np.bool_, len(values))
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
