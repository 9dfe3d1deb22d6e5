"""The cores of a segment together: what becomes of markers, updates and progress."""

from __future__ import annotations

import pytest

from headrace.errors import (
    CursorDeletedError,
    RegionError,
    StaleUpdateError,
    UnknownRegionError,
    UpdateAheadError,
)
from headrace.regions.core.cursor import CursorMessage, OriginCursor
from headrace.regions.core.effects import Append, MarkerRefused, RegionEffect, SnapshotSettings
from headrace.regions.core.markers import (
    Command,
    LaneEnd,
    LaneHole,
    Marker,
    RegionPosition,
    RequestMarker,
    ResponseMarker,
    SnapshotMarker,
    UpdateMarker,
)
from headrace.regions.core.progress import CursorDelta, LaneDelta
from headrace.regions.core.segment import LinkedSegment
from headrace.regions.core.stamps import Life, Stamp
from headrace.regions.core.updates import SnapshotCursor


class Log:
    """A segment of region b, linked to a, with its log."""

    def __init__(self) -> None:
        self.records: list[Marker | None] = []
        self.segment = LinkedSegment("b", ["a"], self.between, SnapshotSettings(interval_ms=0))
        self.effects: list[RegionEffect] = []

    def between(self, lo: int, hi: int) -> list[SnapshotMarker]:
        return [m for m in self.records[lo:hi] if isinstance(m, SnapshotMarker)]

    def events(self, lane: str, count: int) -> None:
        offset, sequence = len(self.records), self.segment.log.next_sequence(lane)
        self.records += [None] * count
        self.segment.events_appended(offset, lane, sequence, count)

    def marker(self, marker: Marker) -> None:
        self.records.append(marker)
        self.do(self.segment.marker_appended(len(self.records) - 1, marker))

    def do(self, effects: list[RegionEffect]) -> None:
        self.effects += effects
        for effect in effects:
            if isinstance(effect, Append):
                self.marker(effect.marker)

    def kinds(self) -> list[str]:
        return [type(m).__name__ if m is not None else "event" for m in self.records]


def group(log: Log) -> SnapshotCursor:
    return log.segment.snapshot_groups["g"]


def test_missing_group_is_created_by_an_update_at_exactly_its_place() -> None:
    log = Log()
    log.events("a", 3)
    log.marker(RequestMarker("S1", "a", 1))
    log.events("a", 1)
    log.marker(UpdateMarker("g", "a", "S1", (RegionPosition("b", 3),), (LaneEnd("a", 3),)))
    assert group(log).acked.missing(len(log.records)) == ((5, 6),)
    assert log.kinds()[4] == "ResponseMarker"


def test_update_without_a_place_for_this_region_creates_nothing() -> None:
    log = Log()
    log.marker(UpdateMarker("g", "a", "S1", (RegionPosition("c", 3),)))
    assert log.segment.snapshot_groups == {}


def test_cursor_moved_by_an_update_sends_its_own_in_turn() -> None:
    log = Log()
    log.segment.snapshot_groups["g"] = SnapshotCursor("b", "g", log.segment.log)
    log.events("a", 1)
    log.do(log.segment.tick("S1", 0, ["a"]))
    log.marker(ResponseMarker("S1", "b", 1, "a", 8))
    assert log.kinds() == ["event", "RequestMarker", "ResponseMarker", "SnapshotMarker"]
    log.marker(UpdateMarker("g", "a", "X", (RegionPosition("b", 0),), (LaneEnd("a", 1),)))
    assert log.kinds()[-1] == "UpdateMarker"
    assert log.records[-1] == UpdateMarker(
        "g", "b", "S1", (RegionPosition("a", 8),), (LaneEnd("a", 1),)
    )


def test_snapshot_that_becomes_known_sends_the_update_of_a_quiet_stream() -> None:
    log = Log()
    log.segment.snapshot_groups["g"] = SnapshotCursor("b", "g", log.segment.log)
    log.events("b", 1)
    log.do(log.segment.tick("S1", 0, ["a"]))
    log.do(log.segment.ack("g", 0))
    assert "UpdateMarker" not in log.kinds()
    log.marker(ResponseMarker("S1", "b", 1, "a", 8))
    assert log.kinds()[-2:] == ["SnapshotMarker", "UpdateMarker"]


