"""Reading the pieces of a round from a source's segment.

A piece may be a single event: lanes lie in each other where several regions publish, and where a
filter keeps events in their region.  So pieces that lie near each other are read in one go, and
each load is decoded once, however many pieces it holds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

import pyarrow as pa

from headrace.catalog import batches
from headrace.catalog.streams import Segment
from headrace.errors import DamagedBatchError, TrimmedError
from headrace.log import events
from headrace.log.cursor import Cursor
from headrace.log.log import Log
from headrace.log.shelf import join
from headrace.regions.runtime.rounds import LanePiece, SegmentCopy

NEAR = 4096
"""Pieces that are fewer offsets apart are read in one go; what lies between is decoded in vain."""
JOINED = 512
"""So many parts are copied to one, so that they do not keep the loads that they are slices of."""


class Gathered:
    """Parts of one lane, to be one batch."""

    def __init__(self) -> None:
        self._parts: list[pa.RecordBatch] = []
        self._fresh: list[pa.RecordBatch] = []
        self.rows = 0
        self.size_bytes = 0

    def add(self, part: pa.RecordBatch) -> None:
        self._fresh.append(part)
        self.rows += part.num_rows
        self.size_bytes += part.nbytes
        if len(self._fresh) >= JOINED:
            self._parts.append(join(self._fresh))
            self._fresh = []

    def taken(self) -> pa.RecordBatch:
        """All of it; nothing is held any more."""
        parts = [*self._parts, *self._fresh]
        self._parts, self._fresh, self.rows, self.size_bytes = [], [], 0, 0
        return join(parts)


class Reading:
    """The pieces of one segment, read in the order in which they stand in it."""

    def __init__(self, source_log: Log, copy: SegmentCopy, *, files: bool) -> None:
        """``files``: whether files that lie within a piece are told, and not decoded."""
        self._log = source_log
        self._copy = copy
        self._upto = _near_ends(copy.pieces)
        self._files = self._whole_files() if files and source_log.store is not None else []
        self._cursor: Cursor | None = None
        self._load: pa.RecordBatch | None = None
        self._first = 0
        """The offset of the load's first row."""

    def parts(self, piece: LanePiece) -> Iterator[pa.RecordBatch | batches.Piece]:
        """The events of a piece: whole files as they stand, all else decoded."""
        at = piece.start
        for file in self._files[bisect_left(self._files, at, key=_start) :]:
            if file.end > piece.end:
                break
            yield from self.decoded(at, file.start)
            yield file
            at = file.end
        yield from self.decoded(at, piece.end)

    def decoded(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Offsets ``start`` to ``end`` - 1."""
        at = start
        while at < end:
            load, skip = self._load, at - self._first
            if load is None or not 0 <= skip < load.num_rows:
                self._read(at, end)
                continue
            part = load.slice(skip, end - at)
            at += part.num_rows
            yield part

    def _read(self, at: int, end: int) -> None:
        """The load that begins at an offset, or a little before it."""
        cursor = self._cursor
        if cursor is None or not cursor.position <= at <= cursor.position + NEAR:
            segment = Segment(
                self._copy.place.source_id, self._copy.number, 0, 0, 0, 0, 0, 0, 0, 0, None
            )
            log, stream = self._log, self._copy.stream
            cursor = self._cursor = Cursor(log.catalog, log.store, stream, segment, at)
        ends = self._upto
        upto = max(end, ends[min(bisect_left(ends, end), len(ends) - 1)])
        ahead = bisect_left(self._files, end, key=_start)
        if ahead < len(self._files):
            upto = max(end, min(upto, self._files[ahead].start))
        before = cursor.position
        try:
            found = cursor.next(upto)
        except (DamagedBatchError, TrimmedError):
            if before == at:
                raise
            self._cursor = None  # it lies between the pieces: the next load begins behind it
            return
        if found is not None and found.num_rows:
            self._first = cursor.position - found.num_rows
            self._load = found.select([name for name in found.schema.names if name != "offset"])

    def _whole_files(self) -> list[batches.Piece]:
        """The files that lie within a piece; the pieces of events that are one by one have none."""
        found: list[batches.Piece] = []
        source_id, catalog = self._copy.place.source_id, self._log.catalog
        wanted = [piece for piece in self._copy.pieces if piece.lane]
        starts = [piece.start for piece in wanted]
        at, end = (starts[0], wanted[-1].end) if wanted else (0, 0)
        while at < end:
            some = catalog.read(lambda tx, at=at: batches.pieces(tx, source_id, at, 500))  # type: ignore[misc]
            if not some:
                break
            for each in some:
                if each.path is None or each.layout & events.MARKER_BIT:
                    continue
                within = bisect_left(starts, each.start + 1) - 1
                if within >= 0 and each.end <= wanted[within].end:
                    found.append(each)
            at = some[-1].end
        return found


def _start(file: batches.Piece) -> int:
    return file.start


def _near_ends(pieces: Sequence[LanePiece]) -> list[int]:
    """Where pieces end that have no other near behind them, ascending."""
    ends = []
    for at, piece in enumerate(pieces):
        if at + 1 == len(pieces) or pieces[at + 1].start > piece.end + NEAR:
            ends.append(piece.end)
    return ends
