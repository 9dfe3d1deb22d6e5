"""An Arrow column of strings as the raw bytes and offsets that numpy can work on.

Theory of operation.  A string column is one buffer of bytes and one of offsets: row ``r`` is
``data[offsets[r]:offsets[r + 1]]``.  Everything here works on those two buffers in place, for
all rows at once; no row becomes a Python object.  Work is done in blocks of ``BLOCK_ROWS`` rows,
so that the scratch arrays of a block stay in the processor's cache.

Tokens are found through the positions of the dots.  The dots of a block, in order, fall into
runs that belong to one row each.  If all runs are equally long they are the lines of a grid;
otherwise a binary search of the row offsets finds every row's run.  From there any token of any
row is two lookups away (:class:`Tokens`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import InvalidInputError

BLOCK_ROWS = 32_768
DOT = 0x2E

Bytes: TypeAlias = npt.NDArray[np.uint8]
Index: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
StringColumn: TypeAlias = "pa.Array | pa.ChunkedArray"

_TEXT = frozenset({pa.string().id, pa.large_string().id})
_BINARY = frozenset({pa.binary().id, pa.large_binary().id})
LARGE = frozenset({pa.large_string().id, pa.large_binary().id})
NARROW = frozenset({pa.string().id, pa.binary().id})
"""Types with 32-bit offsets, the only ones that the compiled kernels take."""
_NO_BYTES: Bytes = np.empty(0, np.uint8)

# ``max`` without numpy's Python wrapper, which takes half of its time for some hundred rows.
largest = np.maximum.reduce


class Block(NamedTuple):
    """Some consecutive rows: ``data`` holds exactly their bytes, ``offsets`` has one more."""

    data: Bytes
    offsets: Index

    @property
    def starts(self) -> Index:
        return self.offsets[:-1]

    @property
    def lengths(self) -> Index:
        return self.offsets[1:] - self.offsets[:-1]


def text_array(column: StringColumn, what: str) -> pa.Array:
    """A column of strings in one piece; dictionaries and string views are decoded."""
    return _whole(column, what, "strings", _TEXT)


def text_scalar(text: str, kind: pa.DataType) -> pa.Scalar:
    """A text to compare a column with; ``pa.scalar`` loads pandas where that is installed."""
    if kind.id not in NARROW:
        return pa.scalar(text, kind)
    data = text.encode()
    ends = pa.py_buffer(np.array([0, len(data)], np.int32))
    return pa.Array.from_buffers(kind, 1, [None, ends, pa.py_buffer(data)])[0]


def mask_array(mask: Mask) -> pa.BooleanArray:
    """Booleans of numpy as those of Arrow; ``pa.array`` loads pandas where that is installed."""
    bits = pa.py_buffer(np.packbits(mask, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(mask), [None, bits])


def mask_of(array: pa.BooleanArray) -> Mask:
    """Booleans of Arrow, none null, as those of numpy; ``to_numpy`` loads pandas as well."""
    if not len(array):
        return np.empty(0, np.bool_)
    end = array.offset + len(array)
    bits = np.frombuffer(array.buffers()[1], np.uint8)
    return np.unpackbits(bits, count=end, bitorder="little")[array.offset :].view(np.bool_)


def byte_array(column: StringColumn, what: str) -> pa.Array:
    """A column of strings or bytes in one piece; dictionaries and views are decoded."""
    return _whole(column, what, "strings or bytes", _TEXT | _BINARY)


def _whole(column: StringColumn, what: str, wanted: str, kinds: frozenset[int]) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return _plain(column, what, wanted, kinds)
    chunks = [_plain(chunk, what, wanted, kinds) for chunk in column.chunks]
    if len(chunks) == 1:
        return chunks[0]
    return pa.concat_arrays(chunks) if chunks else pa.array([], pa.string())


def _plain(array: pa.Array, what: str, wanted: str, kinds: frozenset[int]) -> pa.Array:
    kind = array.type
    if kind.id in kinds:
        return array
    if pa.types.is_dictionary(kind):
        return _plain(array.dictionary_decode(), what, wanted, kinds)
    if pa.types.is_string_view(kind):
        return array.cast(pa.large_string())
    if pa.types.is_binary_view(kind) and kinds >= _BINARY:
        return array.cast(pa.large_binary())
    raise InvalidInputError(f"{what} must be a column of {wanted}, not of {kind}")


def blocks(array: pa.Array) -> Iterator[tuple[int, Block]]:
    """Cut a plain array into blocks, each with the number of its first row."""
    rows = len(array)
    if rows == 0:
        return
    _, offset_buffer, data_buffer = array.buffers()
    kind, width = (np.int64, 8) if array.type.id in LARGE else (np.int32, 4)
    first = array.offset
    for low in range(0, rows, BLOCK_ROWS):
        count = min(rows - low, BLOCK_ROWS)
        own = np.frombuffer(offset_buffer, kind, count + 1, (first + low) * width).astype(np.int64)
        base = int(own[0])
        size = int(own[-1]) - base
        if base:
            own -= base
        data = np.frombuffer(data_buffer, np.uint8, size, base) if size else _NO_BYTES
        yield low, Block(data, own)


class Tokens:
    """Where the tokens of every row of a block begin and end."""

    def __init__(self, block: Block) -> None:
        self._starts = block.offsets[:-1]
        self._ends = block.offsets[1:]
        dots = np.flatnonzero(block.data == DOT)
        self._grid = _even_grid(dots, self._starts, self._ends)
        if self._grid is not None:
            self.counts: Index = np.full(len(self._starts), self._grid.shape[1] + 1, np.int64)
            return
        runs = np.searchsorted(dots, block.offsets)
        self._run = runs[:-1]
        # One more element, so that the run of a last row without dots can be looked up too.
        self._dots = np.append(dots, len(block.data))
        self.counts = runs[1:] - runs[:-1] + 1

    def bounds(self, number: int) -> tuple[Index, Index]:
        """Start and length of the token with this 0-based number.

        The length is below 0 where a row has no such token, and 0 only for an empty one.
        """
        if self._grid is not None:
            return self._grid_bounds(self._grid, number)
        at = self._run + number
        after = self._dots.take(at, mode="clip")
        if number == 0:
            starts = self._starts
        else:
            starts = self._dots.take(at - 1, mode="clip") + 1
        # For a missing token the start is past a dot of a later row, so beyond this row's end.
        ends = np.where(self.counts > number + 1, after, self._ends)
        return starts, ends - starts

    def _grid_bounds(self, grid: Index, number: int) -> tuple[Index, Index]:
        last = grid.shape[1]
        if number > last:
            return self._starts, np.full(len(self._starts), -1, np.int64)
        starts = self._starts if number == 0 else grid[:, number - 1] + 1
        ends = self._ends if number == last else grid[:, number]
        return starts, ends - starts


def _even_grid(dots: Index, starts: Index, ends: Index) -> Index | None:
    """The dots as one line per row, if all rows have the same number of them.

    Subjects of one stream mostly have, and then the binary searches can be left out.
    """
    per_row, rest = divmod(len(dots), len(starts))
    if rest:
        return None
    grid = dots.reshape(len(starts), per_row)
    if per_row and not ((grid[:, 0] >= starts).all() and (grid[:, -1] < ends).all()):
        return None
    return grid
