"""What updates do to a group's cursor under snapshots."""

from __future__ import annotations

import pytest

from headrace.errors import UnknownRegionError, UpdateAheadError
from headrace.groups.progress.ranges import AckedRanges
from headrace.regions.core.index import SnapshotIndex
from headrace.regions.core.markers import LaneEnd, RegionPosition, SnapshotMarker, UpdateMarker
from headrace.regions.core.origins import OriginMap
from headrace.regions.core.updates import SnapshotCursor


def log_of(*lanes: str) -> OriginMap:
    """A log with one event per lane named, or a marker for an empty name."""
    log = OriginMap()
    for offset, lane in enumerate(lanes):
        if lane:
            log.events(offset, lane, log.next_sequence(lane))
        else:
            log.marker(offset)
    return log


def update(position: int, **seen: int) -> UpdateMarker:
    ends = tuple(LaneEnd(lane.replace("_", "!"), n) for lane, n in seen.items())
    return UpdateMarker("g", "a", "S1", (RegionPosition("b", position),), ends)


def test_update_acks_up_to_its_position() -> None:
    cursor = SnapshotCursor("b", "g", log_of("a", "b", "", "a", "b"))
    assert cursor.mark_delete == -1
    assert cursor.apply(update(3, a=2, b=1)) == 3
    assert (cursor.mark_delete, cursor.applied) == (3, 3)


def test_cursor_never_moves_back() -> None:
    cursor = SnapshotCursor("b", "g", log_of("a", "a", "a", "a"))
    cursor.ack(0, 4)
    assert cursor.apply(update(1, a=2)) == 0
    assert (cursor.mark_delete, cursor.applied) == (3, 1)
    cursor.apply(update(3, a=4))
    cursor.apply(update(2, a=3))
    assert cursor.applied == 3


def test_events_that_stay_in_a_region_are_kept_as_holes() -> None:
    cursor = SnapshotCursor("b", "g", log_of("b!", "a", "b!", "a", "b!c"))
    cursor.apply(update(4, a=2))
    assert cursor.mark_delete == -1
    assert cursor.acked.missing(5) == ((0, 1), (2, 3), (4, 5))
    cursor.ack(0)
    assert cursor.mark_delete == 1
    cursor.apply(update(4, a=2))
    assert cursor.acked.missing(5) == ((2, 3), (4, 5))


def test_what_the_source_had_not_seen_is_kept() -> None:
    cursor = SnapshotCursor("b", "g", log_of("c", "a", "c", "c"))
    cursor.apply(update(3, a=1, c=1))
    assert cursor.acked.missing(4) == ((2, 4),)


def test_update_for_other_regions_changes_nothing() -> None:
    cursor = SnapshotCursor("d", "g", log_of("a"))
    assert cursor.apply(update(0, a=1)) == 0
    assert cursor.applied is None


def test_impossible_updates_are_refused_and_change_nothing() -> None:
    cursor = SnapshotCursor("b", "g", log_of("a", "a"))
    with pytest.raises(UpdateAheadError, match="the log ends at 2") as refused:
        cursor.apply(update(2, a=3))
    assert "group 'g' in b is at -1" in str(refused.value)
    own = UpdateMarker("g", "b", "S1", (RegionPosition("b", 1),))
    with pytest.raises(UnknownRegionError, match="this region's own"):
        cursor.apply(own)
    for call in (lambda: cursor.ack(2), lambda: cursor.seek(2), lambda: cursor.seek(-2)):
        with pytest.raises(UpdateAheadError):
            call()
    assert (cursor.mark_delete, cursor.applied) == (-1, None)


def test_seek_sets_the_cursor_and_walks_over_markers() -> None:
    cursor = SnapshotCursor("b", "g", log_of("a", "", "a", "", "a"))
    cursor.ack(0, 5)
    cursor.seek(-1)
    assert cursor.acked.missing(5) == ((0, 1), (2, 3), (4, 5))
    cursor.seek(2)
    assert cursor.mark_delete == 3


def test_each_usable_snapshot_is_sent_once_the_newest_first() -> None:
    taken = {2: SnapshotMarker("S1", 1, (RegionPosition("b", 7),)), 5: SnapshotMarker("S2", 4, ())}
    index = SnapshotIndex(lambda lo, hi: [taken[at] for at in range(lo, hi) if at in taken])
    cursor = SnapshotCursor("a", "g", log_of("a", "a", "", "a", "a", "", "a"))
    cursor.ack(0, 2)
    assert cursor.next_update(index) is None
    index.add(taken[2], 2)
    sent = cursor.next_update(index)
    assert sent is not None
    assert (sent.snapshot_id, sent.position_in("b"), sent.position_in("c")) == ("S1", 7, None)
    assert cursor.next_update(index) is None
    index.add(taken[5], 5)
    assert cursor.next_update(index) is None
    cursor.ack(3, 5)
    sent = cursor.next_update(index)
    assert sent is not None
    assert sent.snapshot_id == "S2"


def test_restored_cursor_goes_on_where_it_was() -> None:
    log = log_of("a", "a", "", "a")
    cursor = SnapshotCursor("b", "g", log, acked=AckedRanges(floor=2), used=1, applied=0)
    assert (cursor.mark_delete, cursor.used, cursor.applied) == (2, 1, 0)
