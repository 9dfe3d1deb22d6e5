"""What a Spark query stores of its batches: the transactions of ``core/spark_batches.py``.

Joining, settling and opening are transactions of the group, by the process that plans.  Binding is
one of a read task, and counting is a part of a sink's own; neither follows the group's state: a
claim that still has the token of an opening is that opening's, since no two claims have one token.

Rows are locked in one order: the line, then claims, then progress.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from headrace.catalog import Tx, claims, leases, spark_readers
from headrace.catalog.spark_readers import BindingRow, LineRow, SpanRow
from headrace.errors import BatchFenced, QueryReplacedError
from headrace.groups.progress import Progress
from headrace.groups.progress.store import ack_prepared, ack_spans
from headrace.groups.readers import names
from headrace.groups.readers.core import spark_batches
from headrace.groups.readers.core.segments import SegmentId
from headrace.groups.readers.core.spark_batches import (
    Acks,
    OpenSpan,
    SegmentView,
    SparkBinding,
    SparkLine,
    SparkOpening,
    SparkPlan,
    Taking,
)
from headrace.groups.readers.core.updates import ClaimFree, ReturnReader
from headrace.groups.readers.names import ReaderGroupName, unit_of
from headrace.groups.readers.runtime import elsewhere
from headrace.groups.readers.runtime.liveness import JoinedAs, NameHeld, name_held
from headrace.groups.readers.runtime.moment import GroupMoment
from headrace.groups.readers.runtime.spark_records import (
    decode,
    put,
    span_row,
    stored_line,
    with_spans,
)
from headrace.groups.readers.runtime.transaction import Committed, GroupCommit
from headrace.groups.readers.spark_use import holder_of, owner_of

OTHER_LIFE = -1


class Finished(msgspec.Struct, frozen=True):
    """A batch that some run has finished, and how this process had opened it, if it had."""

    batch: str
    mine: str | None


class OpenedBatch(msgspec.Struct, frozen=True):
    """A batch that tasks may read, and what was claimed for it."""

    opening: SparkOpening
    committed: Committed


# --- transactions of the group -------------------------------------------------------------


def join(
    commit: GroupCommit,
    reader: str,
    *,
    owner: tuple[str, str],
    ttl_ms: int,
    took: bool,
    over: leases.Lease | None,
    finished: Finished | None,
    wants: tuple[SegmentId, ...],
) -> JoinedAs | NameHeld:
    """T0: take the name, settle what is known to be finished, and have the segments again."""
    elsewhere.check_query(commit.tx, commit.name)
    tx, name = commit.tx, commit.name.lease(reader)
    line, instance = owner
    held = leases.get(tx, name)
    if held is not None and held != over:
        taking = spark_batches.take_name(holder_of(held.owner), line, instance, took=took)
        if taking is Taking.OVER:
            raise QueryReplacedError(commit.name.group, reader, held.owner)
        if taking is Taking.WAIT:
            return name_held(tx, held)
    if finished is not None:
        settle(commit, reader, line, finished)
    elsewhere.come_back(commit)
    lease = leases.seize(tx, name, owner_of(line, instance), ttl_ms)
    committed = commit.put(ReturnReader(reader, lease.token, wants=wants))
    return JoinedAs(committed.outcome.revision, lease.token, committed)


def settle(commit: GroupCommit, reader: str, line: str, finished: Finished) -> Acks:
    """T1: ack what is known to be finished."""
    row = spark_readers.lines(commit.tx, [line], hold=True).get(line)
    if row is None:
        return {}
    before = decode(row)
    if before.opening is None or before.opening.batch != finished.batch:
        return {}
    before = with_spans(commit.tx, line, before)
    assert before.opening is not None
    found = _Views(commit.moment, [span.segment for span in before.opening.spans])
    member = commit.state.members.get(reader)
    after, acks = spark_batches.settle(
        before,
        finished.batch,
        mine=finished.mine,
        life=None if member is None else member.token,
        views=found.by_life(lambda name: _life(commit, name)),
    )
    if after != before:
        found.ack(acks)
        put(commit.tx, row, after)
    return acks


def open_batch(
    commit: GroupCommit, reader: str, life: int, plan: SparkPlan, opening: str
) -> OpenedBatch:
    """T2: open what is planned, as far as this reader has it or nobody does."""
    tx, line = commit.tx, plan.line
    row = spark_readers.lines(tx, [line], hold=True).get(line)
    if row is not None and row.group != commit.name.group:
        raise BatchFenced(f"the checkpoint belongs to reader group {row.group!r}")
    segments = [span.segment for span in plan.spans]
    claims.hold(tx, commit.name.key, map(unit_of, segments))
    committed = commit.put(ClaimFree(reader, life, tuple(segments)))
    found = _Views(commit.moment, segments)
    views = found.by_life(lambda name: _life(commit, name))
    before = SparkLine() if row is None else decode(row)
    if before.opening is not None and before.opening.batch == plan.batch:
        before = with_spans(tx, line, before)
    made = spark_batches.open_batch(before, plan, opening=opening, life=life, views=views)
    assert made.opening is not None
    put(tx, LineRow(line, commit.name.group, reader, b""), made)
    spark_readers.put_spans(tx, line, map(found.span_row, made.opening.spans))
    return OpenedBatch(made.opening, committed)


def _life(commit: GroupCommit, reader: str) -> int:
    member = commit.state.members.get(reader)
    return OTHER_LIFE if member is None else member.token


# --- transactions of tasks and sinks -------------------------------------------------------


def is_bound(tx: Tx, query: str, batch: int, run: str, line: str, opening: str) -> bool:
    """Whether a read task may go on without a write; only reads."""
    found = stored_line(tx, line)
    if found is None or found.opening is None or found.opening.opening != opening:
        return False
    rows = spark_readers.bindings(tx, query, batch)
    return any((row.run, row.line, row.opening) == (run, line, opening) for row in rows)


def bind(tx: Tx, query: str, batch: int, run: str, line: str, opening: str) -> None:
    """A read task, before its first row; raises if what it is to read was opened again."""
    row = spark_readers.lines(tx, [line], hold=True).get(line)
    found = SparkLine() if row is None else decode(row)
    bound = spark_batches.bind(found, line, opening)
    spark_readers.bind(tx, query, batch, BindingRow(run, line, bound.opening, bound.batch))


def count(tx: Tx, query: str, batch: int, run: str, *, written: bool) -> bool | None:
    """T3, within the transaction of a sink that writes the rows; raises, and they must not be.

    True: count them.  False: they were counted before, and must not be written again.  None: the
    batch has no rows of a group.  ``written`` tells whether the sink knows the batch already.
    """
    rows = spark_readers.bindings(tx, query, batch)
    if not rows:
        return None
    bound: list[SparkBinding] = []
    elsewhere: list[SparkBinding] = []
    for row in rows:
        binding = SparkBinding(row.line, row.opening, row.planned)
        (bound if row.run == run else elsewhere).append(binding)
    stored = spark_readers.lines(tx, [row.line for row in rows], hold=True)
    lines = {name: decode(row) for name, row in stored.items()}
    recorded = spark_readers.counted(tx, query, batch)
    plain = recorded is None and written
    if plain:
        recorded = frozenset()  # it was counted without rows of a group
    found: dict[str, _Views | None] = {}
    for binding in bound:
        opening = lines.get(binding.line, SparkLine()).opening
        if opening is None or opening.opening != binding.opening or recorded is not None:
            continue
        name = binding.line
        found[name], lines[name] = _acked_or_looked_at(tx, stored[name], lines[name])
    views = {
        name: None if seen is None else seen.of_opening(lines[name].opening)
        for name, seen in found.items()
    }
    counted = spark_batches.count(bound, lines, recorded, views, elsewhere)
    if counted.repeated:
        return None if plain else False
    for name, after in counted.lines.items():
        if (seen := found[name]) is not None:
            seen.ack(counted.acks[name])
        put(tx, stored[name], after)
    if bound:
        spark_readers.record(tx, query, batch, counted.batches)
    return True if bound else None


def _acked_or_looked_at(tx: Tx, row: LineRow, line: SparkLine) -> tuple[_Views | None, SparkLine]:
    """None if all was as it was opened, and is acked; else the segments, and the line's spans."""
    name = ReaderGroupName(row.group)
    record = names.require(tx, name.group)[1]
    assert line.opening is not None
    if not line.opening.spans:
        spans = spark_readers.hold_claims(tx, row.line, name.key)
        if spans is not None and ack_prepared(tx, name.key, row.line, spans):
            return None, line
    line = with_spans(tx, row.line, line)
    assert line.opening is not None
    segments = [span.segment for span in line.opening.spans]
    return _Views(GroupMoment(tx, name, record), segments), line


