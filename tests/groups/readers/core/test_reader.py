"""What a reader decides to do next, step by step, with the clock in the test's hand."""

from __future__ import annotations

import itertools

from headrace.groups.readers import (
    END,
    AckCheckpoint,
    AcquireShare,
    CompleteSegments,
    Completion,
    ReaderSettings,
    RecordPositions,
    ReleaseSegments,
    ReportLag,
    SegmentId,
    Successor,
    Update,
)
from headrace.groups.readers.core.reader import (
    Begin,
    Detect,
    Pause,
    Propose,
    Reader,
    ReaderEffect,
    Refresh,
    Renew,
    Resume,
    SegmentStanding,
    StartAgain,
    Stop,
)
from headrace.groups.readers.core.segments import positions
from tests.groups.readers.core.helpers import Group, cut, seg

SETTINGS = ReaderSettings()
QUIET = ReaderSettings(
    heartbeat_ms=10**7, lease_ttl_ms=3 * 10**7, refresh_ms=10**7, record_ms=10**7, lag_unit_ms=10**7
)


class Desk:
    """A reader at work on a group, without a log: standings are set by the test."""

    def __init__(self, group: Group, name: str, settings: ReaderSettings = QUIET) -> None:
        self.group = group
        if name not in group.state.members:
            group.join(name)
        self.reader = Reader(name, group.token(name), settings, now_ms=0)
        self.standings: dict[SegmentId, SegmentStanding] = {}
        self.effects: list[ReaderEffect] = []

    def step(self, now_ms: int, lag_ms: int = 0) -> list[ReaderEffect]:
        """One step, in which segments begin at once; housekeeping is left out."""
        found = self.reader.step(self.group.state, self.standings, lag_ms, now_ms)
        for effect in found:
            match effect:
                case Begin(segment=segment, offset=offset):
                    self.standings[segment] = SegmentStanding(offset)
                case Stop(segment=segment):
                    self.standings.pop(segment, None)
        self.effects = [e for e in found if not isinstance(e, Detect | Renew | Refresh)]
        return self.effects

    def proposed(self, now_ms: int, lag_ms: int = 0) -> Update | None:
        """The update that a step proposes."""
        for effect in self.step(now_ms, lag_ms):
            if isinstance(effect, Propose):
                return effect.update
        return None

    def run(self, now_ms: int) -> Update | None:
        """A step whose proposal is applied at once."""
        update = self.proposed(now_ms)
        if update is not None:
            self.group.apply(update)
            self.reader.answered(now_ms)
        return update


def test_a_new_reader_waits_a_moment_and_claims_its_share() -> None:
    desk = Desk(Group.of(4), "r1")
    assert desk.run(0) is None
    assert desk.run(SETTINGS.join_delay_ms - 1) is None
    assert desk.run(SETTINGS.join_delay_ms) == AcquireShare("r1", desk.group.token("r1"))
    begun = [e.segment for e in desk.step(101) if isinstance(e, Begin)]
    assert begun == list(desk.group.state.owned("r1"))
    assert len(begun) == 4


def test_readers_that_start_together_share_from_the_beginning() -> None:
    group = Group.of(6)
    desks = [Desk(group, name) for name in ("r1", "r2", "r3")]
    for desk in desks:
        desk.run(100)
    assert [len(group.owned(name)) for name in ("r1", "r2", "r3")] == [2, 2, 2]


def test_balance_comes_within_a_second_and_without_any_checkpoint() -> None:
    group = Group.of(6)
    first = Desk(group, "r1")
    first.run(100)
    first.step(101)
    second = Desk(group, "r2")
    for now_ms in range(200, 1201, 20):
        first.run(now_ms)
        second.run(now_ms)
    assert len(group.owned("r1")) == len(group.owned("r2")) == 3
    assert group.state.checkpoints.all() == []


def test_a_segment_goes_only_when_nothing_of_it_is_in_flight() -> None:
    group = Group.of(2)
    desk = Desk(group, "r1")
    desk.run(100)
    desk.step(101)
    group.join("r2")
    desk.standings = {
        seg("a/0"): SegmentStanding(4, idle=False),
        seg("a/1"): SegmentStanding(7, idle=False),
    }
    assert desk.proposed(200) is None
    (pause,) = desk.effects
    assert isinstance(pause, Pause)
    (going,) = pause.segments
    assert desk.proposed(300) is None
    desk.standings[going] = SegmentStanding(9)
    update = desk.proposed(400)
    assert isinstance(update, ReleaseSegments)
    assert update.segments == (going,)
    other = next(s for s in desk.standings if s != going)
    at = {position.segment: position.offset for position in update.positions}
    assert at == {going: 9, other: desk.standings[other].offset}


