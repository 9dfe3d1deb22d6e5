"""Small appends that are ready at the same time, written as one.

Each is checked by itself.  Routed, encoded and recorded they are together: one batch per segment
for all appends to a stream, which costs little more than for one of them.  Whoever reads finds
larger batches.  Every append is told its own places; its events of one segment stand together
and in its order, since rows are sorted by segment alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import pyarrow as pa

from headrace.catalog.producers import Placed
from headrace.log import limits
from headrace.log.append import Outcome, Pending, Write


class Joined:
    """Writes of one plain append each, as one write."""

    def __init__(self, writes: Sequence[Write]) -> None:
        self._writes = writes
        self._runs: list[list[int]] = []
        if len(writes) == 1:
            self.write = writes[0]
            return
        self.write = writes[0].empty()
        self._appends = [write.plain for write in writes]
        # Appends to a stream keep their order; only neighbours with the same columns are joined.
        order = sorted(range(len(writes)), key=lambda at: self._appends[at].stream)
        for (stream, _), found in groupby(order, key=lambda at: _kind(self._appends[at])):
            run = list(found)
            self._runs.append(run)
            whole = pa.concat_batches([self._appends[at].batch for at in run])
            captured = all(self._appends[at].captured for at in run)
            self.write.add(stream, whole, captured=captured)

    def placed(self, outcome: Outcome) -> list[tuple[Placed, ...]]:
        """Where the events of every write are, in the order of the writes."""
        if len(self._writes) == 1:
            return [outcome.placed]
        places: list[list[Placed]] = [[] for _ in self._writes]
        spots = iter(outcome.placed)
        for run, shares in zip(self._runs, self.write.shares, strict=True):
            ends = [0]
            for at in run:
                ends.append(ends[-1] + self._appends[at].rows)
            for share in shares:
                spot = next(spots)
                # The rows of a share are in their old order: those of one append lie together.
                rows = share.rows
                cuts = ends if rows is None else rows.searchsorted(ends).tolist()
                for at, low, high in zip(run, cuts, cuts[1:], strict=False):
                    if low < high:
                        start = spot.start + low
                        places[at].append(Placed(spot.stream, spot.segment, start, high - low))
        return [tuple(found) for found in places]


def _kind(append: Pending) -> tuple[str, int]:
    """What can be one batch: the same columns for the same stream."""
    return append.stream, append.layout


def join(writes: Sequence[Write]) -> Iterator[Sequence[Write]]:
    """Which writes to join, so that every segment's share is small enough for the catalog."""
    first = size = 0
    for at, write in enumerate(writes):
        if at > first and size + write.plain.size_bytes > limits.INLINE_BYTES:
            yield writes[first:at]
            first, size = at, 0
        size += write.plain.size_bytes
    if writes:
        yield writes[first:]