@pytest.mark.parametrize(
    "marker",
    [
        RequestMarker("S1", "z", 1),
        UpdateMarker("g", "z", "S1", (RegionPosition("b", 0),)),
        UpdateMarker("g", "a", "S1", (RegionPosition("b", 99),)),
        ResponseMarker("S9", "b", 1, "a", 4),
        SnapshotMarker("S1", 77, ()),
    ],
    ids=["unknown region", "unknown source", "ahead", "late", "out of order"],
)
def test_marker_that_makes_no_sense_is_refused_and_walked_over(marker: Marker) -> None:
    log = Log()
    log.segment.snapshot_groups["g"] = SnapshotCursor("b", "g", log.segment.log)
    log.events("a", 1)
    log.marker(marker)
    (effect,) = log.effects
    assert isinstance(effect, MarkerRefused)
    assert isinstance(effect.error, RegionError)
    assert group(log).acked.missing(2) == ((0, 1),)
    assert group(log).applied is None
    log.do(log.segment.ack("g", 0))
    assert group(log).mark_delete == 1


def test_update_due_is_sent_even_when_the_marker_that_moved_the_cursor_is_refused() -> None:
    log = Log()
    log.segment.snapshot_groups["g"] = SnapshotCursor("b", "g", log.segment.log)
    log.segment.events_restored(0, "a", 0)
    log.segment.marker_restored(1, ResponseMarker("S1", "b", 1, "a", 4))
    snapshot = SnapshotMarker("S1", 1, (RegionPosition("a", 4),))
    log.segment.marker_restored(2, snapshot)
    log.records += [None, ResponseMarker("S1", "b", 1, "a", 4), snapshot]
    group(log).ack(0, 3)
    log.marker(ResponseMarker("S1", "b", 1, "a", 4))
    assert [type(effect) for effect in log.effects] == [Append, MarkerRefused]


def test_region_that_left_is_still_known() -> None:
    log = Log()
    log.events("a", 1)
    log.segment.members_changed(["c"])
    log.marker(UpdateMarker("g", "a", "S1", (RegionPosition("b", 0),), (LaneEnd("a", 1),)))
    assert group(log).applied == 0


def message(source: str = "a", floor: int = 1) -> CursorMessage:
    lanes = (LaneDelta("a", Stamp(), floor),)
    return CursorMessage(source, 1, CursorDelta("g", Life(), lanes))


def test_missing_group_by_origin_is_created_at_its_place() -> None:
    log = Log()
    log.events("b", 1)
    log.events("a", 2)
    merged, receipt = log.segment.receive(message())
    assert merged.changed
    assert receipt.revision == 1
    cursor = log.segment.origin_groups["g"]
    assert cursor.acked.missing(3) == ((0, 1), (2, 3))
    log.events("a", 1)
    assert cursor.acked.missing(4) == ((0, 1), (2, 4))


def test_progress_of_an_unknown_region_or_broken_creates_no_group() -> None:
    log = Log()
    with pytest.raises(UnknownRegionError, match="b is linked to a"):
        log.segment.receive(message("z"))
    with pytest.raises(RegionError):
        log.segment.receive(message(floor=-3))
    assert log.segment.origin_groups == {}


def test_no_snapshot_is_taken_for_groups_that_need_none() -> None:
    log = Log()
    log.events("a", 1)
    log.segment.origin_groups["g"] = OriginCursor("b", "g", log.segment.log)
    assert log.segment.tick("S1", 0, ["a"]) == []


def test_trimmed_log_is_restored_and_goes_on() -> None:
    log = Log()
    segment = log.segment
    segment.snapshot_groups["g"] = SnapshotCursor("b", "g", segment.log)
    segment.origin_groups["g"] = OriginCursor("b", "g", segment.log)
    log.events("c", 1)
    log.events("a", 4)
    log.marker(ResponseMarker("S1", "b", 1, "a", 4))
    log.marker(SnapshotMarker("S1", 5, ()))
    log.events("a", 1)
    segment.origin_groups["g"].ack(4)
    segment.trimmed(3)
    assert group(log).acked.floor == 3
    assert segment.origin_groups["g"].acked.missing(8) == ((3, 4), (7, 8))
    assert segment.origin_groups["g"].progress.whole().lanes == (
        LaneDelta("a", Stamp(), 0, ((3, 4),)),
    )
    again = LinkedSegment(
        "b", ["a"], log.between, first=segment.log.first, lanes=segment.log.retained()
    )
    again.events_restored(3, "a", 2, 2)
    for offset in (5, 6):
        marker = log.records[offset]
        assert marker is not None
        again.marker_restored(offset, marker)
    again.events_restored(7, "a", 4)
    assert again.log.seen() == segment.log.seen() == (LaneEnd("a", 5), LaneEnd("c", 1))
    assert again.index.newest == 5
    restored = OriginCursor(
        "b", "g", again.log, restored=segment.origin_groups["g"].progress.whole()
    )
    assert restored.acked == segment.origin_groups["g"].acked


