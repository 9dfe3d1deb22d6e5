"""The log's operations, synchronous and thread-safe; Spark workers and scripts use it directly.

What handles events is loaded when it is first used: it needs Arrow, whose loading takes longer than
most looks at a log.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.catalog import Catalog, Tx, batches, entries, epochs, schema, streams, tiling
from headrace.catalog.producers import Placed
from headrace.catalog.streams import Retention, Scaling, Segment, Stream, StreamConfig
from headrace.errors import (
    CatalogError,
    CatalogUnavailableError,
    DiskFullError,
    HeadraceError,
    InvalidPositionError,
    SegmentSealedError,
    SubjectOverlapError,
    UnknownSegmentError,
)
from headrace.log import (
    autoscale,
    compact_policy,
    internal,
    limits,
    reserve,
    retain,
    scale,
    writers,
)
from headrace.log.compact_policy import CompactionPolicy
from headrace.log.config import check_config, check_same, initial_segments
from headrace.log.query import Query
from headrace.log.sweep import Swept, empty_graveyard, sweep
from headrace.log.times import now_us, to_us
from headrace.store import Store
from headrace.subjects import check_name

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.log.append import Committable, R, Write
    from headrace.log.compact import Compacted, Compactor
    from headrace.log.events import Event, Events
    from headrace.log.placing import Stale
    from headrace.log.plain import Row
    from headrace.log.read import Reader
    from headrace.log.reading import Reading
    from headrace.log.routing import Routes
    from headrace.log.walk import B, OnDamaged

ATTEMPTS_MAX = 1000


class Scaled(msgspec.Struct, frozen=True):
    """A scaling that was done, or that ``autoscale`` would do."""

    sealed: tuple[int, ...]
    opened: tuple[int, ...]
    reason: str = ""


class Log:
    """Streams on one catalog and, for large batches, one store."""

    def __init__(self, catalog: Catalog, store: Store | None) -> None:
        self.catalog = catalog
        self.store = store
        self.prefix = catalog.read(_find_catalog_id) or catalog.write(
            _make_catalog_id, locks=("settings",)
        )

    @cached_property
    def routes(self) -> Routes:
        """Which stream captures a subject, and which segment takes a key."""
        from headrace.log.routing import Routes

        return Routes(self.catalog)

    # -- streams ------------------------------------------------------------------------

    def create_stream(
        self,
        name: str,
        config: StreamConfig,
        segments: int | None = None,
        *,
        as_there: Mapping[int, scale.Range] | None = None,
    ) -> Stream:
        """Create a stream; creating it again in the same way changes nothing.

        Without ``segments`` a new stream has one, and one that exists may have any number.
        ``as_there``: the numbers and key ranges of its segments, as another region has them.
        """
        check_name(name, "stream")
        config = check_config(config)
        count = initial_segments(config, segments)
        tiles = as_there or dict(enumerate(scale.even_ranges(0, streams.KEY_SPACE, count)))

        def create(tx: Tx) -> Stream:
            existing = streams.get(tx, name)
            if existing is not None:
                check_same(existing, config, None if segments is None else count)
                return existing
            for mine in config.subjects:
                for other, theirs in self.routes.overlapping(tx, mine):
                    raise SubjectOverlapError(
                        f"stream {name!r}: {mine!r} overlaps {theirs!r} of stream {other!r}; a "
                        "subject belongs to one stream"
                    )
            if config.epochs is not None and config.epochs.stored:
                internal.create(tx, internal.progress_log(name), 1)
            return tiling.create(tx, name, config, tiles.values(), list(tiles))

        # Before the transaction, which then has to read only what was made in between.
        self.routes.learn()
        return self.catalog.write(create, locks=(streams.LOCK_ALL,))

    def create_internal_stream(
        self, name: str, segments: int, retention: Retention | None = None
    ) -> Stream:
        """Create a stream of a group's own; see :mod:`headrace.log.internal`."""
        return self.catalog.write(
            lambda tx: internal.create(tx, name, segments, retention), locks=(streams.LOCK_ALL,)
        )

    def configure_stream(
        self,
        name: str,
        *,
        retention: Retention | None = None,
        scaling: Scaling | None = None,
    ) -> Stream:
        """Change how a stream is kept or scaled; what it captures stays."""

        def change(tx: Tx) -> Stream:
            stream = streams.require(tx, name)
            internal.refuse(stream, "configured")
            config = msgspec.structs.replace(
                stream.config,
                retention=retention or stream.config.retention,
                scaling=scaling or stream.config.scaling,
            )
            writers.check_policy(tx, stream, config.scaling)
            streams.configure(tx, stream.id, check_config(config))
            return streams.require(tx, name)

        return self.catalog.write(change, locks=(streams.LOCK_ALL,))

    def streams(self, *, internal: bool = False) -> tuple[Stream, ...]:
        """All streams by name; with ``internal`` those that belong to groups as well."""
        return self.catalog.read(
            lambda tx: streams.all_streams(tx, internal=internal), snapshot=True
        )

    def stream(self, name: str) -> Stream:
        return self.catalog.read(lambda tx: streams.require(tx, name), snapshot=True)

    def delete_stream(
        self, name: str, *, check: Callable[[Tx, Stream], None] | None = None
    ) -> None:
        """Delete a stream with all its events; its files go after a grace for running reads.

        ``check`` runs in the same transaction; if it raises, nothing is deleted.
        """
        stream = self.catalog.read(lambda tx: streams.removable(tx, name), snapshot=True)
        internal.refuse(stream, "deleted")

        def delete(tx: Tx) -> None:
            found = streams.removable(tx, name)
            writers.refuse_deletion(found)
            if check is not None:
                check(tx, found)
            if found.config.epochs is not None:
                epochs.delete(tx, found.id, name)
            streams.delete(tx, found)
            entries.delete(tx, compact_policy.BUCKET, name)
            if found.config.epochs is not None:
                internal.delete(tx, progress)

        progress = internal.progress_log(name)
        locks = [streams.LOCK_ALL, streams.lock(stream.id), entries.lock(compact_policy.BUCKET)]
        if stream.config.epochs is not None:
            locks += epochs.locks(stream.id, name)
        self.catalog.write(delete, locks=locks)
        self.routes.drop(name)
        self.routes.drop(progress)

    # -- append -------------------------------------------------------------------------

    def write_of(self, *, producer: str | None = None, sequence: int | None = None) -> Write:
        """An empty write; add appends to it and commit it."""
        make = self._write_type
        return make(self.routes, self.store, self.prefix, producer=producer, sequence=sequence)

    @cached_property
    def _write_type(self) -> type[Write]:
        from headrace.log.append import Write  # numpy and Arrow: nothing for whoever only looks

        return Write

    def append(
        self,
        stream: str,
        data: Events,
        *,
        producer: str | None = None,
        sequence: int | None = None,
        expected_heads: Mapping[int, int] | None = None,
    ) -> tuple[Placed, ...]:
        """Append events; they are durable when this returns."""
        from headrace.log.given import to_batch

        write = self.write_of(producer=producer, sequence=sequence)
        write.add(stream, to_batch(data), expected=expected_heads)
        return self.commit(write).placed

    def publish(
        self, event: Event, *, producer: str | None = None, sequence: int | None = None
    ) -> Placed:
        """Append one event to the stream that captures its subject."""
        from headrace.log.events import check_event

        check_event(event)
        write = self.write_of(producer=producer, sequence=sequence)
        write.add_events(self.routes.stream_for(event.subject), [event], now_us())
        return self.commit(write).placed[0]

    def append_marker(self, stream: str, segment: int, payload: bytes) -> Placed:
        """Append an internal record to an open segment, in line with its events."""
        from headrace.log.events import marker_batch

        write = self.write_of()
        write.add(stream, marker_batch(now_us(), payload), segment=segment)
        return self.commit(write).placed[0]

    def commit(self, write: Committable[R], stale: Stale | None = None) -> R:
        """Prepare and commit a write, again if its segments were sealed meanwhile.

        This is the only retry.  An event loop, which must not wait, makes the first attempt itself
        and passes on the ``stale`` that it got.
        """
        from headrace.log.placing import Stale

        for _ in range(ATTEMPTS_MAX):
            try:
                if stale is not None:
                    write.again(stale)
                write.prepare()
                outcome = self.catalog.write(write.run, locks=write.locks, saying=write.saying)
            except Stale as found:
                stale = found
            except HeadraceError as error:
                discard(write, error)
                raise
            else:
                if outcome.repeat:
                    write.discard()
                return outcome
        raise CatalogUnavailableError("the stream was scaled again and again; try later")

    # -- read ---------------------------------------------------------------------------

    def reader(self, stream: str, query: Query, on_damaged: OnDamaged | None = None) -> Reader:
        """A read under way, for who waits by other means than :meth:`read`."""
        from headrace.log.read import Reader

        return Reader(self.catalog, self.store, stream, query, on_damaged)

    def read(
        self, stream: str, query: Query | None = None, on_damaged: OnDamaged | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Record batches of a stream; with ``follow`` it waits for more and never ends."""
        yield from self._read(self.reader(stream, query or Query(), on_damaged))

    def rows(
        self, stream: str, query: Query | None = None, on_damaged: OnDamaged | None = None
    ) -> Iterator[list[Row]]:
        """What :meth:`read` gives, as plain rows: without Arrow, where no file is met."""
        from headrace.log.rows import RowReader

        given = query or Query()
        yield from self._read(RowReader(self.catalog, self.store, stream, given, on_damaged))

    def _read(self, reader: Reading[B]) -> Iterator[B]:
        with self.catalog.waiting(reader.channel) as wait:
            while not reader.done:
                batch = reader.next()
                if batch is not None:
                    yield batch
                elif not reader.done:
                    wait(None)

    # -- scale --------------------------------------------------------------------------

    def split(self, stream: str, segment: int, into: int = 2) -> Scaled:
        """Seal a segment and open ``into`` equal parts of it."""
        return self._scale(stream, [segment], lambda found: scale.split_ranges(found[0], into))

    def merge(self, stream: str, segments: Sequence[int]) -> Scaled:
        """Seal neighbours and open one segment that covers them."""
        return self._scale(stream, segments, scale.merged_range)

    def retile(
        self, stream: str, segments: Sequence[int], ranges: Sequence[tuple[int, int]]
    ) -> Scaled:
        """Seal segments and open one for each key range; together they must cover the same keys."""
        return self._scale(stream, segments, lambda _: list(ranges))

    def _scale(
        self,
        name: str,
        numbers: Sequence[int],
        ranges: Callable[[list[Segment]], list[tuple[int, int]]],
    ) -> Scaled:
        stream_id = self.stream(name).id

        def apply(tx: Tx) -> Scaled:
            stream = streams.require(tx, name)
            writers.refuse_scaling(tx, stream)
            wanted = ranges(scale.pick(stream, numbers))
            opened = scale.apply(tx, stream, numbers, wanted)
            return Scaled(tuple(numbers), tuple(opened))

        scaled = self.catalog.write(apply, locks=(streams.lock(stream_id),))
        self.routes.forget(name)
        return scaled

    def autoscale(self, name: str, *, dry_run: bool = False) -> list[Scaled]:
        """Apply the stream's scaling policy once."""

        def look(tx: Tx) -> list[autoscale.Decision]:
            stream = streams.require(tx, name)
            return autoscale.decide(writers.policy(tx, stream), autoscale.measure(tx, stream))

        done = []
        for decision in self.catalog.read(look, snapshot=True):
            try:
                match decision:
                    case autoscale.Split(segment=segment, into=into, reason=reason):
                        sealed: tuple[int, ...] = (segment,)
                        opened = () if dry_run else self.split(name, segment, into).opened
                    case autoscale.Merge(segments=segments, reason=reason):
                        sealed = segments
                        opened = () if dry_run else self.merge(name, segments).opened
            except SegmentSealedError:
                # Another process decided on the same loads, and was first.
                continue
            done.append(Scaled(sealed, opened, reason))
        return done

    # -- retention ----------------------------------------------------------------------

    def trim(self, name: str, before: Mapping[int, int] | datetime | None = None) -> dict[int, int]:
        """Remove old batches; returns {segment: first retained offset}.

        Without ``before`` the stream's policy decides; {segment: offset} or a time overrides it.
        """
        cuts = self.cuts(name, before)
        stream = self.stream(name)
        for number, cut in cuts.items():
            segment = stream.segment(number)
            if segment is None:
                raise UnknownSegmentError(f"stream {name!r} has no segment {number}")
            self._trim(stream, segment, min(cut, segment.head))
        return {segment.number: segment.tail for segment in self.stream(name).segments}

    def cuts(
        self, name: str, before: Mapping[int, int] | datetime | None = None
    ) -> Mapping[int, int]:
        """{segment: the first offset to keep} by ``before``, or by the stream's policy."""
        stream = self.stream(name)
        if isinstance(before, Mapping):
            for number in before:
                if stream.segment(number) is None:
                    raise UnknownSegmentError(f"stream {stream.name!r} has no segment {number}")
            return before
        if before is not None:
            ts_us = to_us(before)

            def by_time(tx: Tx) -> dict[int, int]:
                if ts_us > tx.now_us():
                    raise InvalidPositionError(
                        f"before={before.isoformat()} lies in the future, and would remove what is "
                        "still to come; give a time that has been, or positions"
                    )
                found = {}
                for segment in stream.segments:
                    place = batches.first_by_event_time(tx, segment, ts_us)
                    found[segment.number] = segment.head if place is None else place.start
                return found

            return self.catalog.read(by_time, snapshot=True)

        def by_policy(tx: Tx) -> dict[int, int]:
            return retain.plan(
                stream, tx.now_us(), retain.read_places(tx), retain.read_floors(tx, stream)
            )

        return self.catalog.read(by_policy, snapshot=True)

    def _trim(self, stream: Stream, segment: Segment, before: int) -> None:
        def step(tx: Tx) -> bool:
            return batches.trim(tx, stream.id, segment.id, before, most)

        more, most = before > segment.tail, batches.TRIM_BATCHES_MAX
        while more:
            try:
                more = self.catalog.write(step, locks=(streams.lock(stream.id),))
            except DiskFullError:
                if not reserve.spend(self.catalog) and most == 1:
                    raise
                most = max(1, most // 10)

    def compactor(self, name: str, policy: CompactionPolicy | None = None) -> Compactor:
        """The compactor of a stream, by the stream's own policy if none is given."""
        from headrace.log.compact import Compactor

        self.stream(name)
        return Compactor(self.catalog, self.store, self.prefix, name, policy)

    def compact(
        self,
        name: str,
        policy: CompactionPolicy | None = None,
        *,
        dry_run: bool = False,
        progress: Callable[[Compacted], None] | None = None,
    ) -> Compacted:
        """Make large files of a stream's small batches; see :mod:`headrace.log.compact`."""
        done = self.compactor(name, policy).compact(dry_run=dry_run, progress=progress)
        if not dry_run:
            self.catalog.shrink()
        return done

    def set_compaction(self, name: str, policy: CompactionPolicy | None) -> None:
        """Have a stream compacted by ``headrace pipeline``; None: no longer."""
        compact_policy.set_policy(self.catalog, name, policy)

    def compaction(self, name: str) -> CompactionPolicy | None:
        """The policy by which a stream is compacted, if there is one."""
        self.stream(name)
        return compact_policy.get_policy(self.catalog, name)

    def empty_graveyard(self) -> int:
        """Remove trimmed and replaced files whose grace for reads is over; returns how many."""
        return 0 if self.store is None else empty_graveyard(self.catalog, self.store)

    def sweep(
        self,
        *,
        older_than_s: float = limits.SWEEP_GRACE_S,
        dry_run: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> Swept:
        """Remove files that nothing names; see :mod:`headrace.log.sweep`."""
        if self.store is None:
            raise CatalogError("this catalog has no store, so there is nothing to sweep")
        return sweep(
            self.catalog,
            self.store,
            self.prefix,
            older_than_s=older_than_s,
            dry_run=dry_run,
            progress=progress,
        )


def discard(write: Committable[Any], error: HeadraceError) -> None:
    """Remove the files of a write that failed for sure; not when its outcome is unknown."""
    if not isinstance(error, CatalogUnavailableError):
        write.discard()


def _find_catalog_id(tx: Tx) -> str | None:
    """The catalog's id, which is the prefix of its files in a store."""
    return schema.get_setting(tx, "catalog_id")


def _make_catalog_id(tx: Tx) -> str:
    found = _find_catalog_id(tx)
    if found is None:
        found = uuid.uuid4().hex
        schema.put_setting(tx, "catalog_id", found)
    return found
