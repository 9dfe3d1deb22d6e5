"""Append: events become batches in segments, all of them or none.

A ``Write`` gathers the appends of one commit, to one stream or several.  ``prepare`` does what
needs no transaction: it routes the events, makes blobs of small shares and files of large ones.
``run`` is the transaction: it checks that the segments are still open, takes offsets and records
the batches.  When a segment was sealed in between, ``run`` raises ``Stale``, nothing is written,
and the write is prepared again with the new segments.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Protocol, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from zlib_ng.zlib_ng import crc32

from headrace import compiled
from headrace.catalog import Tx, producers, streams
from headrace.catalog.batches import NewBatch
from headrace.catalog.calls import AppendCall
from headrace.catalog.lanes import LaneStep
from headrace.catalog.producers import Placed
from headrace.errors import (
    EpochStreamError,
    InvalidInputError,
    StoreError,
    UnknownSegmentError,
)
from headrace.log import events, files, limits, placing
from headrace.log.events import Event
from headrace.log.message import Single, form_of, single, with_epochs
from headrace.log.pending import EpochProgress, Pending
from headrace.log.placing import Stale, place
from headrace.log.routing import Route, Routes
from headrace.log.shares import Rows, Share, in_lane, inline, judged, share_of_blob
from headrace.store import Store
from headrace.subjects import check_name
from headrace.subjects.arguments import check_value


class Outcome(msgspec.Struct, frozen=True):
    """Where the events are; on a ``repeat`` where they have been since the first time."""

    placed: tuple[Placed, ...]
    repeat: bool


class _Answer(Protocol):
    @property
    def repeat(self) -> bool: ...


R = TypeVar("R", bound=_Answer, covariant=True)


class Committable(Protocol[R]):
    """What :meth:`Log.commit` commits: a ``Write``, or something around one with the same calls."""

    @property
    def locks(self) -> Iterable[str]: ...
    def prepare(self) -> None: ...
    def run(self, tx: Tx) -> R: ...
    def saying(self) -> AppendCall | None: ...
    def again(self, stale: Stale) -> None: ...
    def discard(self) -> None: ...


class Write:
    """Appends that commit together; see the module's text."""

    def __init__(
        self,
        routes: Routes,
        store: Store | None,
        prefix: str,
        *,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> None:
        self._routes = routes
        self._store = store
        self._prefix = prefix
        self._pending: list[Pending] = []
        self._files: list[str] = []
        self._files_since = 0.0
        self._producer, self._sequence = _check_producer(producer, sequence)
        self._turns = routes.catalog.turns
        self.transaction = False
        self.stage: Callable[[Tx], None] | None = None
        """Runs first in the same transaction; what it raises undoes both."""
        self.stage_locks: Iterable[str] = ()

    def add(
        self,
        stream: str,
        given: pa.RecordBatch | Single,
        *,
        expected: Mapping[int, int] | None = None,
        segment: int | None = None,
        captured: bool = False,
        progress: EpochProgress | None = None,
        step: LaneStep | None = None,
    ) -> None:
        """Append a checked batch or event; ``segment`` pins it (for markers), else its keys decide.

        ``captured`` says that the stream was found by the events' subjects, and ``progress`` is
        what an append to an epoch stream does to its epochs.  ``step`` names the regions that the
        events go to, if not to all.
        """
        if type(stream) is not str or expected is not None:
            check_value("stream", stream, str)
            check_value("expected_heads", expected, Mapping[int, int] | None)
        self._pending.append(Pending(stream, given, expected, segment, captured, progress, step))

    def add_events(self, stream: str, found: Sequence[Event], now: int) -> None:
        """Append checked events to the stream that was found by their subjects."""
        lone = single(found[0], now) if len(found) == 1 else None
        if lone is None:
            self.add(stream, events.batch_of(found, now), captured=True)
        else:
            self._pending.append(Pending(stream, lone))

    # -- before the transaction ---------------------------------------------------------

    @property
    def is_routed(self) -> bool:
        """Whether all routes are cached, so that preparing needs no query."""
        known = self._routes.is_known
        return all(p.route is not None or known(p.stream) for p in self._pending)

    @property
    def size_bytes(self) -> int:
        """The size of all its events."""
        return sum(pending.size_bytes for pending in self._pending)

    @property
    def is_plain(self) -> bool:
        """Whether this is one small append that may go together with others."""
        if self._producer is not None or self.transaction or self.stage is not None:
            return False
        return len(self._pending) == 1 and self._pending[0].joins

    @property
    def plain(self) -> Pending:
        """The append of a plain write."""
        (pending,) = self._pending
        return pending

    @property
    def source(self) -> object:
        """The publisher of a plain write to an epoch stream: others' are not joined with it."""
        progress = self._pending[0].progress if self._pending else None
        return None if progress is None else progress.publisher

    @property
    def times(self) -> int:
        """Of how many different epochs the rows of a plain write to an epoch stream are."""
        progress = self._pending[0].progress if self._pending else None
        return 0 if progress is None else progress.different_times

    @property
    def stream_names(self) -> set[str]:
        """To which streams it appends."""
        return {pending.stream for pending in self._pending}

    @property
    def shares(self) -> list[tuple[Share, ...]]:
        """What the segments get of every append, once it is prepared."""
        return [pending.shares for pending in self._pending]

    @property
    def has_files(self) -> bool:
        """Whether it has written files, which have to go if the commit fails."""
        return bool(self._files)

    def prepare(self) -> None:
        """Route and encode what is not prepared yet; writes files, touches no catalog rows."""
        try:
            turns = self._routes.catalog.turns
            if self._turns != turns:  # in another history, which may have given the ids anew
                self._turns = turns
                self._forget_routes()
            for pending in self._pending:
                if pending.route is None:
                    route = self._routes.get(pending.stream)
                    pending.shares = tuple(self._checked_shares(route, pending))
                    if pending.step is not None:
                        pending.shares = in_lane(pending.shares, pending.step)
                    if route.filter and pending.pinned is None:
                        crosses = route.crossing(pending.subjects)
                        pending.shares = judged(pending.shares, route.filter, crosses)
                    if pending.progress is not None:
                        pending.progress.prepare(pending.shares)
                    pending.route = route
            if self._producer is not None:
                _ = self._checksum  # here, since others wait for the transaction
        except BaseException:
            self.discard()
            raise

    def _checked_shares(self, route: Route, pending: Pending) -> list[Share]:
        if route.stream.config.epochs is not None and pending.progress is None:
            stored = route.stream.config.epochs.stored
            raise EpochStreamError(pending.stream, stored=stored)
        if pending.pinned is None and not pending.captured and pending.single is not None:
            route.check_subject(pending.single.subject)
        elif pending.pinned is None and not pending.captured:
            # The compiled kernel checks the subjects in the same pass.
            shares = route.prefix and self._compiled_shares(route, pending, route.prefix)
            if shares:
                return shares
            route.check_subjects(pending.given)
        return self._shares(route, pending)

    def _shares(self, route: Route, pending: Pending) -> list[Share]:
        if pending.single is not None:
            one = pending.single
            segment = route.segments[route.segment_of(one.key, one.subject)]
            return [share_of_blob(segment, 1, one.ts_us, one.layout, one.blob, None)]
        batch = pending.batch
        if batch.num_rows == 0:
            return []
        if pending.pinned is not None:
            return [self._share(route, _pinned_index(route, pending.pinned), pending)]
        if len(route.segments) == 1:
            return [self._share(route, 0, pending)]
        if batch.num_rows == 1:
            key = batch.column("key")[0].as_py() if pending.layout & events.KEY_BIT else None
            index = route.segment_of(key, batch.column("subject")[0].as_py())
            return [self._share(route, index, pending)]
        return self._compiled_shares(route, pending, b"") or self._sorted_shares(route, pending)

    def _compiled_shares(self, route: Route, pending: Pending, prefix: bytes) -> list[Share] | None:
        """Check, route and encode plain events in one compiled pass; None if it does not apply.

        All subjects must begin with ``prefix``, and the shares be small enough for the catalog.
        1,000 events of 100 bytes for 4 segments take 56 us; 191 us if only the hashing is
        compiled and Arrow sorts and encodes.  The commit takes 1 ms.
        """
        kernels = compiled.kernels
        if kernels is None or not pending.is_small or pending.rows < 2 or len(route.segments) < 2:
            return None
        layout, columns = pending.layout, pending.given.columns
        if pending.progress is not None and layout & events.EPOCH_BIT:
            # The kernel knows plain columns; the times are put behind them in each share.
            layout ^= events.EPOCH_BIT
            columns = columns[: layout.bit_count()]
        form = form_of(layout)
        hashed = route.hashed(layout & events.KEY_BIT != 0)
        if form is None or hashed is None or any(column.null_count for column in columns):
            return None
        found = kernels.split(columns, prefix, hashed, route.limits, route.partitions, form)
        if found and layout != pending.layout:
            assert pending.progress is not None
            times = pending.progress.times()
            found = [
                (index, rows, latest, with_epochs(blob, layout, rows, times, order), order)
                for index, rows, latest, blob, order in found
            ]
        return found and [
            share_of_blob(route.segments[index], rows, latest, pending.layout, blob, order)
            for index, rows, latest, blob, order in found
        ]

    def _sorted_shares(self, route: Route, pending: Pending) -> list[Share]:
        """The shares by way of numpy and Arrow: rows are sorted by segment, then cut."""
        batch = pending.batch
        places = route.segments_of(batch)
        counts = np.bincount(places, minlength=len(route.segments)).tolist()
        if max(counts) == batch.num_rows:
            return [self._share(route, int(places[0]), pending)]
        # numpy sorts 16-bit integers by radix, several times faster.
        order = places.astype(np.uint16).argsort(kind="stable")
        ordered = events.reordered(batch, order)
        stamps = events.stamps_of(ordered)
        shares, at = [], 0
        for index, count in enumerate(counts):
            if count:
                end = at + count
                part = Rows(ordered.slice(at, count), pending.layout, stamps[at:end])
                shares.append(self._share(route, index, pending, part, order[at:end]))
                at = end
        return shares

    def _share(
        self,
        route: Route,
        index: int,
        pending: Pending,
        part: Rows | None = None,
        order: npt.NDArray[np.int64] | None = None,
    ) -> Share:
        """The share of one segment: all rows, or those whose numbers are in ``order``."""
        segment = route.segments[index]
        if part is None:
            part = Rows(pending.batch, pending.layout, events.stamps_of(pending.batch))
        made: tuple[NewBatch, ...]
        if pending.is_small or part.rows == 1 or part.batch.nbytes <= limits.INLINE_BYTES:
            made = (inline(segment.id, part),)
        elif self._store is None:
            made = tuple(inline(segment.id, piece) for piece in part.cut(limits.INLINE_BYTES))
        else:
            pieces = part.cut(limits.FILE_BYTES)
            made = tuple(self._file(route, segment, piece) for piece in pieces)
        return Share(segment.number, segment.id, part.rows, order, made)

    def _file(self, route: Route, segment: streams.Segment, part: Rows) -> NewBatch:
        assert self._store is not None
        data, checksum = files.encode(part.batch)
        path = files.new_path(self._prefix, route.stream.id, segment.number)
        if not self._files:
            self._files_since = time.monotonic()
        self._files.append(path)
        self._store.put(path, data)
        return NewBatch(
            segment_id=segment.id,
            rows=part.rows,
            size_bytes=len(data),
            max_ts_us=part.max_ts_us,
            layout=part.layout,
            checksum=checksum,
            path=path,
            markers=part.markers,
        )

    # -- the transaction ----------------------------------------------------------------

    @property
    def locks(self) -> list[str]:
        found: list[str] = []
        for pending in self._pending:
            if pending.route is not None:
                found.append(streams.lock(pending.route.stream.id))
            if pending.progress is not None:
                found += pending.progress.locks
        if self._producer is not None:
            found.append(producers.lock(self._scope, self._producer))
        return [*found, *self.stage_locks]

    def run(self, tx: Tx) -> Outcome:
        """Take offsets and record the batches; runs in the catalog's write transaction."""
        if self._expired or self._turns != self._routes.catalog.turns:
            raise Stale(self._pending[0].stream)
        if self.stage is not None:
            self.stage(tx)
        if self._producer is None or self._sequence is None:
            return Outcome(self._place_all(tx), repeat=False)
        known = (tx, self._scope, self._producer, self._sequence)
        original = producers.seen(*known, self._checksum)
        if original is not None:
            return Outcome(original, repeat=True)
        placed = self._place_all(tx)
        producers.record(*known, placed, self._checksum)
        return Outcome(placed, repeat=False)

    def saying(self) -> AppendCall | None:
        """What :meth:`run` does, if it is one append and nothing that only a transaction can do."""
        if len(self._pending) != 1 or self.stage is not None or self.transaction:
            return None
        (pending,) = self._pending
        if self._expired or self._turns != self._routes.catalog.turns:
            return None
        if self._producer is None or self._sequence is None:
            return placing.saying(pending, None, lambda found: Outcome(found, repeat=False))
        known = self._scope, self._producer, self._sequence, self._checksum
        return placing.saying(pending, known, lambda found: Outcome(found, repeat=False))

    @property
    def _expired(self) -> bool:
        """Whether its files are so old that a sweep may have taken them for orphans."""
        if not self._files:
            return False
        return time.monotonic() - self._files_since > limits.APPEND_DEADLINE_S

    def _place_all(self, tx: Tx) -> tuple[Placed, ...]:
        placed: list[Placed] = []
        for pending in self._pending:
            spots = place(tx, pending)
            if pending.progress is not None:
                pending.progress.record(tx, spots)
            placed += spots
        return tuple(placed)

    @cached_property
    def _checksum(self) -> int:
        """A checksum of all events, their times aside: those that were left out are made up."""
        found = 0
        for pending in self._pending:
            found = crc32(pending.stream.encode(), found)
            one = pending.single
            batch = events.decode_blob(one.blob, one.layout) if one else pending.batch
            batch = batch.drop_columns(["timestamp"])
            for at in range(0, batch.num_rows, limits.READ_ROWS):
                found = crc32(events.encode_blob(batch.slice(at, limits.READ_ROWS)), found)
            if pending.progress is not None:
                found = crc32(pending.progress.content, found)
        return found

    @property
    def _scope(self) -> int:
        if self.transaction or not self._pending:
            return producers.TRANSACTION
        route = self._pending[0].route
        assert route is not None
        return route.stream.id

    # -- after it -----------------------------------------------------------------------

    def again(self, stale: Stale) -> None:
        """After ``Stale``: drop what was prepared for those streams, and read their routes."""
        expired = self._expired or self._turns != self._routes.catalog.turns
        self._routes.refresh(stale.stream)
        for pending in self._pending:
            if pending.stream == stale.stream or expired:
                self._discard_files(pending)
                pending.route = None

    def discard(self) -> None:
        """Remove the files of a write that was not committed; the sweep finds what this misses."""
        self._forget_routes()
        self._remove(list(self._files))

    def _forget_routes(self) -> None:
        for pending in self._pending:
            self._discard_files(pending)
            pending.route = None

    def _discard_files(self, pending: Pending) -> None:
        self._remove([b.path for s in pending.shares for b in s.batches if b.path is not None])
        pending.shares = ()

    def _remove(self, paths: list[str]) -> None:
        if self._store is None:
            return
        for path in paths:
            if path in self._files:
                self._files.remove(path)
            try:
                self._store.delete(path)
            except StoreError:
                continue


def _pinned_index(route: Route, number: int) -> int:
    for index, segment in enumerate(route.segments):
        if segment.number == number:
            return index
    raise UnknownSegmentError(
        f"stream {route.stream.name!r} has no open segment {number}; open are "
        f"{', '.join(str(segment.number) for segment in route.segments)}"
    )


def _check_producer(producer: str | None, sequence: int | None) -> tuple[str | None, int | None]:
    if producer is None and sequence is None:
        return None, None
    if producer is None or sequence is None:
        raise InvalidInputError("an idempotent append needs both a producer and a sequence")
    if not isinstance(sequence, int) or not 0 <= sequence < 1 << 62:
        raise InvalidInputError(f"sequence {sequence!r} is not a number from 0 to 2**62 - 1")
    return check_name(producer, "producer"), sequence