def snapshot_passed(log: Log) -> UpdateMarker:
    """The next snapshot of b, and the update that a cursor which has passed it sends."""
    number = str(len(log.records))
    log.do(log.segment.tick(f"S{number}", len(log.records), ["a"]))
    log.marker(ResponseMarker(f"S{number}", "b", 1, "a", 8))
    log.do(log.segment.trimmed(log.segment.log.first))
    update = log.records[-1]
    assert isinstance(update, UpdateMarker)
    return update


def other_side(*lanes: tuple[str, int]) -> LinkedSegment:
    """Region a with so many events of each lane, and nothing acked of them."""
    segment = LinkedSegment("a", ["b"], lambda _lo, _hi: [])
    segment.create("g")
    for lane, count in lanes:
        segment.events_appended(segment.log.end, lane, 0, count)
    return segment


def test_what_retention_removed_unconsumed_moves_no_cursor_elsewhere() -> None:
    log = Log()
    log.segment.create("g")
    log.events("a", 6)
    log.do(log.segment.ack("g", 4, 6))
    log.do(log.segment.ack("g", 1))
    log.do(log.segment.trimmed(3))
    log.do(log.segment.ack("g", 3))
    update = snapshot_passed(log)
    assert update.holes == (LaneHole("a", 0, 1), LaneHole("a", 2, 3))
    a = other_side(("a", 9))
    a.apply(update)
    assert a.snapshot_groups["g"].acked.missing(9) == ((0, 1), (2, 3), (6, 9))


def test_what_another_region_consumed_is_no_hole_any_more() -> None:
    log = Log()
    log.segment.create("g")
    log.events("a", 3)
    log.do(log.segment.trimmed(3))
    assert snapshot_passed(log).holes == (LaneHole("a", 0, 3),)
    log.marker(UpdateMarker("g", "a", "S9", (RegionPosition("b", 2),), (LaneEnd("a", 2),)))
    log.events("a", 1)
    log.do(log.segment.ack("g", log.segment.log.end - 1))
    assert snapshot_passed(log).holes == (LaneHole("a", 2, 3),)


def test_ack_of_what_was_trimmed_in_flight_closes_its_hole() -> None:
    log = Log()
    log.segment.create("g")
    log.events("a", 3)
    log.do(log.segment.trimmed(3))
    log.do(log.segment.ack("g", 0, 2))
    assert snapshot_passed(log).holes == (LaneHole("a", 2, 3),)


def test_update_of_a_region_without_the_history_leaves_the_history_alone() -> None:
    log = Log()
    log.segment.create("g")
    log.segment.skip_to("a", 4)
    log.events("a", 2)
    log.do(log.segment.ack("g", 0, 2))
    update = snapshot_passed(log)
    a = other_side(("a", 9))
    a.apply(update)
    assert a.snapshot_groups["g"].acked.missing(9) == ((0, 4), (6, 9))


def test_group_that_begins_behind_a_trim_speaks_for_nothing_before_it() -> None:
    log = Log()
    log.events("a", 4)
    log.segment.trimmed(3)
    log.segment.create("g")
    log.do(log.segment.ack("g", 3))
    update = snapshot_passed(log)
    a = other_side(("a", 9))
    a.apply(update)
    assert a.snapshot_groups["g"].acked.missing(9) == ((0, 3), (4, 9))


def test_seek_everywhere_acks_nothing_that_never_was_here_and_keeps_it() -> None:
    log = Log()
    log.segment.create("g")
    log.segment.skip_to("a", 4)
    log.events("a", 4)
    (told, *_) = log.segment.seek_everywhere("g", 1)
    assert isinstance(told, Append)
    a = other_side(("a", 8))
    a.ack("g", 2)
    a.ack("g", 7)
    a.marker_appended(8, told.marker)
    assert a.snapshot_groups["g"].acked.missing(8) == ((0, 2), (3, 4), (6, 8))


