"""Counts and checksums of events by lane and block, so that regions can be compared.

What is compared are the events that both regions retain: what one has trimmed, or never had, is
left out on both sides.  The work is cut into tasks that anybody may carry out, in any order, a
Spark job as well: digests of parts of a block add up to that of the block.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from itertools import pairwise

import msgspec

from headrace.catalog import Tx, lanes
from headrace.catalog.streams import Segment
from headrace.log.log import Log
from headrace.log.query import Query
from headrace.regions.core.spans import RangeList
from headrace.regions.records import LinkMember

BLOCK = 1024
TASK_EVENTS = 200_000

LaneRanges = dict[str, RangeList]
"""Sequences by lane."""
Digests = dict[str, dict[int, tuple[int, int]]]
"""How many events of each block, and the sum of their checksums; by lane."""


class DigestTask(msgspec.Struct, frozen=True):
    """Offsets ``start`` to ``end`` - 1 of a segment, here or in another region."""

    member: LinkMember | None
    """None stands for this region."""
    stream: str
    number: int
    start: int
    end: int
    wanted: LaneRanges


def held(tx: Tx, segment: Segment) -> LaneRanges:
    """What is retained of the lanes of a segment that go to every region."""
    found: LaneRanges = {}
    for run in lanes.runs(tx, segment.id, segment.tail, segment.head):
        if "!" in run.lane:
            continue
        first = run.sequence + max(0, segment.tail - run.start)
        ranges = found.setdefault(run.lane, [])
        if ranges and ranges[-1][1] == first:
            ranges[-1] = (ranges[-1][0], run.next_sequence)
        else:
            ranges.append((first, run.next_sequence))
    return found


def both(one: LaneRanges, other: LaneRanges) -> LaneRanges:
    """What two regions hold.

    >>> both({"eu": [(0, 5), (7, 9)], "us": [(0, 1)]}, {"eu": [(2, 8)]})
    {'eu': [(2, 5), (7, 8)]}
    """
    found = {}
    for lane in one.keys() & other.keys():
        theirs, at = sorted(other[lane]), 0
        ranges: RangeList = []
        for lo, hi in sorted(one[lane]):
            while at < len(theirs) and theirs[at][1] <= lo:
                at += 1
            for first, end in theirs[at:]:
                if first >= hi:
                    break
                ranges.append((max(lo, first), min(hi, end)))
        found[lane] = ranges
    return found


def tasks(
    member: LinkMember | None, stream: str, segment: Segment, wanted: LaneRanges
) -> list[DigestTask]:
    """The work of one segment of one region."""
    cuts = [*range(segment.tail, segment.head, TASK_EVENTS), segment.head]
    return [
        DigestTask(member, stream, segment.number, start, end, wanted)
        for start, end in pairwise(cuts)
    ]


def digests_of(log: Log, task: DigestTask) -> Digests:
    """Carry out a task on the log of its region."""
    found: Digests = {}
    for lane, sequence, row in _rows(log, task):
        ranges = task.wanted.get(lane, ())
        if not any(lo <= sequence < hi for lo, hi in ranges):
            continue
        blocks = found.setdefault(lane, {})
        count, total = blocks.get(sequence // BLOCK, (0, 0))
        blocks[sequence // BLOCK] = count + 1, total + zlib.crc32(row, sequence & 0xFFFFFFFF)
    return found


def added(parts: Iterable[Digests]) -> Digests:
    """The digests of all parts together."""
    found: Digests = {}
    for part in parts:
        for lane, blocks in part.items():
            own = found.setdefault(lane, {})
            for block, (count, total) in blocks.items():
                known = own.get(block, (0, 0))
                own[block] = known[0] + count, known[1] + total
    return found


def _rows(log: Log, task: DigestTask) -> Iterator[tuple[str, int, bytes]]:
    start, until = {task.number: task.start}, {task.number: task.end}
    query = Query(segments=[task.number], start=start, until=until)
    for batch in log.read(task.stream, query):
        origins = batch.column("origin")
        names = origins.field("region").to_pylist()
        sequences = origins.field("sequence").to_pylist()
        stamps = batch.column("timestamp").view("int64").to_pylist()
        columns: list[list[object]] = [
            batch.column(name).to_pylist() for name in ("subject", "key", "value", "headers")
        ]
        for at in range(batch.num_rows):
            row = (stamps[at], *(column[at] for column in columns))
            yield names[at], sequences[at], repr(row).encode()
