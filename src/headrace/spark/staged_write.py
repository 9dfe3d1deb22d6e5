"""The commit of what tasks staged: one transaction on the driver, all or nothing.

The files and the rows of all tasks are placed at the heads of their segments, and (producer,
sequence) is recorded with them, which makes it idempotent: a batch that comes again finds its
record and writes nothing.  The record holds a digest of the rows, independent of their order, so
that a repeat with other rows is noticed.

Files for a segment that was sealed meanwhile are read and staged again for its successors.  So are
old files, because a sweep removes unnamed files that are older than any append may be; and files of
a stream that was linked by a filter, or no longer is, since it decides what goes to other regions.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import zip_longest

import msgspec

from headrace.catalog import Tx, batches, producers, streams
from headrace.catalog.batches import NewBatch
from headrace.catalog.producers import Placed
from headrace.errors import (
    AppendTooLargeError,
    StagedFileLostError,
    UnknownStreamError,
)
from headrace.log import files, limits
from headrace.log.append import Write
from headrace.log.log import Log
from headrace.log.placing import TOGETHER_MAX, Stale
from headrace.log.routing import Route
from headrace.spark.epochs.publishing import EpochCommitPart
from headrace.spark.group_sink import BatchCount
from headrace.spark.staging import (
    DIGESTS,
    Part,
    StagedFile,
    Stager,
    join,
    judged_by,
    remove,
    remove_unnamed,
    unpack,
    without_empty_columns,
)

FRESH_S = limits.APPEND_DEADLINE_S / 2
"""Staged files older than this are staged again; half, because clocks of machines differ."""
_DIGEST = "digest"


class Committed(msgspec.Struct, frozen=True):
    """Where the rows are; of a ``repeat`` where they have been, and the digest they had then."""

    placed: tuple[Placed, ...]
    digest: int
    repeat: bool

    @property
    def count(self) -> int:
        return sum(spot.count for spot in self.placed)


class StagedWrite:
    """What all tasks staged, committed once under (producer, sequence)."""

    def __init__(
        self,
        log: Log,
        parts: Sequence[Part],
        producer: str,
        sequence: int,
        count: BatchCount | None = None,
        epochs: EpochCommitPart | None = None,
    ) -> None:
        self._log = log
        self._batch = count
        self._epochs = epochs
        self._producer = producer
        self._sequence = sequence
        self.count = sum(part.count for part in parts)
        self.digest = sum(part.digest for part in parts) % DIGESTS
        self._ids = {part.stream: part.stream_id for part in parts}
        for part in parts:
            if part.stream_id != self._ids[part.stream]:
                raise _made_anew(part.stream)
        self._files = {
            name: [file for part in parts if part.stream == name for file in part.files]
            for name in self._ids
        }
        self._rows = {
            name: [b for part in parts if part.stream == name for b in unpack(part.rows)]
            for name in self._ids
        }
        self._numbers: dict[str, dict[int, int]] = {}
        self._own: set[str] = set()
        self._write = Write(log.routes, log.store, log.prefix)
        for name, held in self._rows.items():
            if not held:
                continue
            rows = without_empty_columns(join(held))
            if rows.nbytes > limits.APPEND_BYTES_MAX:
                raise AppendTooLargeError(
                    f"the tasks return {rows.nbytes} bytes for stream {name!r}, more than the "
                    f"{limits.APPEND_BYTES_MAX} that one commit takes; coalesce the data frame "
                    "into fewer tasks"
                )
            own = epochs if epochs is not None and self._ids[name] == epochs.stream_id else None
            if own is not None:
                own.take_rows(rows)
            self._write.add(name, rows, captured=True, progress=own)

    def commit(self) -> Committed:
        """Append everything, or find that it was appended before; durable when it returns."""
        for name in self._ids:
            self._log.routes.refresh(name)
        outcome = self._log.commit(self)
        if outcome.repeat:
            self._remove_staged()
        return outcome

    def saying(self) -> None:
        """It checks more than segments, so the transaction has to run."""

    def again(self, stale: Stale) -> None:
        """Forget what was prepared for a stream that was scaled."""
        self._write.again(stale)

    def discard(self) -> None:
        """Remove files that were staged again here; the tasks' own files are for ``abort``."""
        self._write.discard()
        remove(self._log, self._own)

    def _remove_staged(self) -> None:
        """Remove what was staged for a batch that is there already."""
        paths = [file.batch.path for held in self._files.values() for file in held]
        if paths:
            remove_unnamed(self._log, self._ids.values(), paths)

    def prepare(self) -> None:
        """Stage again what is for sealed segments, and encode the rows."""
        for name, held in self._files.items():
            route = self._log.routes.get(name)
            if route.stream.id != self._ids[name]:
                raise _made_anew(name)
            self._numbers[name] = {segment.id: segment.number for segment in route.segments}
            fresh = time.time() - FRESH_S
            self._files[name] = [
                new
                for file in held
                for new in (
                    [file]
                    if file.batch.segment_id in self._numbers[name]
                    and file.staged_s > fresh
                    and judged_by(file) == route.filter
                    else self._stage_again(route, file)
                )
            ]
            if self._epochs is not None and self._ids[name] == self._epochs.stream_id:
                counted = [(file.segment, file.counts) for file in self._files[name]]
                self._epochs.take_files(counted)
        self._write.prepare()

    def _stage_again(self, route: Route, file: StagedFile) -> list[StagedFile]:
        store, batch = self._log.store, file.batch
        assert store is not None
        assert batch.path is not None
        stager = Stager(self._log, route, rows_bytes=0)
        try:
            opened = files.open_file(store, batch.path, batch.size_bytes, batch.checksum)
            with opened:
                for rows in opened.iter_batches(limits.READ_ROWS):
                    stager.add(rows)
            made = list(stager.finish().files)
        except FileNotFoundError:
            stager.discard()
            raise StagedFileLostError(
                f"the file {batch.path} is gone before its events were committed, so nothing was "
                "written; run the batch again, and sweep the store with a longer grace"
            ) from None
        except BaseException:
            stager.discard()
            raise
        self._own.update(new.batch.path for new in made if new.batch.path is not None)
        # No batch names the old file, or ever will.
        remove(self._log, [batch.path])
        self._own.discard(batch.path)
        return made

    @property
    def locks(self) -> list[str]:
        found = {streams.lock(stream_id) for stream_id in self._ids.values()}
        found.update(self._write.locks)
        found.add(producers.lock(self._scope, self._producer))
        if self._epochs is not None:
            found.update(self._epochs.locks)
        return sorted(found)

    @property
    def _scope(self) -> int:
        return next(iter(self._ids.values()))

    def run(self, tx: Tx) -> Committed:
        """The transaction."""
        original = producers.seen(tx, self._scope, self._producer, self._sequence)
        if self._batch is not None:
            counted = self._batch.run_in(tx, written=original is not None)
            if counted is False:
                # A replay may be smaller than the original: the batch decides, not the rows.
                return Committed((), self.digest, repeat=True)
        if original is not None:
            *spots, last = original
            return Committed(tuple(spots), last.start, repeat=True)
        placed: list[Placed] = []
        for name, held in self._files.items():
            if held:
                found = place(tx, [file.batch for file in held])
                if found is None:
                    raise Stale(name)
                numbers = self._numbers[name]
                placed += [Placed(name, numbers[i], start, n) for i, (start, n) in found.items()]
                tx.notify(streams.channel(self._ids[name]))
        placed += self._write.run(tx).placed
        merged = _merged(placed)
        if self._epochs is not None:
            stream = next(n for n, i in self._ids.items() if i == self._epochs.stream_id)
            its = [spot for spot in merged if spot.stream == stream]
            self._epochs.commit(tx, its, self._producer)
        if not self.count:
            return Committed(merged, self.digest, repeat=False)
        # The digest goes where the positions go, as one more of them that holds no events.
        record = (*merged, Placed(_DIGEST, 0, self.digest, 0))
        producers.record(tx, self._scope, self._producer, self._sequence, record)
        return Committed(merged, self.digest, repeat=False)


