"""Compact: runs of small neighbouring batches become large files, and no offset changes.

Three steps, of which only the last one counts:

1. **Plan.**  ``runs`` picks neighbours that are small and old enough, without gaps, up to the
   target size.  A batch more than twice as large as the rest of its run stays out of it.  That
   bounds the write amplification: each rewrite makes a file larger by half at least, so an event
   is rewritten a few times in its life, not with every batch that comes after it.
2. **Rewrite.**  The run is read like any reader reads it, every checksum verified, and written as
   one file, row by row in the order of offsets.  A damaged batch is never rewritten: it stays an
   error that names it.
3. **Commit.**  One transaction under the stream's lock checks that the run's batches are exactly
   those that were planned, and puts the file in their place; files that were replaced go to the
   graveyard, where reads under way still find them.

A crash before the commit leaves a file that nothing names, for the sweep.  Of two compactors with
the same batches one commits, and the other finds them changed and removes its own file; so does
one whose batches were trimmed meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator

import msgspec
import pyarrow as pa

from headrace.catalog import Catalog, Tx, batches, markers, streams
from headrace.catalog.batches import CompactedFile, Piece
from headrace.catalog.streams import Fixed, Segment, Stream
from headrace.errors import (
    CatalogError,
    CatalogUnavailableError,
    DamagedBatchError,
    HeadraceError,
    StoreError,
    TrimmedError,
    UnknownStreamError,
)
from headrace.log import autoscale, events, files, limits
from headrace.log.compact_policy import (
    PIECES_MAX,
    ROWS_MAX,
    CompactionPolicy,
    check_policy,
    get_policy,
    within_retention,
)
from headrace.log.cursor import Cursor
from headrace.log.shelf import widen
from headrace.store import Store

INLINE_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of blobs that one commit may delete, since appends wait for it; files cost it nothing.

A file that stays small because of this is joined with its neighbours by a later run.
"""
PASSES_MAX = 20
"""Passes of one call; each makes files larger by half at least, so a few are enough."""
PAGE = 1000
ROW_GROUP_BYTES = 32 * 1024 * 1024


class Run(msgspec.Struct, frozen=True):
    """Neighbouring batches of a segment that are to become one file."""

    stream: str
    stream_id: int
    segment: int
    segment_id: int
    pieces: tuple[Piece, ...]
    events: int

    @property
    def start(self) -> int:
        return self.pieces[0].start

    @property
    def end(self) -> int:
        return self.pieces[-1].end

    @property
    def size_bytes(self) -> int:
        return sum(piece.size_bytes for piece in self.pieces)

    @property
    def task(self) -> Rewrite:
        layout = 0
        for piece in self.pieces:
            layout |= piece.layout
        return Rewrite(self.stream, self.stream_id, self.segment, self.start, self.end, layout)


class Rewrite(msgspec.Struct, frozen=True):
    """The order to rewrite one run, for a worker on any machine."""

    stream: str
    stream_id: int
    segment: int
    start: int
    end: int
    layout: int


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    """What a compaction did; with ``dry_run`` what it would do.

    An event that was rewritten twice, into a file and from there into a larger one, counts twice.
    """

    stream: str
    files: int = 0
    batches: int = 0
    events: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    lost: int = 0
    """Runs that somebody else compacted or trimmed first."""
    damaged: tuple[str, ...] = ()
    """What is wrong with batches that had to be left as they are."""
    dry_run: bool = False

    def with_run(self, run: Run, file: CompactedFile | None) -> Compacted:
        return msgspec.structs.replace(
            self,
            files=self.files + 1,
            batches=self.batches + len(run.pieces),
            events=self.events + run.events,
            bytes_before=self.bytes_before + run.size_bytes,
            bytes_after=self.bytes_after + (0 if file is None else file.size_bytes),
        )

    def with_lost(self) -> Compacted:
        return msgspec.structs.replace(self, lost=self.lost + 1)

    def with_damage(self, message: str) -> Compacted:
        return msgspec.structs.replace(self, damaged=(*self.damaged, message))


# --- plan ----------------------------------------------------------------------------------


def runs(
    policy: CompactionPolicy,
    pieces: Iterable[Piece],
    now_us: int,
    *,
    events_max: int = ROWS_MAX,
    complete: bool = False,
    avoid: Collection[int] = (),
) -> Iterator[tuple[Piece, ...]]:
    """Runs worth a file, from the batches of a segment in their order.

    ``complete`` says that no more batches will come, so that there is nothing to wait for.
    Batches that start at an offset in ``avoid`` are left alone.
    """
    run: list[Piece] = []
    size = inline = 0
    for piece in pieces:
        if piece.created_us > now_us - policy.min_age_s * 1_000_000:
            break
        small = is_small(policy, piece) and piece.start not in avoid
        within = piece.size_bytes if piece.path is None else 0
        if run and not (
            small
            and piece.start == run[-1].end
            and size + piece.size_bytes <= policy.target_bytes
            and inline + within <= INLINE_BYTES_MAX
            and piece.end - run[0].start <= events_max
            and piece.created_us - run[0].created_us <= policy.span_s * 1_000_000
            and len(run) < PIECES_MAX
        ):
            yield from _worthwhile(policy, run, complete)
            run, size, inline = [], 0, 0
        if small:
            run.append(piece)
            size += piece.size_bytes
            inline += within
    yield from _worthwhile(policy, run, complete)


