"""Origin cursors: the same place in every region, whatever the order of the log there."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import (
    CursorDeletedError,
    HeadraceError,
    RegionError,
    UnknownRegionError,
    UpdateAheadError,
)
from headrace.regions.core import cursor as cursors
from headrace.regions.core.cursor import CursorMessage, CursorReceipt, OriginCursor
from headrace.regions.core.origins import OriginMap, lane_of, lane_reaches
from headrace.regions.core.progress import CursorDelta, LaneDelta
from headrace.regions.core.stamps import Life, Stamp


class Region:
    """A log of (lane, sequence) and a cursor over it."""

    def __init__(self, name: str, *, journal_max: int = 4096) -> None:
        self.name = name
        self.log = OriginMap()
        self.events: list[tuple[str, int]] = []
        self.cursor = OriginCursor(name, "g", self.log, journal_max=journal_max)

    def append(self, lane: str, count: int = 1) -> None:
        for _ in range(count):
            sequence, offset = self.log.next_sequence(lane), self.log.end
            self.log.events(offset, lane, sequence)
            self.cursor.events_appended(offset, lane, sequence)
            self.events.append((lane, sequence))

    def trim(self, first: int) -> None:
        self.cursor.trim(first)
        self.log.trim(first)

    def send(self, other: Region) -> bool:
        """Bring another region up to date; whether there was anything to say."""
        message = self.cursor.message_for(other.name)
        if message is None:
            return False
        self.cursor.receipt(other.cursor.receive(message)[1])
        return True

    def pending(self) -> list[tuple[str, int]]:
        return [e for offset, e in enumerate(self.events) if offset not in self.cursor.acked]


def pair() -> tuple[Region, Region]:
    """The same four events in two regions, in another order."""
    a, b = Region("a"), Region("b")
    for lane in ("a", "a", "b", "b"):
        a.append(lane)
    for lane in ("b", "a", "b", "a"):
        b.append(lane)
    return a, b


def test_acks_out_of_order_are_the_same_acks_elsewhere() -> None:
    a, b = pair()
    a.cursor.ack(1)
    a.cursor.ack(2)
    a.send(b)
    assert b.pending() == [("a", 0), ("b", 1)]
    assert a.send(b) is False


def test_acks_that_come_before_their_event_apply_when_it_comes() -> None:
    a, b = pair()
    a.append("a", 3)
    a.cursor.ack(4)
    a.cursor.ack(6)
    a.send(b)
    b.append("a", 3)
    assert b.pending() == [("b", 0), ("a", 0), ("b", 1), ("a", 1), ("a", 3)]


def test_progress_finds_its_way_around_a_broken_link() -> None:
    a, b = pair()
    c = Region("c")
    c.append("a", 2)
    a.cursor.ack(0)
    a.send(b)
    assert b.send(c)
    assert c.pending() == [("a", 1)]


def test_what_a_region_said_is_not_said_back_to_it() -> None:
    a, b = pair()
    b.send(a)
    a.send(b)
    a.cursor.ack(0)
    a.send(b)
    assert b.cursor.message_for("a") is None
    assert b.cursor.behind("a") == 0


def test_region_further_behind_than_the_journal_is_sent_the_whole() -> None:
    a, b = Region("a", journal_max=2), Region("b")
    a.append("a", 20)
    a.send(b)
    for offset in range(0, 20, 2):
        a.cursor.ack(offset)
    b.append("a", 20)
    a.send(b)
    assert b.pending() == a.pending()


def test_lost_message_is_sent_again_with_what_came_since() -> None:
    a, b = pair()
    a.send(b)
    a.cursor.ack(0)
    assert a.cursor.message_for("b") is not None  # and lost
    a.cursor.ack(3)
    message = a.cursor.message_for("b")
    assert message is not None
    assert [part.ranges for part in message.delta.lanes] == [((0, 1),), ((1, 2),)]
    assert a.cursor.behind("b") == 2


def test_seek_back_is_a_seek_everywhere_and_old_acks_do_not_undo_it() -> None:
    a, b = pair()
    a.cursor.ack(0, 4)
    stale = a.cursor.message_for("b")
    a.send(b)
    assert b.pending() == []
    a.cursor.seek(3)
    assert a.pending() == [("b", 1)]
    a.send(b)
    assert stale is not None
    assert b.cursor.receive(stale)[0].changed is False
    assert b.pending() == [("b", 1)]


def test_seek_forward_skips_the_same_events_everywhere() -> None:
    a, b = pair()
    a.cursor.seek(2)
    a.send(b)
    assert b.pending() == [("b", 0), ("b", 1)]


@pytest.mark.parametrize("order", list(permutations("abc")))
def test_seeks_at_the_same_time_agree(order: tuple[str, ...]) -> None:
    regions = {name: Region(name) for name in "abc"}
    for region in regions.values():
        region.append("a", 6)
        region.cursor.ack(0, 3)
    regions["a"].cursor.seek(5)
    regions["b"].cursor.seek(1)
    for _ in range(2):
        for one in order:
            for other in order:
                if one != other:
                    regions[one].send(regions[other])
    assert [region.cursor.acked.floor for region in regions.values()] == [1, 1, 1]


def test_seek_leaves_alone_what_stays_in_other_regions() -> None:
    a, b = pair()
    b.append(lane_of("b", []))
    b.cursor.ack(4)
    b.send(a)
    a.cursor.seek(0)
    a.send(b)
    assert b.pending() == [("b", 0), ("a", 0), ("b", 1), ("a", 1)]


def test_seek_to_the_beginning_reaches_what_only_others_still_have() -> None:
    a, b = pair()
    a.cursor.ack(0, 4)
    a.send(b)
    a.trim(3)
    a.cursor.seek(0)
    a.send(b)
    assert b.pending() == [("b", 0), ("a", 0), ("b", 1), ("a", 1)]
    assert a.cursor.acked.floor == 3


def linked_without_history() -> tuple[Region, Region]:
    """Region a has eight events of its own; b has them from a/4 on, after one of its own."""
    a, b = Region("a"), Region("b")
    a.append("a", 8)
    a.append("b")
    b.append("b")
    b.log.skip_to("a", 4)
    b.append("a", 4)
    return a, b


@pytest.mark.parametrize("offset", [1, 3, 5])
def test_seek_where_a_lane_began_in_the_middle_acks_nothing_before_it(offset: int) -> None:
    a, b = linked_without_history()
    b.cursor.seek(offset)
    b.send(a)
    assert a.pending()[:4] == [("a", 0), ("a", 1), ("a", 2), ("a", 3)]
    assert a.pending()[4:] == [("a", sequence) for sequence in range(3 + offset, 8)]


@pytest.mark.parametrize("offset", [0, 1, 5])
def test_seek_keeps_what_is_acked_of_the_part_that_never_was_here(offset: int) -> None:
    a, b = linked_without_history()
    a.cursor.ack(1)
    a.send(b)
    b.cursor.seek(offset)
    b.send(a)
    assert [e for e in a.pending() if e[1] < 4 and e[0] == "a"] == [("a", 0), ("a", 2), ("a", 3)]


def test_group_made_again_where_a_lane_began_in_the_middle_acks_nothing_before_it() -> None:
    a, b = linked_without_history()
    b.cursor.delete()
    b.cursor.create(5)
    b.send(a)
    assert a.pending() == [("a", 0), ("a", 1), ("a", 2), ("a", 3)]


def test_gap_in_a_lane_is_passed_over_and_never_acked() -> None:
    a, b = Region("a"), Region("b")
    a.append("a", 6)
    b.append("a", 2)
    b.log.skip_to("a", 4)  # a trimmed its own before they had crossed
    b.append("a", 2)
    assert list(b.log.origins(0, 4)) == [("a", 0, 2), ("a", 4, 6)]
    b.cursor.ack(0, 4)
    b.send(a)
    assert a.pending() == [("a", 2), ("a", 3)]
    b.cursor.seek(4)
    b.send(a)
    assert a.pending() == [("a", 2), ("a", 3)]


def test_seek_to_the_end_takes_nothing_back_that_has_not_come() -> None:
    a, b = pair()
    a.append("a", 3)
    a.cursor.ack(4, 7)
    a.send(b)
    b.cursor.seek(4)
    b.append("a", 3)
    assert b.pending() == []
    b.send(a)
    assert a.pending() == []


def test_seek_elsewhere_takes_it_back() -> None:
    a, b = pair()
    a.append("a", 3)
    a.cursor.ack(4, 7)
    a.send(b)
    b.cursor.seek(3)
    b.append("a", 3)
    assert b.pending() == [("a", 1), ("a", 2), ("a", 3), ("a", 4)]


def test_seek_to_the_end_of_a_log_that_was_trimmed_away_takes_nothing_back() -> None:
    a, b = pair()
    a.cursor.ack(0, 4)
    a.send(b)
    a.trim(4)
    a.cursor.seek(4)
    a.send(b)
    assert b.pending() == []


def test_ack_of_what_was_trimmed_in_flight_counts_everywhere() -> None:
    a, b = pair()
    a.trim(3)
    assert a.cursor.ack(0, 2) == 0
    a.send(b)
    assert b.pending() == [("b", 0), ("b", 1)]


def test_what_is_trimmed_unconsumed_is_acked_nowhere() -> None:
    a, b = pair()
    a.trim(4)
    a.send(b)
    assert b.pending() == b.events


def test_deleted_group_stays_deleted_until_it_is_created_again() -> None:
    a, b = pair()
    a.cursor.ack(0)
    late = a.cursor.message_for("b")
    a.cursor.delete()
    a.send(b)
    assert late is not None
    b.cursor.receive(late)
    assert b.cursor.deleted
    with pytest.raises(CursorDeletedError, match="is deleted by"):
        b.cursor.ack(0)
    with pytest.raises(CursorDeletedError):
        b.cursor.seek(0)
    with pytest.raises(CursorDeletedError):
        b.cursor.delete()
    b.cursor.create(1)
    b.send(a)
    assert a.pending() == [("a", 0), ("a", 1), ("b", 1)]
    with pytest.raises(CursorDeletedError, match="the group is there"):
        a.cursor.create(0)


def test_group_is_restored_from_its_record() -> None:
    a, _ = pair()
    a.cursor.ack(1)
    whole, revision = a.cursor.progress.whole(), a.cursor.revision
    again = OriginCursor("a", "g", a.log, restored=whole, revision=revision)
    assert again.acked == a.cursor.acked
    assert again.behind("b") > 0
    message = again.message_for("b")
    assert message is not None
    assert message.delta == whole


def test_markers_are_walked_over() -> None:
    log = OriginMap()
    cursor = OriginCursor("a", "g", log)
    log.marker(0)
    cursor.markers_appended(0)
    log.events(1, "a", 0)
    log.marker(2)
    cursor.markers_appended(2)
    assert cursor.acked.floor == 1
    cursor.ack(1)
    assert cursor.acked.floor == 3
    cursor.seek(0)
    assert cursor.acked.floor == 1
    assert 2 in cursor.acked


def _refusals() -> list[tuple[str, type[HeadraceError]]]:
    return [
        ("cursor.ack(4)", UpdateAheadError),
        ("cursor.ack(-1)", UpdateAheadError),
        ("cursor.seek(5)", UpdateAheadError),
        ("cursor.seek(-1)", UpdateAheadError),
        ("cursor.message_for('a')", UnknownRegionError),
        ("cursor.receive(own)", UnknownRegionError),
        ("cursor.receipt(ahead)", UpdateAheadError),
        ("cursor.receipt(foreign)", UpdateAheadError),
        ("cursor.merge(broken)", RegionError),
    ]


@pytest.mark.parametrize(("call", "error"), _refusals())
def test_refused_call_names_the_state_and_changes_nothing(
    call: str, error: type[HeadraceError]
) -> None:
    a, _ = pair()
    a.cursor.ack(2)
    scope = {
        "cursor": a.cursor,
        "own": CursorMessage("a", 1, CursorDelta("g", Life())),
        "ahead": CursorReceipt("b", "g", 99),
        "foreign": CursorReceipt("b", "h", 0),
        "broken": CursorDelta("g", Life(), (LaneDelta("a", Stamp(), -4),)),
    }
    before = (a.cursor.progress.whole(), a.cursor.revision, a.cursor.acked.copy())
    with pytest.raises(error, match="'g'"):
        eval(call, scope)
    assert (a.cursor.progress.whole(), a.cursor.revision, a.cursor.acked) == before


def test_late_and_repeated_receipts_change_nothing() -> None:
    a, b = pair()
    a.cursor.ack(0)
    a.send(b)
    a.cursor.receipt(CursorReceipt("b", "g", 0))
    assert a.cursor.message_for("b") is None
    a.cursor.forget_region("b")
    assert a.cursor.message_for("b") is not None


steps = st.lists(
    st.tuples(
        st.sampled_from(["publish", "publish", "replicate", "replicate", "ack", "ack", "send",
                         "send", "seek", "delete"]),
        st.integers(0, 2),
        st.integers(0, 2),
        st.integers(0, 40),
    ),
    max_size=60,
)  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(steps, st.sampled_from([1, 3, 4096]), st.sampled_from([0, 4096]))
def test_regions_agree_in_the_end_and_translation_is_exact(
    given_steps: list[tuple[str, int, int, int]], journal_max: int, bulk_min: int
) -> None:
    names = "abc"
    regions = [Region(name, journal_max=journal_max) for name in names]
    published: dict[str, int] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cursors, "BULK_MIN", bulk_min)
        for verb, one, other, number in given_steps:
            region = regions[one]
            match verb:
                case "publish":
                    lane = lane_of(region.name, [None, [], [names[other]]][number % 3])
                    region.append(lane)
                    published[lane] = region.log.next_sequence(lane)
                case "replicate":
                    replicate(regions, published, one, other, 1 + number % 4)
                case "ack" if region.events and not region.cursor.deleted:
                    lo = number % len(region.events)
                    region.cursor.ack(lo, min(lo + 1 + other, len(region.events)))
                case "send" if one != other:
                    region.send(regions[other])
                case "seek" if not region.cursor.deleted:
                    region.cursor.seek(number % (len(region.events) + 1))
                case "delete" if number == 0 and not region.cursor.deleted:
                    region.cursor.delete()
            check_translation(region)
        settle(regions, published)
    whole = [region.cursor.progress.whole() for region in regions]
    assert whole[0] == whole[1] == whole[2]
    for region in regions:
        check_translation(region)


def replicate(
    regions: list[Region], published: dict[str, int], source: int, target: int, count: int
) -> None:
    origin, receiver = regions[source], regions[target]
    for lane, end in published.items():
        mine = lane.partition("!")[0] == origin.name and origin is not receiver
        if mine and lane_reaches(lane, receiver.name):
            receiver.append(lane, min(count, end - receiver.log.next_sequence(lane)))


def settle(regions: list[Region], published: dict[str, int]) -> None:
    for source in range(len(regions)):
        for target in range(len(regions)):
            replicate(regions, published, source, target, 10_000)
    for _ in range(10):
        said = [one.send(other) for one in regions for other in regions if one is not other]
        if not any(said):
            return
    raise AssertionError("the regions never stop talking")


def check_translation(region: Region) -> None:
    progress = region.cursor.progress
    for offset, (lane, sequence) in enumerate(region.events):
        known = progress.acked(lane)
        assert (offset in region.cursor.acked) == (known is not None and sequence in known)