def test_a_segment_on_its_way_out_stays_when_the_need_is_gone() -> None:
    group = Group.of(2)
    desk = Desk(group, "r1")
    desk.run(100)
    desk.step(101)
    group.join("r2")
    desk.standings = {segment: SegmentStanding(0, idle=False) for segment in desk.standings}
    (pause,) = desk.step(200)
    group.offline("r2")
    assert isinstance(pause, Pause)
    assert desk.step(300) == [Resume(pause.segments)]


def test_a_checkpoint_is_answered_when_everything_has_come_to_rest() -> None:
    group = Group.of(2)
    desk = Desk(group, "r1")
    desk.run(100)
    desk.step(101)
    group.checkpoint("c1")
    desk.standings = {seg("a/0"): SegmentStanding(4, idle=False), seg("a/1"): SegmentStanding(7)}
    assert desk.step(200) == [Pause((seg("a/0"), seg("a/1")))]
    desk.standings[seg("a/0")] = SegmentStanding(5)
    token = group.token("r1")
    wanted = AckCheckpoint("r1", token, "c1", positions(cut(a0=5, a1=7)))
    assert desk.run(300) == wanted
    assert desk.step(301) == [Resume((seg("a/0"), seg("a/1")))]


def test_a_silent_checkpoint_is_answered_at_once_and_stops_nothing() -> None:
    group = Group.of(1)
    desk = Desk(group, "r1")
    desk.run(100)
    desk.step(101)
    group.checkpoint("s1", silent=True)
    desk.standings[seg("a/0")] = SegmentStanding(4, idle=False)
    (only,) = desk.step(200)
    assert only == Propose(AckCheckpoint("r1", group.token("r1"), "s1", positions(cut(a0=4))))


def test_an_idle_reader_answers_too() -> None:
    desk = Desk(Group.of(0), "r1")
    desk.group.checkpoint("c1")
    assert desk.run(0) == AckCheckpoint("r1", desk.group.token("r1"), "c1")
    assert desk.group.state.blockers() == {}


def test_a_segment_that_cannot_be_opened_blocks_no_checkpoint_and_stays_paused() -> None:
    group = Group.of(1)
    desk = Desk(group, "r1")
    desk.run(100)
    group.checkpoint("c1")
    effects = desk.reader.step(group.state, {}, 0, 200)
    assert Begin(seg("a/0"), 0, group.state.owned("r1")[seg("a/0")].token) in effects
    assert Propose(AckCheckpoint("r1", group.token("r1"), "c1")) in effects
    assert seg("a/0") in desk.reader.paused


def test_a_finished_segment_is_completed_before_anything_is_balanced() -> None:
    group = Group.of(3)
    desk = Desk(group, "r1")
    desk.run(100)
    desk.step(101)
    group.join("r2")
    following = (Successor(seg("a/7"), (seg("a/1"),)),)
    desk.standings[seg("a/1")] = SegmentStanding(END, successors=following)
    done = (Completion(seg("a/1"), following),)
    assert desk.run(200) == CompleteSegments("r1", group.token("r1"), done)
    assert group.unassigned == {"a/7": 0}


def test_all_finished_segments_are_completed_in_one_update() -> None:
    group = Group.of(200)
    desk = Desk(group, "r1")
    desk.run(100)
    desk.step(101)
    for segment in list(desk.standings)[:199]:
        next_one = Successor(SegmentId("a", segment.number + 200), (segment,))
        desk.standings[segment] = SegmentStanding(END, successors=(next_one,))
    desk.run(200)
    assert len(group.unassigned) == 199
    assert isinstance(desk.run(300), AcquireShare)


def test_who_has_released_leaves_it_to_the_less_loaded_for_a_while() -> None:
    group = Group.of(2)
    busy = Desk(group, "r1")
    busy.run(100)
    busy.step(101)
    group.join("r2")
    assert busy.run(200) is None
    assert isinstance(busy.run(220), ReleaseSegments)
    assert busy.run(221) is None
    assert busy.run(320) is None
    assert isinstance(busy.run(321), AcquireShare)


def test_among_many_readers_who_has_its_share_leaves_what_is_on_offer_for_a_while() -> None:
    group = Group.of(100)
    desk = Desk(group, "r0")
    others = [f"r{n}" for n in range(1, 100)]
    group.join(*others)
    group.claim("r0", "a/0")
    for number, name in enumerate(others[:-2], 1):
        group.claim(name, f"a/{number}")
    desk.step(100)  # two are on offer, and two readers have none
    assert desk.run(899) is None
    group.claim(others[-1], "a/98")
    assert desk.run(900) is None
    assert desk.run(1699) is None  # another one is the first on offer: it waits anew
    assert isinstance(desk.run(2000), AcquireShare)  # whoever lacks it may be dead


