"""Small appends and single events that are ready at the same time, written as one.

Each append was checked by itself.  They are routed, encoded and recorded together: one batch per
segment for all that go to a stream, which costs little more than one append alone and gives readers
larger batches.  Every caller is told its own offsets: the sort by segment is stable, so the events
of one append stay together and in order within a segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.catalog.producers import Placed
from headrace.log.append import Outcome, Write
from headrace.log.events import Event, now_us
from headrace.log.pending import Pending

Given = tuple[str, Event] | Pending
"""An event with the stream that captures it, or a plain append."""


class Joined:
    """Events and plain appends as one write."""

    def __init__(self, write: Write, given: Sequence[Given]) -> None:
        self.write = write
        self._given = given
        self._runs: list[list[int]] = []
        if len(given) == 1 and isinstance(lone := given[0], tuple):  # most often
            write.add_events(lone[0], (lone[1],), now_us())
            return
        if isinstance(first := given[0], tuple):
            name = first[0]
            events = [one[1] for one in given if isinstance(one, tuple) and one[0] == name]
            if len(events) == len(given):  # single events to one stream
                self._runs.append(list(range(len(given))))
                write.add_events(name, events, now_us())
                return
        # Appends to a stream keep their order; only neighbours with the same columns are joined.
        order = sorted(range(len(given)), key=lambda at: _kind(given[at])[0])
        for (stream, _), found in groupby(order, key=lambda at: _kind(given[at])):
            run = list(found)
            self._runs.append(run)
            singles = [one[1] for at in run if isinstance(one := given[at], tuple)]
            if singles:
                write.add_events(stream, singles, now_us())
            else:
                appends = [one for at in run if isinstance(one := given[at], Pending)]
                parts = [append.given for append in appends]
                if any(part.schema != parts[0].schema for part in parts):
                    parts = [append.batch for append in appends]  # some lack their epoch column
                whole = pa.concat_batches(parts)
                progress = appends[0].progress
                if progress is not None:
                    rest = [append.progress for append in appends[1:] if append.progress]
                    progress = progress.joined(rest)
                captured = all(append.captured for append in appends)
                write.add(stream, whole, captured=captured, progress=progress)

    def outcomes(self, outcome: Outcome) -> list[Outcome]:
        """Where the events of each are, in the order in which they were given."""
        if len(self._given) == 1:
            return [outcome]
        found: dict[int, Outcome] = {}
        spots = iter(outcome.placed)
        for run, shares in zip(self._runs, self.write.shares, strict=True):
            placed = [(next(spots), share.rows) for share in shares]
            if isinstance(self._given[run[0]], tuple):
                for spot, rows in placed:
                    name, number, start = spot.stream, spot.segment, spot.start
                    for row in range(spot.count) if rows is None else rows.tolist():
                        found[run[row]] = Outcome((Placed(name, number, start, 1),), repeat=False)
                        start += 1
            else:
                found |= self._appends(run, placed)
        return [found[at] for at in range(len(self._given))]

    def _appends(
        self, run: list[int], placed: list[tuple[Placed, npt.NDArray[np.int64] | None]]
    ) -> dict[int, Outcome]:
        """Where the rows of each append of a run are."""
        places: dict[int, list[Placed]] = {at: [] for at in run}
        ends = [0]
        for at in run:
            ends.append(ends[-1] + _rows(self._given[at]))
        for spot, rows in placed:
            # The sort was stable: the rows of one append are contiguous in a share.
            cuts = ends if rows is None else rows.searchsorted(ends).tolist()
            for at, low, high in zip(run, cuts, cuts[1:], strict=False):
                if low < high:
                    start = spot.start + low
                    places[at].append(Placed(spot.stream, spot.segment, start, high - low))
        return {at: Outcome(tuple(each), repeat=False) for at, each in places.items()}


def _kind(given: Given) -> tuple[str, int]:
    """The stream and the columns; what has both in common can become one batch."""
    return (given[0], -1) if isinstance(given, tuple) else (given.stream, given.layout)


def _rows(given: Given) -> int:
    return 1 if isinstance(given, tuple) else given.rows