def is_small(policy: CompactionPolicy, piece: Piece) -> bool:
    """Whether a batch is one to join with others."""
    return 2 * piece.size_bytes < policy.target_bytes


def _worthwhile(
    policy: CompactionPolicy, run: list[Piece], complete: bool
) -> Iterator[tuple[Piece, ...]]:
    todo = [run]
    while todo:
        run = todo.pop()
        size = sum(piece.size_bytes for piece in run)
        least = 2 if complete or 2 * size >= policy.target_bytes else policy.min_batches
        if len(run) < least:
            continue
        heaviest = max(range(len(run)), key=lambda at: run[at].size_bytes)
        outweighs = 3 * run[heaviest].size_bytes > 2 * size
        if outweighs and len(run) > 2:
            todo += [run[heaviest + 1 :], run[:heaviest]]
        elif not outweighs or complete:
            yield tuple(run)


# --- rewrite -------------------------------------------------------------------------------


def rewrite(catalog: Catalog, store: Store, prefix: str, task: Rewrite) -> CompactedFile:
    """Read a run and write its file; nothing counts before it is committed.

    Raises :class:`DamagedBatchError`, or :class:`TrimmedError` or :class:`UnknownStreamError` when
    the run is gone.
    """
    stream = catalog.read(lambda tx: streams.require(tx, task.stream), snapshot=True)
    segment = stream.segment(task.segment)
    if stream.id != task.stream_id or segment is None:
        raise UnknownStreamError(f"stream {task.stream!r} was deleted and made anew")
    schema = events.schema_of(task.layout)
    parts = _read(Cursor(catalog, store, task.stream, segment, task.start), task)
    data, checksum = files.encode_all(schema, _row_groups(parts))
    path = files.new_path(prefix, task.stream_id, task.segment)
    store.put(path, data)
    return CompactedFile(path, task.end - task.start, len(data), task.layout, checksum)


def _read(cursor: Cursor, task: Rewrite) -> Iterator[pa.RecordBatch]:
    while cursor.position < task.end:
        found = cursor.next(task.end)
        if found is not None:
            yield widen(found.drop_columns(["offset"]), task.layout)


