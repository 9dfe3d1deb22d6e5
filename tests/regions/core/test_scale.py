"""What a change costs depends on what changes, not on all that is known already.

Counted in steps of Python and not in seconds, so that it is the same on every machine; the times
have their targets in ``make bench``.
"""

from __future__ import annotations

from bench.cores_regions import RUN_EVENTS, delta, every_other, two_lanes
from headrace.regions.core.cursor import OriginCursor
from headrace.regions.core.effects import Append
from headrace.regions.core.index import SnapshotIndex
from headrace.regions.core.markers import (
    Marker,
    RegionPosition,
    ResponseMarker,
    SnapshotMarker,
    UpdateMarker,
)
from headrace.regions.core.origins import OriginMap
from headrace.regions.core.segment import LinkedSegment
from tests.support import steps

CHANGES = 100
FEW, MANY = 200, 4_000


def cursor_beside(ranges: int) -> OriginCursor:
    """A cursor that knows so many ranges."""
    cursor = OriginCursor("a", "g", two_lanes(4 * MANY + 20 * CHANGES))
    cursor.merge(delta("b", every_other(0, ranges)), "b")
    return cursor


def test_joining_costs_what_changes_and_not_what_is_known() -> None:
    def joining(ranges: int) -> int:
        cursor = cursor_beside(ranges)
        news = delta("b", every_other(MANY, CHANGES))
        return steps(lambda: cursor.merge(news, "b"))

    assert joining(MANY) <= 1.5 * joining(FEW)


def test_an_ack_costs_the_same_beside_many_ranges() -> None:
    def acks(ranges: int) -> int:
        cursor = cursor_beside(ranges)
        first = 2 * RUN_EVENTS

        def work() -> None:
            for offset in range(first, first + RUN_EVENTS):
                cursor.ack(offset)

        return steps(work)

    assert acks(MANY) <= 1.5 * acks(FEW)


def test_finding_a_snapshot_costs_little_more_among_many() -> None:
    def finding(snapshots: int) -> int:
        taken: dict[int, SnapshotMarker] = {}
        index = SnapshotIndex(lambda lo, hi: [taken[at] for at in range(lo, hi) if at in taken])
        for number in range(snapshots):
            local = number * 10
            taken[local + 1] = SnapshotMarker(str(number), local, (RegionPosition("b", local),))
            index.add(taken[local + 1], local + 1)
        return steps(lambda: [index.newest_at(7 * k) for k in range(CHANGES)])

    assert finding(10 * MANY) <= 1.1 * finding(MANY)


def test_a_snapshot_costs_every_group_the_same() -> None:
    def taking(groups: int) -> int:
        records: list[Marker | None] = [None]
        segment = LinkedSegment(
            "a", ["b"], lambda lo, hi: [m for m in records[lo:hi] if isinstance(m, SnapshotMarker)]
        )
        for number in range(groups):
            segment.create(f"g{number}")
        segment.events_appended(0, "a", 0)
        for number in range(groups):
            segment.ack(f"g{number}", 0)

        def told(markers: list[Marker]) -> None:
            first = len(records)
            records.extend(markers)
            effects = segment.markers_appended(first, markers)
            written = [effect.marker for effect in effects if isinstance(effect, Append)]
            if written:
                told(written)

        def work() -> None:
            started = segment.controller.start("S1", 0)
            told([effect.marker for effect in started if isinstance(effect, Append)])
            told([ResponseMarker("S1", "a", 1, "b", 8)])

        counted = steps(work)
        assert sum(isinstance(each, UpdateMarker) for each in records) == groups
        return counted

    assert taking(400) <= 4.5 * taking(100)


def test_events_that_were_acked_before_they_came_cost_what_is_acked_of_them() -> None:
    def coming(events: int) -> int:
        cursor = OriginCursor("a", "g", OriginMap())
        cursor.merge(delta("b", every_other(0, CHANGES)), "b")
        return steps(lambda: cursor.events_appended(0, "b", 0, events))

    assert coming(1_000_000) <= 1.1 * coming(2 * CHANGES)
