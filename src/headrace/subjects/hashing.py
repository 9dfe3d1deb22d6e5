"""Partition numbers and key hashes of whole Arrow columns; ``hashes`` has them one at a time.

Theory of operation.  Both start from FNV-1a with 32 bits over UTF-8 bytes.

* A **partition number** is that hash over the chosen wildcard tokens, joined without a separator,
  modulo the number of partitions.  It is what a NATS server computes, so data that was
  partitioned there keeps its place.
* A **key hash** places an event in a segment's range of hashes.  The high bits of FNV-1a are
  poor on short keys, and ranges are cut by the high bits; so a finaliser (the last step of
  MurmurHash3 for 32 bits) follows, which spreads every bit over all others.

FNV-1a is a chain over the bytes of one text, so a column is hashed a byte *position* at a time:
the first byte of all rows, then the second, and so on.  Rows are ordered by length first (a
radix sort of 16-bit numbers, next to free), so the rows that still have a byte at some position
are a suffix of the arrays, and no masks are needed.  When only a few rows are left (very long
ones, or a small column) plain Python is quicker and finishes them.

Where the compiled kernels are built they do this instead, a row at a time: 20 us for 1,000 subjects
against 105 us by numpy.  Tried and taken out: further numpy variants for columns of some hundred
rows (bytes widened once, no sorting of rows of about one length).  They saved a tenth of numpy's
time, which only machines without a compiler would notice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace import compiled
from headrace.errors import InvalidInputError
from headrace.subjects.columns import (
    DOT,
    NARROW,
    Block,
    Bytes,
    Index,
    Mask,
    StringColumn,
    Tokens,
    blocks,
    byte_array,
    largest,
    mask_of,
    text_array,
)
from headrace.subjects.hashes import (
    FNV_BASIS,
    FNV_PRIME,
    MIX_1,
    MIX_2,
    check_key_tokens,
    fnv1a,
    mismatch,
    route_hash,
    wildcard_places,
)
from headrace.subjects.matching import match_array, match_block

Hashes: TypeAlias = npt.NDArray[np.uint32]

# Zero-dimensional arrays: numpy takes them a third quicker than its own scalars, and the
# difference counts in columns of some hundred rows.
_PRIME = np.array(FNV_PRIME, np.uint32)
_FACTOR_1 = np.array(MIX_1, np.uint32)
_FACTOR_2 = np.array(MIX_2, np.uint32)
_SHIFT_13 = np.array(13, np.uint32)
_SHIFT_16 = np.array(16, np.uint32)

# Below this many rows a numpy pass per byte position costs more than a Python loop per byte.
_FEW_ROWS = 24
_RADIX_LENGTH_MAX = 2**16 - 1


# --- columns -------------------------------------------------------------------------------


def key_hash_array(array: StringColumn) -> Hashes:
    """The key hash of every row of a column of strings or bytes that has no nulls."""
    return _hash_whole_rows(byte_array(array, "keys"), "key", mixed=True)


def route_hash_array(
    keys: StringColumn | None, subjects: StringColumn, key_tokens: Sequence[int] = ()
) -> Hashes:
    """The key hash of every event: of its key where there is one, else as :func:`route_hash`."""
    return _route_array(keys, subjects, key_tokens, mixed=True)


def route_partition_array(
    keys: StringColumn | None, subjects: StringColumn, key_tokens: Sequence[int], partitions: int
) -> npt.NDArray[np.int64]:
    """The partition of every event, as :func:`route_partition`."""
    return _modulo(_route_array(keys, subjects, key_tokens, mixed=False), partitions)


def partition_array(
    subjects: StringColumn, filter: str, wildcards: Sequence[int], partitions: int
) -> npt.NDArray[np.int64]:
    """The partition number of every row; all must pass the filter, as for :func:`partition`."""
    places = wildcard_places(filter, wildcards, partitions)
    array = text_array(subjects, "subjects")
    _refuse_nulls(array, "subject")

    def refuse(passed: Mask, low: int) -> None:
        if not passed.all():
            row = low + int(passed.argmin())
            raise mismatch(array[row].as_py(), filter, row)

    if not places:
        refuse(mask_of(match_array(filter, array)), 0)
        return _modulo(_hash_whole_rows(array, "subject", mixed=False), partitions)
    wanted = filter.split(".")

    def hash_tokens(state: Hashes, block: Block, low: int) -> None:
        tokens = Tokens(block)
        refuse(match_block(wanted, block, tokens), low)
        for place in places:
            _fnv1a_rows(state, block.data, *tokens.bounds(place))

    return _modulo(_hash_blocks(array, hash_tokens, mixed=False), partitions)


def _modulo(hashes: Hashes, partitions: int) -> npt.NDArray[np.int64]:
    # numpy vectorises division by a scalar (SIMD), but not the remainder.
    divisor = np.uint32(partitions)
    return (hashes - hashes // divisor * divisor).astype(np.int64)


def _route_array(
    keys: StringColumn | None, subjects: StringColumn, key_tokens: Sequence[int], *, mixed: bool
) -> Hashes:
    check_key_tokens(key_tokens)
    if keys is not None and len(keys) != len(subjects):
        raise InvalidInputError(
            f"{len(keys)} keys for {len(subjects)} subjects: one for each is needed"
        )
    subjects = text_array(subjects, "subjects")
    if keys is None or keys.null_count == len(keys):
        return _hash_subjects(subjects, key_tokens, mixed)
    keys = byte_array(keys, "keys")
    if not keys.null_count:
        return _hash_whole_rows(keys, "key", mixed=mixed)
    absent = keys.is_null()
    without_key = mask_of(absent)
    out = np.empty(len(keys), np.uint32)
    out[~without_key] = _hash_whole_rows(keys.drop_null(), "key", mixed=mixed)
    out[without_key] = _hash_subjects(subjects.filter(absent), key_tokens, mixed)
    return out


def _hash_subjects(subjects: pa.Array, key_tokens: Sequence[int], mixed: bool) -> Hashes:
    if not key_tokens:
        return _hash_whole_rows(subjects, "subject", mixed=mixed)
    _refuse_nulls(subjects, "subject")
    if mixed and len(subjects) <= _FEW_ROWS:
        hashes = [route_hash(None, row.as_py(), key_tokens) for row in subjects]
        return np.array(hashes, np.uint32)

    def hash_tokens(state: Hashes, block: Block, _: int) -> None:
        _hash_joined_tokens(state, block, key_tokens, separated=mixed)

    return _hash_blocks(subjects, hash_tokens, mixed=mixed)


def _hash_joined_tokens(
    state: Hashes, block: Block, key_tokens: Sequence[int], *, separated: bool
) -> None:
    tokens = Tokens(block)
    begun = np.zeros(len(state), np.bool_)
    for number in key_tokens:
        starts, lengths = tokens.bounds(number - 1)
        present = lengths >= 0
        joined = begun & present
        if separated and joined.any():
            with_dot = (state ^ np.uint32(DOT)) * _PRIME
            np.copyto(state, with_dot, where=joined)
        _fnv1a_rows(state, block.data, starts, np.maximum(lengths, 0))
        begun |= present
    if not begun.all():
        whole = np.where(begun, 0, block.lengths)
        _fnv1a_rows(state, block.data, block.starts, whole)


def _hash_whole_rows(array: pa.Array, what: str, *, mixed: bool) -> Hashes:
    _refuse_nulls(array, what)
    kernels = compiled.kernels
    if kernels is not None and array.type.id in NARROW:
        out = np.empty(len(array), np.uint32)
        if kernels.hash_into(array, out, mixed):
            return out

    def hash_rows(state: Hashes, block: Block, _: int) -> None:
        _fnv1a_rows(state, block.data, block.starts, block.lengths)

    return _hash_blocks(array, hash_rows, mixed=mixed)


def _hash_blocks(
    array: pa.Array, hash_block: Callable[[Hashes, Block, int], None], *, mixed: bool
) -> Hashes:
    """What ``hash_block(state, block, first row)`` makes of every block, finished if ``mixed``."""
    out = np.full(len(array), FNV_BASIS, np.uint32)
    for low, block in blocks(array):
        state = out[low : low + len(block.starts)]
        hash_block(state, block, low)
        if mixed:
            _mix_rows(state)
    return out


def _fnv1a_rows(state: Hashes, data: Bytes, starts: Index, lengths: Index) -> None:
    """Carry every row's state over ``data[start : start + length]`` of that row, in place."""
    if len(state) <= _FEW_ROWS:
        _fnv1a_few(state, data, starts, lengths, 0)
        return
    short = int(largest(lengths)) <= _RADIX_LENGTH_MAX
    keys = lengths.astype(np.uint16) if short else lengths
    order = keys.argsort(kind="stable")
    ascending = keys.take(order)
    starts = starts.take(order)
    ordered = state.take(order)
    # Up to here more than a few rows still have a byte at every position.
    common = int(ascending[-_FEW_ROWS - 1])
    firsts = ascending.searchsorted(np.arange(common, dtype=ascending.dtype), "right").tolist()
    _fnv1a_positions(ordered, data, starts, firsts)
    if common < ascending[-1]:
        few = slice(-_FEW_ROWS, None)
        _fnv1a_few(ordered[few], data, starts[few], ascending[few], common)
    state[order] = ordered