def _made_anew(stream: str) -> UnknownStreamError:
    return UnknownStreamError(
        f"stream {stream!r} was deleted and made anew while it was written to"
    )


def place(tx: Tx, new: Sequence[NewBatch]) -> dict[int, tuple[int, int]] | None:
    """Append batches, each segment's in the order given; {segment id: (first offset, events)}.

    None when they have to be prepared again.  A segment is placed once in a statement, so the first
    batches of all segments go together, then the second ones, and so on.
    """
    queues: dict[int, list[NewBatch]] = {}
    for batch in new:
        queues.setdefault(batch.segment_id, []).append(batch)
    found: dict[int, tuple[int, int]] = {}
    for turn in zip_longest(*queues.values()):
        due = [batch for batch in turn if batch is not None]
        for at in range(0, len(due), TOGETHER_MAX):
            some = due[at : at + TOGETHER_MAX]
            starts = batches.append(tx, some)
            if starts is None:
                return None
            for batch in some:
                first, count = found.get(batch.segment_id, (starts[batch.segment_id], 0))
                found[batch.segment_id] = (first, count + batch.rows)
    return found


def _merged(placed: Iterable[Placed]) -> tuple[Placed, ...]:
    """One entry per segment: under the stream's lock its placements follow each other."""
    found: dict[tuple[str, int], Placed] = {}
    for spot in placed:
        known = found.get((spot.stream, spot.segment))
        start, count = (spot.start, 0) if known is None else (known.start, known.count)
        found[spot.stream, spot.segment] = Placed(
            spot.stream, spot.segment, start, count + spot.count
        )
    return tuple(found.values())
