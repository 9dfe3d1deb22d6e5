"""Between the rows of a work queue and the events of the source that they are.

For groups that are replicated: see :mod:`headrace.catalog.queue_places`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from headrace.catalog.queue_places import QueuedSpan, SourceSpan
from headrace.groups.progress import AckedRanges

Offsets = npt.NDArray[np.int64]

CHUNK_ROWS = 65_536
"""A span holds at most so many rows, since it is read and written as a whole."""
_LEVEL = 1


def encode(offsets: Offsets) -> bytes:
    """Ascending offsets, as the first one and steps, packed: one or two bytes for each."""
    return zlib.compress(np.diff(offsets, prepend=0).astype("<i8").tobytes(), _LEVEL)


def decode(data: bytes) -> Offsets:
    """The inverse of :func:`encode`."""
    steps = np.frombuffer(zlib.decompress(data), "<i8")
    found: Offsets = np.cumsum(steps, dtype=np.int64)
    return found


def spans(source_ids: Offsets, offsets: Offsets) -> tuple[SourceSpan, ...]:
    """Where the rows of a batch come from, as it is recorded."""
    found = []
    if len(offsets):
        # A span ends with its segment; and where offsets fall, which a span cannot hold.
        ends = np.flatnonzero((np.diff(source_ids) != 0) | (np.diff(offsets) <= 0)) + 1
        for lo, hi in zip([0, *ends.tolist()], [*ends.tolist(), len(offsets)], strict=True):
            for at in range(lo, hi, CHUNK_ROWS):
                part = offsets[at : min(hi, at + CHUNK_ROWS)]
                first = int(part[0])
                found.append(SourceSpan(int(source_ids[at]), len(part), first, encode(part)))
    return tuple(found)


def acked_in_source(
    queued: Iterable[QueuedSpan], acked: AckedRanges, into: Mapping[int, AckedRanges]
) -> None:
    """Ack, by segment of the source, the events whose rows are acked in a segment of the queue."""
    for span in queued:
        known = into.get(span.source_id)
        if known is None:
            continue
        rows = np.arange(span.start, span.end, dtype=np.int64)
        known.ack_many(decode(span.places)[acked.contains_many(rows)])


def waiting(queued: Iterable[QueuedSpan], acked: AckedRanges) -> dict[int, list[Offsets]]:
    """The offsets in the source, by its segments, of rows in a queue that are not acked."""
    found: dict[int, list[Offsets]] = {}
    for span in queued:
        rows = np.arange(span.start, span.end, dtype=np.int64)
        left = decode(span.places)[~acked.contains_many(rows)]
        if len(left):
            found.setdefault(span.source_id, []).append(left)
    return found


def all_below(floor: int, but: Iterable[Offsets]) -> AckedRanges:
    """Everything below an offset is acked, but for some.

    >>> list(all_below(9, [np.array([2, 5])]).between(0, 9))
    [(0, 2), (3, 5), (6, 9)]
    """
    parts = [part[part < floor] for part in but]
    left = np.unique(np.concatenate([np.array([-1, floor], dtype=np.int64), *parts]))
    los, his = left[:-1] + 1, left[1:]
    some = los < his
    found = AckedRanges()
    found.ack_ranges(los[some], his[some])
    return found


def left_out(queued: Iterable[SourceSpan], source_id: int, start: int, end: int) -> AckedRanges:
    """The offsets of a part of the source that did not get into the queue: nobody waits for them.

    They passed no filter, are acked already, or are no events.
    """
    parts = [decode(span.places) for span in queued if span.source_id == source_id]
    taken = np.sort(np.concatenate([np.array([start - 1, end], dtype=np.int64), *parts]))
    los, his = taken[:-1] + 1, taken[1:]
    some = los < his
    found = AckedRanges()
    found.ack_ranges(los[some], his[some])
    return found