def _fnv1a_positions(state: Hashes, data: Bytes, starts: Index, firsts: list[int]) -> None:
    """One step per byte position, for the rows from the first that is long enough on."""
    taken = np.empty(len(state), data.dtype)
    for place, first in enumerate(firsts):
        live = state[first:]
        unit = taken[first:]
        # The window slides so that the starts need not be raised at every position.
        data[place:].take(starts[first:], None, unit, "clip")
        np.bitwise_xor(live, unit, live)
        np.multiply(live, _PRIME, live)


def _fnv1a_few(
    state: Hashes, data: Bytes, starts: Index, lengths: npt.NDArray[np.integer], done: int
) -> None:
    """Finish a few rows whose first ``done`` bytes are in their state already."""
    for row, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        if length > done:
            state[row] = fnv1a(data[start + done : start + length].tobytes(), int(state[row]))


def _mix_rows(state: Hashes) -> None:
    state ^= state >> _SHIFT_16
    state *= _FACTOR_1
    state ^= state >> _SHIFT_13
    state *= _FACTOR_2
    state ^= state >> _SHIFT_16


def _refuse_nulls(array: pa.Array, what: str) -> None:
    if array.null_count:
        row = array.is_null().index(True).as_py()
        raise InvalidInputError(f"row {row} has no {what}: null cannot be hashed")
