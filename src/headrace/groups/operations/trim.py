"""Trimming a stream that groups read: what would go, and who would lose what.

Retention follows a policy that somebody chose.  A trim by hand does not, and it cannot be taken
back: so what it takes from groups that have not read it yet is counted first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

import msgspec

from headrace.catalog import Tx, batches, epochs, markers, streams
from headrace.catalog.streams import Segment, Stream
from headrace.groups import decisions
from headrace.groups.decisions import Decision, What, ranges
from headrace.groups.lag import is_exact
from headrace.groups.operations.targets import Target, all_targets, spots
from headrace.groups.progress.ranges import AckedRanges
from headrace.log import internal
from headrace.log.log import Log

EPOCH = "epoch"
"""The kind of a named subscription to epochs, which is no group, and loses like one."""


class SegmentCut(msgspec.Struct, frozen=True):
    """What goes of one segment; ``first`` is the first offset that stays."""

    segment: int
    first: int
    removed_events: int


class GroupLoss(msgspec.Struct, frozen=True):
    """What a group would lose, or has lost, before it acked it."""

    group: str
    kind: str
    lost_events: int
    exact: bool
    """False: the number is an upper bound, since the group has a filter that may exclude some."""
    segments: tuple[int, ...]


class TrimPlan(msgspec.Struct, frozen=True):
    """What a trim does, or would do."""

    stream: str
    cuts: tuple[SegmentCut, ...]
    losses: tuple[GroupLoss, ...]

    @property
    def removed_events(self) -> int:
        """How many events go."""
        return sum(cut.removed_events for cut in self.cuts)


def plan(log: Log, stream: str, before: Mapping[int, int] | datetime | None = None) -> TrimPlan:
    """What ``log.trim`` would remove now, and what groups would lose; changes nothing."""
    found = log.stream(stream)
    if before is not None or found.name.endswith(internal.progress_log("")):
        internal.refuse(found, "trimmed")  # else its own policy is applied
    cuts = log.cuts(stream, before)
    planned = log.catalog.read(lambda tx: _planned(tx, stream, cuts), snapshot=True)
    if found.config.epochs is None or not found.config.epochs.stored or not planned.removed_events:
        return planned
    losses = (*planned.losses, *_of_epochs(log, planned))
    return msgspec.structs.replace(planned, losses=losses)


def _of_epochs(log: Log, planned: TrimPlan) -> Iterable[GroupLoss]:
    """What named subscriptions have not acked of complete epochs: some of it may go."""
    from headrace.epochs.runtime.status import status  # loaded where there are epochs

    for one in status(log, planned.stream).subscriptions:
        if one.rows or one.at_least:
            most = planned.removed_events if one.at_least else one.rows
            yield GroupLoss(
                group=f"{epochs.record_name(planned.stream)}/{one.name}",
                kind=EPOCH,
                lost_events=min(most, planned.removed_events),
                exact=False,
                segments=tuple(cut.segment for cut in planned.cuts if cut.removed_events),
            )


def trim(log: Log, stream: str, before: Mapping[int, int] | datetime | None = None) -> TrimPlan:
    """Trim a stream; each group that loses something has it in its decisions."""
    planned = plan(log, stream, before)
    tails = {segment.number: segment.tail for segment in log.stream(stream).segments}
    firsts = log.trim(stream, {cut.segment: cut.first for cut in planned.cuts})
    if planned.losses:
        log.catalog.write(
            lambda tx: _record(tx, planned),
            locks=[lock for each in planned.losses for lock in decisions.locks(_told_to(each))],
        )
    cuts = tuple(
        SegmentCut(number, first, first - tails.get(number, 0))
        for number, first in sorted(firsts.items())
    )
    return msgspec.structs.replace(planned, cuts=cuts)


def _planned(tx: Tx, name: str, cuts: Mapping[int, int]) -> TrimPlan:
    stream = streams.require(tx, name)
    firsts = {
        segment.number: _first(tx, segment, cuts.get(segment.number, 0))
        for segment in stream.segments
    }
    return TrimPlan(
        stream=name,
        cuts=tuple(
            SegmentCut(
                s.number, firsts[s.number], markers.events_in(tx, s, [(s.tail, firsts[s.number])])
            )
            for s in stream.segments
        ),
        losses=tuple(_losses(tx, stream, firsts)),
    )


def _first(tx: Tx, segment: Segment, cut: int) -> int:
    """Where a segment begins after a cut: only whole batches go."""
    if cut <= segment.tail:
        return segment.tail
    kept = batches.first_ending_after(tx, segment.id, cut)
    return segment.head if kept is None else min(kept.start, segment.head)


def _losses(tx: Tx, stream: Stream, firsts: Mapping[int, int]) -> Iterable[GroupLoss]:
    for target in all_targets(tx):
        if not any(reader.stream == stream.name for reader in target.readers):
            continue
        gaps = _unacked(tx, target, stream, firsts)
        lost = {
            segment.number: markers.events_in(tx, segment, gaps[segment.number])
            for segment in stream.segments
            if segment.number in gaps
        }
        total = sum(lost.values())
        if total:
            yield GroupLoss(
                group=target.name,
                kind=target.kind,
                lost_events=total,
                exact=is_exact([target.filter], stream),
                segments=tuple(number for number, count in lost.items() if count),
            )


def _unacked(
    tx: Tx, target: Target, stream: Stream, firsts: Mapping[int, int]
) -> dict[int, list[tuple[int, int]]]:
    """By segment, what some reader of a group has not acked below an offset, each offset once."""
    found: dict[int, AckedRanges] = {}
    for spot in spots(tx, target):
        first = min(firsts.get(spot.segment.number, 0), spot.segment.head)
        if spot.stream.id == stream.id and first > spot.segment.tail:
            gaps = found.setdefault(spot.segment.number, AckedRanges())
            for lo, hi in spot.progress.acked().missing(first):
                if lo < hi:
                    gaps.ack_range(lo, hi)
    return {
        number: [(0, gaps.floor), *gaps.to_tuples()] if gaps.floor else [*gaps.to_tuples()]
        for number, gaps in found.items()
    }


def _told_to(loss: GroupLoss) -> str:
    """In whose record it stands: subscriptions to epochs share that of their stream."""
    return loss.group.rpartition("/")[0] if loss.kind == EPOCH else loss.group


def _record(tx: Tx, planned: TrimPlan) -> None:
    for loss in planned.losses:
        count = f"{'' if loss.exact else 'up to '}{loss.lost_events:,}"
        decisions.record(
            tx,
            _told_to(loss),
            [
                Decision(
                    what=What.TRIMMED_PAST,
                    reason=f"stream {planned.stream} was trimmed by hand: {count} events are gone "
                    "that the group had not acked",
                    units=ranges([f"{planned.stream}/{number}" for number in loss.segments]),
                )
            ],
        )