def test_what_nobody_takes_is_taken_back_and_kept_for_longer_each_time() -> None:
    """The reader that has less is dead, and its lease has still to run out."""
    group = Group.of(2)
    busy = Desk(group, "r1", ReaderSettings(lag_unit_ms=10**7, record_ms=10**7))
    busy.run(100)
    busy.step(101)
    group.join("r2")
    released = []
    for now_ms in range(200, 10_000, 20):
        if isinstance(busy.run(now_ms), ReleaseSegments):
            released.append(now_ms)
    gaps = [later - earlier for earlier, later in itertools.pairwise(released)]
    assert 3 <= len(gaps) <= 4
    assert all(later > 1.5 * earlier for earlier, later in itertools.pairwise(gaps)), gaps
    # Whoever joins is given its share at once.
    group.join("r3")
    assert any(
        isinstance(busy.run(now_ms), ReleaseSegments) for now_ms in range(10_000, 10_500, 20)
    )


def test_only_one_update_is_under_way_and_it_is_decided_anew_when_no_answer_comes() -> None:
    desk = Desk(Group.of(2), "r1")
    assert desk.proposed(100) is not None
    assert desk.proposed(200) is None
    assert desk.proposed(100 + QUIET.answer_ms - 1) is None
    assert desk.proposed(100 + QUIET.answer_ms) is not None


def test_an_update_whose_answer_was_lost_is_not_made_twice() -> None:
    desk = Desk(Group.of(2), "r1")
    update = desk.proposed(100)
    assert update is not None
    desk.group.apply(update)
    assert desk.proposed(100 + QUIET.answer_ms) is None
    assert len(desk.reader.held) == 2


def test_a_reader_put_offline_stops_and_starts_again() -> None:
    desk = Desk(Group.of(1), "r1")
    desk.run(100)
    desk.group.offline("r1")
    assert desk.step(200) == [StartAgain()]
    assert desk.reader.over
    assert desk.step(300) == []


def test_a_segment_claimed_again_under_a_new_token_is_begun_again() -> None:
    group = Group.of(2)
    desk = Desk(group, "r1")
    desk.run(100)
    desk.step(101)
    group.join("r2")
    group.release("r1", "a/0", a0=5)
    group.claim("r1", "a/0")
    token = group.state.owned("r1")[seg("a/0")].token
    assert desk.step(200)[:2] == [Stop(seg("a/0")), Begin(seg("a/0"), 5, token)]


def test_lag_is_written_more_rarely_the_more_readers_there_are() -> None:
    group = Group.of(0, "r2", "r3")
    desk = Desk(group, "r1", SETTINGS)
    written = []
    for now_ms in range(0, 13_000, 500):
        update = desk.proposed(now_ms, lag_ms=now_ms)
        if isinstance(update, ReportLag):
            written.append(now_ms)
        desk.reader.answered(now_ms)
    assert written == [1000, 5000, 9000]


def test_positions_are_recorded_now_and_then_without_any_checkpoint() -> None:
    group = Group.of(1)
    desk = Desk(group, "r1", ReaderSettings(lag_unit_ms=10**7))
    desk.run(100)
    desk.step(101)
    desk.standings[seg("a/0")] = SegmentStanding(12)
    assert desk.run(SETTINGS.record_ms - 1) is None
    wanted = RecordPositions("r1", group.token("r1"), positions(cut(a0=12)))
    assert desk.run(SETTINGS.record_ms) == wanted
    assert group.owned("r1") == {"a/0": 12}
    assert desk.run(2 * SETTINGS.record_ms) is None


def test_leases_are_renewed_and_the_state_is_looked_at_by_the_clock() -> None:
    desk = Desk(Group.of(0), "r1", SETTINGS)

    def housekeeping(now_ms: int) -> list[ReaderEffect]:
        effects = desk.reader.step(desk.group.state, {}, 0, now_ms)
        return [e for e in effects if isinstance(e, Renew | Refresh | Detect)]

    assert housekeeping(0) == [Detect()]
    desk.reader.detected(desk.group.state, 9000, 10)
    assert housekeeping(2999) == []
    assert housekeeping(3000) == [Renew(), Refresh()]
    assert housekeeping(9010) == [Renew(), Refresh()]
    assert housekeeping(9011) == [Detect()]


def test_readers_look_for_the_dead_one_after_the_other() -> None:
    group = Group.of(0, "r1", "r2", "r3")
    turns = []
    for name in ("r1", "r2", "r3"):
        reader = Reader(name, group.token(name), SETTINGS, now_ms=0)
        reader.detected(group.state, 1000, 0)
        at_ms = next(t for t in range(3000) if Detect() in reader.step(group.state, {}, 0, t))
        turns.append(at_ms)
    assert turns == [1001, 1051, 1101]