def _row_groups(parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Regroup rows into parts of one row group each, smaller ones where events are large."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for part in parts:
        held.append(part)
        rows += part.num_rows
        size += part.nbytes
        if rows >= files.ROW_GROUP_ROWS or size >= ROW_GROUP_BYTES:
            joined = pa.concat_batches(held)
            while joined.num_rows >= files.ROW_GROUP_ROWS:
                yield joined.slice(0, files.ROW_GROUP_ROWS)
                joined = joined.slice(files.ROW_GROUP_ROWS)
            if joined.num_rows and joined.nbytes >= ROW_GROUP_BYTES:
                yield joined
                joined = joined.slice(joined.num_rows)
            held, rows, size = [joined], joined.num_rows, joined.nbytes
    if rows:
        yield pa.concat_batches(held)


# --- all of it -----------------------------------------------------------------------------


class Compactor:
    """The compaction of one stream; thread-safe, and several may run at the same time."""

    def __init__(
        self,
        catalog: Catalog,
        store: Store | None,
        prefix: str,
        stream: str,
        policy: CompactionPolicy | None = None,
    ) -> None:
        if store is None:
            raise CatalogError(
                "this catalog has no store, so there is no place for larger files; open it with one"
            )
        self._catalog = catalog
        self._store = store
        self._prefix = prefix
        self.stream = stream
        given = check_policy(policy) if policy is not None else get_policy(catalog, stream)
        self.policy = given or CompactionPolicy()
        self._damaged: dict[int, set[int]] = {}
        self._settled: dict[tuple[int, bool], int] = {}
        """Offsets below which a segment, open or sealed, has nothing left to do."""

    def plan(self) -> Iterator[Run]:
        """Runs that are due now, found as they are asked for."""
        stream, now_us = self._catalog.read(
            lambda tx: (streams.require(tx, self.stream), tx.now_us()), snapshot=True
        )
        policy, events_max = within_retention(self.policy, stream)
        for segment in stream.segments:
            bound = _beyond_rates(policy, stream, segment)
            stretch = _Stretch(bound, max(segment.tail, self._settled_at(segment)))
            first = None
            for found in runs(
                bound,
                stretch.follow(self._pieces(segment.id, stretch.start)),
                now_us,
                events_max=events_max,
                complete=segment.sealed,
                avoid=self._damaged.get(segment.number, ()),
            ):
                first = found[0].start if first is None else first
                count = self._events(segment, found[0].start, found[-1].end)
                yield Run(stream.name, stream.id, segment.number, segment.id, found, count)
            settled = stretch.start if first is None else min(first, stretch.start)
            self._settled[segment.number, segment.sealed] = settled

    def _events(self, segment: Segment, start: int, end: int) -> int:
        return self._catalog.read(lambda tx: markers.events_in(tx, segment, [(start, end)]))

    def _settled_at(self, segment: Segment) -> int:
        return self._settled.get((segment.number, segment.sealed), 0)

    def _pieces(self, segment_id: int, start: int) -> Iterator[Piece]:
        while page := self._page(segment_id, start):
            yield from page
            start = page[-1].end

    def _page(self, segment_id: int, start: int) -> list[Piece]:
        return self._catalog.read(lambda tx: batches.pieces(tx, segment_id, start, PAGE))

    def rewrite(self, run: Run) -> CompactedFile:
        """Write a run's file, on this machine."""
        return rewrite(self._catalog, self._store, self._prefix, run.task)

    def commit(self, run: Run, file: CompactedFile, began_s: float) -> bool:
        """Replace the run by the file; false when the run has changed or is gone.

        ``began_s`` is the monotonic time before the file was begun: a file old enough for a sweep
        to remove as an orphan must not be committed.
        """

        def apply(tx: Tx) -> bool:
            if time.monotonic() - began_s > limits.APPEND_DEADLINE_S:
                return False
            return batches.replace(tx, run.segment_id, run.pieces, file)

        assert file.rows == run.end - run.start
        try:
            done = self._catalog.write(apply, locks=(streams.lock(run.stream_id),))
        except CatalogUnavailableError:
            # The outcome is unknown, so the file stays; if it is an orphan, the sweep removes it.
            raise
        except HeadraceError:
            self.discard(file)
            raise
        if not done:
            self.discard(file)
        return done

    def without_damage(self, run: Run, start: int, end: int) -> list[Run]:
        """What is left of a run without its damaged batch, which later plans leave alone too."""
        whole = [piece for piece in run.pieces if piece.end <= start or piece.start >= end]
        avoid = self._damaged.setdefault(run.segment, set())
        avoid.update(piece.start for piece in run.pieces if piece not in whole)
        parts = (
            tuple(piece for piece in whole if piece.end <= start),
            tuple(piece for piece in whole if piece.start >= end),
        )
        return [msgspec.structs.replace(run, pieces=pieces) for pieces in parts if len(pieces) > 1]

    def discard(self, file: CompactedFile) -> None:
        """Remove a file that was not committed; the sweep finds what this misses."""
        try:
            self._store.delete(file.path)
        except StoreError:
            return

    def compact(
        self, *, dry_run: bool = False, progress: Callable[[Compacted], None] | None = None
    ) -> Compacted:
        """Compact the stream in this process, until nothing is due; a dry run looks once."""
        done = Compacted(stream=self.stream, dry_run=dry_run)
        for done in self.steps(dry_run=dry_run):
            if progress is not None:
                progress(done)
        return done

    def steps(self, *, dry_run: bool = False) -> Iterator[Compacted]:
        """What was done after each run; whoever stops asking stops the compaction."""
        done = Compacted(stream=self.stream, dry_run=dry_run)
        for _ in range(1 if dry_run else PASSES_MAX):
            before = done.files
            for run in self.plan():
                done = done.with_run(run, None) if dry_run else self._compact(run, done)
                yield done
            if done.files == before:
                break

    def _compact(self, run: Run, done: Compacted) -> Compacted:
        todo = [run]
        while todo:
            run = todo.pop()
            began_s = time.monotonic()
            try:
                file = self.rewrite(run)
            except DamagedBatchError as error:
                done = done.with_damage(str(error))
                todo += self.without_damage(run, error.start, error.end)
            except (TrimmedError, UnknownStreamError):
                done = done.with_lost()
            else:
                committed = self.commit(run, file, began_s)
                done = done.with_run(run, file) if committed else done.with_lost()
        return done


class _Stretch:
    """Finds where the trailing small batches of a segment begin.

    Everything before that was judged together with all its neighbours; later plans skip it.
    """

    def __init__(self, policy: CompactionPolicy, start: int) -> None:
        self._policy = policy
        self.start = start

    def follow(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        end = self.start
        for piece in pieces:
            if not is_small(self._policy, piece):
                self.start = piece.end
            elif piece.start != end:
                self.start = piece.start
            end = piece.end
            yield piece


def _beyond_rates(policy: CompactionPolicy, stream: Stream, segment: Segment) -> CompactionPolicy:
    """Leave alone batches that autoscaling still needs to compute a segment's rates."""
    if isinstance(stream.config.scaling, Fixed) or segment.sealed:
        return policy
    return msgspec.structs.replace(policy, min_age_s=max(policy.min_age_s, autoscale.WINDOWS_S[-1]))