def test_log_with_gaps_is_restored_and_goes_on() -> None:
    log = Log()
    log.events("a", 2)
    for sequence in (3, 5):
        log.segment.skip_to("a", sequence)
    log.events("a", 1)
    log.segment.skip_to("a", 8)
    again = LinkedSegment("b", ["a"], log.between, absent=log.segment.log.absent)
    again.events_restored(0, "a", 0, 2)
    again.events_restored(2, "a", 5)
    assert again.log.seen() == log.segment.log.seen() == (LaneEnd("a", 8),)
    assert again.log.absent == {"a": [(2, 5), (6, 8)]}


# --- commands to groups under snapshots ---

FIRST = Life(Stamp(1, "a"))


def stale(position: int, life: Life | None = None) -> UpdateMarker:
    at = (RegionPosition("b", position),)
    return UpdateMarker("g", "a", "S1", at, (LaneEnd("a", 9), LaneEnd("b", 9)), life or Life())


def two_events() -> Log:
    log = Log()
    log.events("a", 2)
    log.segment.create("g").ack(0, 2)
    return log


def test_seek_of_another_region_sets_the_cursor_by_origin() -> None:
    log = two_events()
    log.events("b!", 1)
    group(log).ack(2)
    log.marker(Command("g", "a", FIRST, (LaneEnd("a", 1),)))
    assert group(log).acked.missing(4) == ((1, 2),)
    log.marker(Command("g", "a", FIRST, (LaneEnd("a", 2),)))  # the same life again
    assert group(log).acked.missing(4) == ((1, 2),)


def test_update_from_before_a_seek_does_not_undo_it() -> None:
    log = two_events()
    log.marker(Command("g", "a", FIRST))
    log.marker(stale(1))
    assert isinstance(log.effects[-1], MarkerRefused)
    assert isinstance(log.effects[-1].error, StaleUpdateError)
    assert group(log).mark_delete == -1
    log.marker(stale(0, FIRST))
    assert group(log).mark_delete == 0


def test_command_that_an_update_overtook_adds_its_own_once() -> None:
    log = two_events()
    log.marker(stale(0, FIRST))
    assert group(log).acked.missing(3) == ((1, 2),)
    command = Command("g", "a", FIRST, (LaneEnd("a", 2),))
    log.marker(command)
    assert group(log).mark_delete == 3
    log.do(log.segment.seek("g", -1))
    log.marker(command)
    assert group(log).mark_delete == -1


def test_seek_everywhere_is_told_to_all_and_updates_start_again() -> None:
    log = two_events()
    log.do(log.segment.tick("S1", 0, ["a"]))
    log.marker(ResponseMarker("S1", "b", 1, "a", 8))
    assert log.kinds()[-1] == "UpdateMarker"
    log.do(log.segment.seek_everywhere("g", 0))
    command = log.records[-1]
    assert command == Command("g", "b", Life(Stamp(1, "b")), (LaneEnd("a", 1),))
    log.do(log.segment.ack("g", 1))
    sent = log.records[-1]
    assert isinstance(sent, UpdateMarker)
    assert sent.life == Life(Stamp(1, "b"))
    with pytest.raises(UpdateAheadError):
        log.segment.seek_everywhere("g", 99)
    assert log.segment.lives["g"] == Life(Stamp(1, "b"))


def test_deleted_group_is_not_brought_back_by_old_updates_but_created_anew() -> None:
    log = two_events()
    log.do(log.segment.delete("g"))
    assert log.kinds()[-1] == "Command"
    log.marker(stale(1))
    assert log.segment.snapshot_groups == {}
    with pytest.raises(CursorDeletedError, match="b does not have it"):
        log.segment.delete("g")
    assert log.segment.create("g").life == Life(Stamp(2, "b"))
    assert group(log).acked.missing(4) == ((0, 2),)


def test_of_two_commands_at_the_same_time_the_same_one_wins() -> None:
    earlier = Command("g", "a", Life(Stamp(1, "a")), (LaneEnd("a", 2),))
    later = Command("g", "c", Life(Stamp(1, "c")), (LaneEnd("a", 1),))
    for order in ((earlier, later), (later, earlier)):
        log = two_events()
        log.segment.members_changed(["a", "c"])
        for command in order:
            log.marker(command)
        assert group(log).life == later.life
        assert group(log).acked.missing(4) == ((1, 2),)


def test_command_of_an_unknown_region_is_refused() -> None:
    log = two_events()
    log.marker(Command("g", "z", Life(Stamp(1, "z"), deleted=True)))
    assert isinstance(log.effects[-1], MarkerRefused)
    assert group(log).mark_delete == 2