class _Views:
    """Segments as a transaction finds them, with their claims held: no ack is under way."""

    def __init__(self, moment: GroupMoment, segments: Iterable[SegmentId]) -> None:
        wanted = list(segments)
        self._moment = moment
        self._claims = claims.hold(moment.tx, moment.name.key, map(unit_of, wanted))
        self._extents = moment.extents(wanted)
        self._rows = moment.rows(self._extents)
        self._progress = moment.progress_of(self._extents, self._rows)

    def by_life(self, life_of: Callable[[str], int]) -> dict[SegmentId, SegmentView]:
        """Each with the life of its owner, which ``life_of`` knows by the owner's name."""
        return {
            segment: SegmentView(
                None if claim.owner is None else life_of(claim.owner), claim.token, progress.acked()
            )
            for segment, progress in self._progress.items()
            if (claim := self._claims.get(unit_of(segment))) is not None
        }

    def of_opening(self, opening: SparkOpening | None) -> Mapping[SegmentId, SegmentView]:
        """Each with the life of the opening as its owner, if it is still claimed as it was."""
        found: dict[SegmentId, SegmentView] = {}
        if opening is None:
            return found
        for span in opening.spans:
            claim = self._claims.get(unit_of(span.segment))
            progress = self._progress.get(span.segment)
            if claim is None or progress is None:
                continue
            owner = None
            if claim.owner is not None:
                owner = opening.life if claim.token == span.token else OTHER_LIFE
            found[span.segment] = SegmentView(owner, claim.token, progress.acked())
        return found

    def span_row(self, span: OpenSpan) -> SpanRow:
        """A span as it is stored."""
        segment_id = self._extents[span.segment].id
        row = self._rows.get(segment_id)
        was = None if row is None else row.state
        return span_row(span, segment_id, was, self._progress[span.segment])

    def ack(self, acks: Acks) -> None:
        """Add to the progress."""
        before: dict[int, Progress] = {}
        ranges: dict[int, tuple[tuple[int, int], ...]] = {}
        for segment, spans in acks.items():
            segment_id = self._extents[segment].id
            before[segment_id] = self._progress[segment]
            ranges[segment_id] = spans
        ack_spans(self._moment.tx, self._moment.name.key, before, ranges)
