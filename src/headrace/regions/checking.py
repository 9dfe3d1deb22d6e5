"""Whether regions hold the same events, lane by lane."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from headrace.catalog import Tx, lanes, streams
from headrace.catalog.streams import Segment
from headrace.log.log import Log
from headrace.regions import digests
from headrace.regions.digests import Digests, DigestTask, LaneRanges
from headrace.regions.linkable import disagreements
from headrace.regions.records import LinkMember, require_link
from headrace.regions.runtime.neighbours import Neighbours


class LaneCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One lane of a segment, in this region and in another."""

    segment: int
    lane: str
    region: str
    here: int
    """How many events of the lane are known here, trimmed ones included."""
    there: int
    same: bool | None = None
    """Whether the events that both retain are the same; None if they were not read."""

    @property
    def agrees(self) -> bool:
        return self.here == self.there and self.same is not False


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """Whether regions hold the same events."""

    stream: str
    lanes: tuple[LaneCheck, ...]
    differences: tuple[str, ...] = ()
    agrees: bool = True


Digesting = Callable[[Sequence[DigestTask]], Sequence[Digests]]
"""Carries out tasks, and returns what they found, in the same order."""


def check(
    log: Log,
    stream: str,
    neighbours: Neighbours,
    *,
    deep: bool = False,
    carry_out: Digesting | None = None,
) -> CheckReport:
    """Compare a stream with its other regions, lane by lane; ``deep`` reads all events.

    ``carry_out`` reads them elsewhere, in Spark tasks say.
    """
    link = log.catalog.read(lambda tx: require_link(tx, stream))
    found: list[LaneCheck] = []
    differ: list[str] = []

    def by_itself(given: Sequence[DigestTask]) -> list[Digests]:
        of = (log if each.member is None else neighbours.log(each.member) for each in given)
        return [digests.digests_of(its, task) for its, task in zip(of, given, strict=True)]

    for member in link.members:
        if member.state == "lost":
            continue
        other = neighbours.log(member)
        mine, theirs = log.stream(stream), other.stream(stream)
        differ += [f"{member.region}: {what}" for what in disagreements(mine, theirs)]
        sides = _look(log, stream), _look(other, stream)
        lines = list(_ends(member, *sides))
        same = _compared(member, stream, *sides, carry_out or by_itself) if deep else {}
        for line in lines:
            at = line.segment, line.lane
            found.append(msgspec.structs.replace(line, same=same[at]) if deep else line)
    agrees = not differ and all(each.agrees for each in found)
    return CheckReport(stream=stream, lanes=tuple(found), differences=tuple(differ), agrees=agrees)


class _Side(msgspec.Struct, frozen=True):
    """A segment in one region."""

    segment: Segment
    ends: dict[str, int]
    held: LaneRanges


def _look(log: Log, stream: str) -> dict[int, _Side]:
    def look(tx: Tx) -> dict[int, _Side]:
        return {
            segment.number: _Side(segment, lanes.ends(tx, segment.id), digests.held(tx, segment))
            for segment in streams.require(tx, stream).segments
        }

    return log.catalog.read(look, snapshot=True)


def _ends(
    member: LinkMember, mine: dict[int, _Side], theirs: dict[int, _Side]
) -> Iterator[LaneCheck]:
    for number in sorted(mine.keys() & theirs.keys()):
        ours, known = mine[number].ends, theirs[number].ends
        for lane in sorted({*ours, *known}):
            if "!" in lane:
                continue  # it goes to some regions only
            yield LaneCheck(
                segment=number,
                lane=lane,
                region=member.region,
                here=ours.get(lane, 0),
                there=known.get(lane, 0),
            )


def _compared(
    member: LinkMember,
    stream: str,
    mine: dict[int, _Side],
    theirs: dict[int, _Side],
    carry_out: Digesting,
) -> dict[tuple[int, str], bool]:
    """Whether what both retain is the same, by segment and lane."""
    tasks: list[DigestTask] = []
    numbers = sorted(mine.keys() & theirs.keys())
    for number in numbers:
        one, other = mine[number], theirs[number]
        wanted = digests.both(one.held, other.held)
        tasks += digests.tasks(None, stream, one.segment, wanted)
        tasks += digests.tasks(member, stream, other.segment, wanted)
    parts = list(zip(tasks, carry_out(tasks) if tasks else [], strict=True))
    same = {}
    for number in numbers:
        here, there = (
            digests.added(
                part
                for task, part in parts
                if task.number == number and (task.member is None) == is_here
            )
            for is_here in (True, False)
        )
        for lane in {*mine[number].ends, *theirs[number].ends}:
            same[number, lane] = here.get(lane, {}) == there.get(lane, {})
    return same
