"""The leader, one step at a time."""

from __future__ import annotations

import re

import msgspec
import pytest

from headrace.errors import DeposedError, StaleTokenError, UnexpectedMessageError
from headrace.groups.decisions import What
from headrace.groups.progress import Progress
from headrace.groups.shared.core.assignment import AssignmentStatus
from headrace.groups.shared.core.messages import (
    Disconnect,
    FromBorrower,
    Grant,
    Invalidate,
    LeaderConnectResponse,
    LeaderWanted,
    Message,
    Ping,
    PingResponse,
    ProgressConfirmed,
    Revoke,
    Revoked,
    RevokeFinished,
    UnitReport,
    UpdateProgress,
)
from headrace.groups.shared.core.records import (
    ListSegments,
    RenewLease,
    SegmentInfo,
    StepDown,
    StoredUnit,
)
from headrace.groups.shared.core.settings import Balance, InvalidSharedSettingsError, LeaderSettings
from tests.groups.shared.core.pair import GROUP, Led, open_segment, progress

A, B, C = "a:1:1", "b:1:1", "c:1:1"


def led(*borrowers: str, segments: int = 2, **options: object) -> Led:
    made = Led(**options)  # type: ignore[arg-type]
    made.segments(*(open_segment(n) for n in range(segments)))
    for borrower in borrowers:
        made.join(borrower)
        made.settle()
    made.sent.clear()
    return made


# --- giving the group up ---


@pytest.mark.parametrize("balance", list(Balance))
def test_a_leader_that_leaves_takes_everything_back_and_grants_nothing(balance: Balance) -> None:
    made = led(A, B, settings=LeaderSettings(balance=balance))
    made.do(made.leader.leave("the group is at home in us", made.now_ms))
    assert {each.borrower for each in made.take(Revoke)} == {A, B}
    assert not made.leader.left
    for borrower, units in made.owners().items():
        for unit in units:
            assert not made.leader.left
            made.hand_back(borrower, unit)
    made.join(C)
    made.segments(*(open_segment(n) for n in range(4)))
    assert made.leader.left
    assert not made.take(Grant)
    assert made.leader.leave("again", made.now_ms) == []


def test_a_leader_that_leaves_waits_for_a_silent_member_as_long_as_it_may_hand_out() -> None:
    made = led(A)
    made.do(made.leader.leave("the group is at home in us", made.now_ms))
    made.tick(made.leader.settings.borrower_timeout_ms - 1)
    assert not made.leader.left
    made.tick(1)
    assert made.leader.left


def test_a_leader_has_not_left_before_what_it_was_told_is_stored() -> None:
    made = led(A, segments=1)
    made.do(made.leader.leave("the group is at home in us", made.now_ms))
    made.hold_commits = True
    made.leave(A, UnitReport("orders/0", made.leader.units["orders/0"].token, ((0, 4),), ()))
    assert made.owners() == {}
    assert not made.leader.left
    made.hold_commits = False
    made.commit()
    assert made.leader.left


# --- rest ---


def idle(settings: LeaderSettings | None = None) -> Led:
    """A leader whose only member has acked everything."""
    made = led(A, segments=1, settings=settings)
    made.report(A, "orders/0", (0, 10))
    made.leader.tick(made.now_ms)
    return made


def test_an_idle_leader_rests_until_its_lease_or_a_silent_member_is_due() -> None:
    made = idle()
    settings = made.leader.settings
    assert made.leader.rest_ms(made.now_ms) > made.now_ms + settings.tick_ms
    assert made.leader.rest_ms(made.now_ms) <= made.now_ms + settings.heartbeat_ms
    silent_ms = made.now_ms + settings.borrower_timeout_ms
    made.leader._heartbeat_due_ms = made.leader._lease_ok_ms = 2 * silent_ms
    assert made.leader.rest_ms(made.now_ms) == silent_ms


def test_a_leader_with_something_to_watch_does_not_rest() -> None:
    lagging = idle()
    lagging.segments(open_segment(0, head=50))
    moving = idle()
    moving.segments(open_segment(0), open_segment(1, head=0))
    assert moving.take(Grant)
    by_lag = idle(LeaderSettings(balance=Balance.LAG))
    for made in (lagging, moving, by_lag):
        assert made.leader.rest_ms(made.now_ms) == made.now_ms


def test_a_leader_at_rest_renews_its_lease_as_a_tick_does() -> None:
    made, ticked = idle(), idle()
    for each in (made, ticked):
        each.leader._list_due_ms = 2**60  # ``beat`` leaves listing to the next tick
    now_ms = made.leader._heartbeat_due_ms
    renewal = RenewLease(5, made.leader.settings.lease_ttl_ms, now_ms)
    assert made.leader.beat(now_ms - 1) is None
    assert ticked.leader.tick(now_ms) == [renewal]
    assert made.leader.beat(now_ms) == (renewal, ticked.leader.rest_ms(now_ms))
    assert made.leader.snapshot() == ticked.leader.snapshot()


def test_a_leader_with_more_to_do_than_renewing_has_to_tick() -> None:
    lagging, silent, late = idle(), idle(), idle()
    lagging.segments(open_segment(0, head=50))
    member = silent.leader._holdings.members[A]
    member.seen_ms = silent.leader._heartbeat_due_ms - silent.leader.settings.borrower_timeout_ms
    late.leader._lease_ok_ms = late.leader._heartbeat_due_ms - late.leader.settings.lease_ttl_ms
    for made in (lagging, silent, late):
        before = made.leader.snapshot()
        assert made.leader.beat(made.leader._heartbeat_due_ms) is None
        assert made.leader.snapshot() == before


def test_a_ping_of_a_known_member_is_answered_without_more_and_puts_its_silence_off() -> None:
    made = led(A)
    later_ms = made.now_ms + 1000
    ping = Ping(GROUP, A, 5, 7)
    assert made.leader.answers(ping, later_ms)
    assert ping.response == PingResponse(GROUP, A, 5, 7)
    assert made.leader._holdings.members[A].seen_ms == later_ms


def test_a_ping_that_may_change_something_is_not_answered_at_once() -> None:
    made = led(A)
    assert not made.leader.answers(Ping(GROUP, A, 4, 1), made.now_ms)  # an older leader's
    assert not made.leader.answers(Ping(GROUP, B, 5, 1), made.now_ms)  # nobody known
    made.say(LeaderWanted(GROUP, B, 0, "b"))
    assert not made.leader.answers(Ping(GROUP, B, 5, 1), made.now_ms)  # its first one


# --- joining and sharing ---


def test_first_borrower_is_granted_everything() -> None:
    made = Led()
    made.segments(open_segment(0), open_segment(1))
    made.join(A)
    assert made.take(LeaderConnectResponse)[0].leader == "n1"
    assert {grant.unit for grant in made.take(Grant)} == {"orders/0", "orders/1"}


def test_borrower_gets_nothing_before_it_has_answered() -> None:
    made = Led()
    made.segments(open_segment(0))
    made.say(LeaderWanted(GROUP, A, 0, "a"))
    assert made.owners() == {A: []}
    made.ping(A)
    assert made.owners() == {A: ["orders/0"]}


def test_grant_waits_until_its_claim_is_durable() -> None:
    made = Led(hold_commits=True)
    made.segments(open_segment(0))
    made.join(A)
    assert made.take(Grant) == []
    made.commit()
    grant = made.take(Grant)[0]
    assert (grant.unit_token, grant.token) == (1, 5)
    assert made.rows["orders/0"].token == 1


def test_second_borrower_takes_over_half_through_the_whole_dance() -> None:
    made = led(A)
    made.join(B)
    revoke = made.take(Revoke)[0]
    assert revoke.borrower == A
    assert made.leader.assignment_of(revoke.unit) == (AssignmentStatus.REVOKING, A)
    made.report(A, revoke.unit, (0, 4), (6, 7), final=True)
    assert made.take(Revoked)[0].unit == revoke.unit
    assert made.leader.assignment_of(revoke.unit) == (AssignmentStatus.REVOKED, A)
    made.say(RevokeFinished(GROUP, A, 5, revoke.unit, revoke.unit_token))
    grant = made.take(Grant)[0]
    assert (grant.borrower, grant.unit_token) == (B, revoke.unit_token + 1)
    assert grant.progress == progress(4, (6, 7))


def test_hand_over_carries_exact_ranges_and_attempts() -> None:
    made = led(A, segments=1)
    token = made.leader.units["orders/0"].token
    report = UnitReport("orders/0", token, ((0, 2), (5, 8)), ((3, 2), (6, 1)))
    made.say(UpdateProgress(GROUP, A, 5, 1, (report,)))
    made.join(B)
    made.leave(A)
    grant = made.take(Grant)[0]
    assert grant.borrower == B
    assert grant.progress == Progress(2, ((5, 8),), ((3, 2),))


def test_acks_made_in_transactions_are_part_of_the_next_grant() -> None:
    made = led(A, segments=1)
    row = made.rows["orders/0"]
    made.rows["orders/0"] = StoredUnit("orders/0", row.token, progress(0, (3, 4)))
    made.leave(A)
    made.join(B)
    assert made.take(Grant)[0].progress == progress(0, (3, 4))


def test_nothing_moves_when_a_balanced_group_is_looked_at_again() -> None:
    made = led(A, B, segments=4)
    made.tick(250, alive=(A, B))
    made.segments(open_segment(0, 20))
    assert made.take(Revoke) == []


def test_unit_freed_by_a_leaver_goes_to_those_who_stay_without_other_moves() -> None:
    made = led(A, B, C, segments=6)
    made.take(Revoke)
    made.leave(C)
    assert made.take(Revoke) == []
    assert {name: len(units) for name, units in made.owners().items()} == {A: 3, B: 3}


def test_grant_that_was_not_announced_is_withdrawn_without_a_message() -> None:
    made = Led(hold_commits=True)
    made.segments(open_segment(0), open_segment(1))
    made.join(A)
    made.join(B)
    made.commit()
    assert made.take(Revoke) == []
    assert sorted(grant.borrower for grant in made.take(Grant)) == [A, B]


def test_balance_by_lag_separates_two_hot_segments() -> None:
    made = Led(settings=LeaderSettings(balance=Balance.LAG))
    made.segments(open_segment(0, 1000), open_segment(1, 1000), open_segment(2, 0))
    made.join(A)
    made.accept_grants()
    made.join(B)
    moved = made.take(Revoke)[0].unit
    assert moved in ("orders/0", "orders/1")
    made.hand_back(A, moved)
    made.accept_grants()
    assert moved in made.owners()[B]
    for _ in range(5):
        made.tick(250, alive=(A, B))
    assert made.take(Revoke) == []


def test_markers_do_not_weigh() -> None:
    """A member with a segment full of markers is not spared events."""
    made = Led(settings=LeaderSettings(balance=Balance.LAG))
    made.segments(
        SegmentInfo("orders/0", 1000, markers=tuple(range(1000))),
        open_segment(1, 1000),
        open_segment(2, 1000),
    )
    made.join(A)
    made.accept_grants()
    made.join(B)
    assert [revoke.unit for revoke in made.take(Revoke)] == ["orders/1"]
    state = made.leader.units["orders/0"]
    assert state.lag == 0
    state.acked.ack_range(0, 990)
    assert state.lag == 0


# --- progress ---


def test_report_is_stored_at_once_and_confirmed_when_durable() -> None:
    made = led(A, hold_commits=False)
    made.hold_commits = True
    number = made.report(A, "orders/0", (0, 3))
    assert made.held[0].progress[0].progress == progress(3)
    assert made.take(ProgressConfirmed) == []
    made.commit()
    assert [message.report for message in made.take(ProgressConfirmed)] == [number]


def test_reports_that_come_during_a_commit_share_the_next_one() -> None:
    made = led(A)
    made.hold_commits = True
    first = made.report(A, "orders/0", (0, 1))
    second = made.report(A, "orders/0", (1, 2))
    third = made.report(A, "orders/1", (0, 1))
    assert len(made.held) == 1
    made.commit()
    confirmed = [message.report for message in made.take(ProgressConfirmed)]
    assert confirmed == [first, second, third]
    assert made.rows["orders/0"].progress == progress(2)


def test_reports_that_are_gathered_share_one_commit() -> None:
    made = led(A)
    made.leader.gather()
    reports = [made.report(A, "orders/0", (n, n + 1)) for n in range(3)]
    assert made.take(ProgressConfirmed) == []
    assert made.leader.unstored
    made.do(made.leader.gathered(made.now_ms))
    assert [message.report for message in made.take(ProgressConfirmed)] == reports
    assert made.rows["orders/0"].progress == progress(3)
    assert not made.leader.unstored


def test_repeated_report_is_confirmed_again_and_stores_nothing() -> None:
    made = led(A)
    made.report(A, "orders/0", (0, 3))
    made.take(ProgressConfirmed)
    made.hold_commits = True
    made.report(A, "orders/0", (0, 3))
    assert made.held == []
    assert len(made.take(ProgressConfirmed)) == 1


def test_refused_commit_is_sent_again_and_nothing_is_confirmed_before() -> None:
    made = led(A)
    made.hold_commits = True
    made.report(A, "orders/0", (0, 3))
    commit = made.held.pop()
    made.do(made.leader.commit_failed(commit.number, "full", lost=False))
    assert made.take(ProgressConfirmed) == []
    made.tick(250, alive=(A,))
    assert made.held == [commit]


def test_commit_without_an_answer_is_sent_again() -> None:
    made = led(A)
    made.hold_commits = True
    made.report(A, "orders/0", (0, 3))
    commit = made.held.pop()
    made.tick(1000, alive=(A,))
    assert made.held == []
    made.tick(1000, alive=(A,))
    assert made.held == [commit]


def test_late_answer_to_a_commit_sent_twice_is_passed_over() -> None:
    made = led(A)
    made.hold_commits = True
    made.report(A, "orders/0", (0, 3))
    number = made.held[0].number
    made.commit()
    before = made.leader.snapshot()
    assert made.leader.committed(number, (), made.now_ms) == []
    assert made.leader.snapshot() == before


def test_goodbye_is_stored_before_the_unit_moves_and_confirmed() -> None:
    made = led(A, segments=1)
    made.join(B)
    token = made.leader.units["orders/0"].token
    made.leave(A, UnitReport("orders/0", token, ((0, 6),)))
    assert made.take(Grant)[0].progress == progress(6)
    assert [message.borrower for message in made.take(ProgressConfirmed)] == [A]


# --- resends and the end of patience ---


def test_grant_revoke_and_revoked_are_sent_again_until_answered() -> None:
    made = Led()
    made.segments(open_segment(0))
    made.join(A)
    assert len(made.take(Grant)) == 1
    made.tick(1000, alive=(A,))
    assert len(made.take(Grant)) == 1
    made.report(A, "orders/0")
    made.tick(1000, alive=(A,))
    assert made.take(Grant) == []
    made.segments(SegmentInfo("orders/1", 5))
    made.accept_grants()
    made.join(B)
    unit = made.take(Revoke)[0].unit
    made.tick(1000, alive=(A, B))
    assert len(made.take(Revoke)) == 1
    made.report(A, unit, final=True)
    assert len(made.take(Revoked)) == 1
    made.tick(1000, alive=(A, B))
    assert len(made.take(Revoked)) == 1


def test_silent_borrower_is_dropped_and_its_units_move() -> None:
    made = led(A, B)
    for _ in range(5):
        made.tick(1000, alive=(B,))
    assert made.owners() == {B: ["orders/0", "orders/1"]}
    assert made.leader.decisions[-2].what in (What.LEFT, What.LOST, What.ASSIGNED)
    lost = next(each for each in made.leader.decisions if each.what is What.LOST)
    assert lost.borrower == A
    said = re.fullmatch(r"silent for (\d+\.\d{3}) s", lost.reason)  # so one knows since when
    assert said is not None
    assert 1000 * float(said[1]) >= made.leader.settings.borrower_timeout_ms


def test_member_that_pings_and_never_acks_is_evicted_with_the_reason() -> None:
    made = Led()
    made.segments(open_segment(0), open_segment(1))
    made.join(A, B)
    made.settle()
    mine, other = made.owners()[A][0], made.owners()[B][0]
    made.report(B, other, (0, 10))
    for _ in range(60):
        made.tick(1000, alive=(A, B))
    reasons = {message.borrower: message.reason for message in made.take(Invalidate)}
    assert reasons == {A: f"acks nothing of {mine}"}
    assert made.owners() == {B: ["orders/0", "orders/1"]}


def test_evicted_session_is_left_out_for_a_while_and_longer_the_next_time() -> None:
    settings = LeaderSettings(stall_timeout_ms=1000, bench_ms_max=60_000)
    made = led(A, settings=settings, segments=1)
    for _ in range(5):
        made.tick(250, alive=(A,))
    assert made.owners() == {}
    again = "a:1:2"
    made.join(again)
    assert made.owners() == {again: []}
    for _ in range(5):
        made.tick(250, alive=(again,))
    assert made.owners() == {again: ["orders/0"]}


def test_idle_member_is_not_evicted() -> None:
    made = Led()
    made.segments(open_segment(0, 0))
    made.join(A)
    made.accept_grants()
    for _ in range(100):
        made.tick(1000, alive=(A,))
    assert made.owners() == {A: ["orders/0"]}


def test_member_that_refuses_events_is_working_and_stays() -> None:
    made = led(A, segments=1)
    for _ in range(100):
        made.report(A, "orders/0", answered=True)
        made.tick(1000, alive=(A,))
    assert made.owners() == {A: ["orders/0"]}


def test_progress_does_not_undo_a_revocation() -> None:
    made = led(A)
    made.join(B)
    unit = made.take(Revoke)[0].unit
    made.report(A, unit, (0, 1))
    assert made.leader.assignment_of(unit) == (AssignmentStatus.REVOKING, A)
    for second in range(10):
        made.report(A, unit, (second + 1, second + 2)) if second < 9 else None
        made.tick(1000, alive=(A, B))
    assert made.owners() == {B: ["orders/0", "orders/1"]}


def test_revoke_finished_after_the_hand_over_is_passed_over() -> None:
    made = led(A)
    made.join(B)
    revoke = made.take(Revoke)[0]
    made.hand_back(A, revoke.unit)
    before = made.leader.snapshot()
    made.say(RevokeFinished(GROUP, A, 5, revoke.unit, revoke.unit_token))
    assert made.take(Invalidate) == []
    assert made.leader.snapshot() == before


# --- segments come and go ---


def test_consumed_segment_leaves_for_good() -> None:
    made = led(A, segments=1)
    made.report(A, "orders/0", (0, 10))
    made.segments(SegmentInfo("orders/0", 10, 10))
    revoke = made.take(Revoke)[0]
    made.hand_back(A, revoke.unit)
    made.segments(SegmentInfo("orders/0", 10, 10))
    made.tick(1000, alive=(A,))
    assert made.owners() == {A: []}
    assert made.rows["orders/0"].finished


def test_finished_segment_stays_finished_under_the_next_leader() -> None:
    made = led(A, stored=(StoredUnit("orders/0", 7, progress(10), True),), segments=0)
    made.segments(SegmentInfo("orders/0", 10, 10), SegmentInfo("orders/1", 3))
    assert made.owners() == {A: ["orders/1"]}


def test_successor_opens_when_all_predecessors_are_durably_consumed() -> None:
    made = Led()
    made.segments(
        SegmentInfo("orders/0", 2, 2),
        SegmentInfo("orders/1", 2, 2),
        SegmentInfo("orders/2", 9, None, 0, ("orders/0", "orders/1")),
    )
    made.join(A)
    made.accept_grants()
    assert made.owners() == {A: ["orders/0", "orders/1"]}
    made.report(A, "orders/0", (0, 2))
    assert made.take(Grant) == []
    made.hold_commits = True
    made.report(A, "orders/1", (0, 2))
    assert made.take(Grant) == []
    made.commit()
    assert [grant.unit for grant in made.take(Grant)] == ["orders/2"]


def test_empty_sealed_segment_ends_only_after_its_predecessors() -> None:
    made = Led()
    made.segments(
        SegmentInfo("orders/0", 2, 2),
        SegmentInfo("orders/1", 0, 0, 0, ("orders/0",)),
        SegmentInfo("orders/2", 4, None, 0, ("orders/1",)),
    )
    made.join(A)
    made.accept_grants()
    assert made.owners() == {A: ["orders/0"]}
    made.report(A, "orders/0", (0, 2))
    assert "orders/2" in made.owners()[A]
    assert made.rows["orders/1"].finished


def test_same_segment_numbers_of_two_streams_do_not_mix() -> None:
    made = Led()
    made.segments(
        SegmentInfo("orders/0", 2, 2),
        SegmentInfo("bills/0", 2, 2),
        SegmentInfo("bills/1", 0, None, 0, ("bills/0",)),
    )
    made.join(A)
    made.accept_grants()
    made.report(A, "orders/0", (0, 2))
    assert "bills/1" not in made.owners()[A]


def test_segment_deleted_from_the_log_leaves_the_group_and_the_store() -> None:
    made = led(A, segments=2)
    made.segments(gone=("orders/0",))
    made.hand_back(A, "orders/0") if made.take(Revoke) else None
    assert made.owners() == {A: ["orders/1"]}
    assert "orders/0" not in made.rows


def test_segment_deleted_before_its_grant_was_announced_leaves_quietly() -> None:
    made = Led(hold_commits=True)
    made.segments(open_segment(0))
    made.join(A)
    made.segments(gone=("orders/0",))
    made.commit()
    assert made.owners() == {A: []}
    assert made.take(Grant) == []
    assert "orders/0" not in made.rows


def test_segment_whose_end_was_acked_in_a_transaction_is_finished_by_the_next_grant() -> None:
    made = Led()
    made.segments(SegmentInfo("orders/0", 3, 3), SegmentInfo("orders/1", 3, None, 0, ("orders/0",)))
    made.join(A)
    made.settle()
    row = made.rows["orders/0"]
    made.rows["orders/0"] = StoredUnit("orders/0", row.token, progress(3))
    made.leave(A)
    made.join(B)
    made.settle()
    assert made.rows["orders/0"].finished
    assert made.owners() == {B: ["orders/1"]}


def test_group_starts_a_new_segment_where_it_is_told_to() -> None:
    made = Led()
    made.segments(SegmentInfo("orders/0", 100, None, 40))
    made.join(A)
    assert made.take(Grant)[0].progress == progress(40)
    assert made.rows["orders/0"].progress == progress(40)


def test_older_listing_is_passed_over() -> None:
    made = led(A, segments=1)
    before = made.leader.snapshot()
    made.revision = -1
    made.segments(SegmentInfo("orders/9", 5))
    assert made.leader.snapshot() == before


# --- leadership ---


def test_leader_asks_for_segments_and_renews_its_lease() -> None:
    made = led(A)
    made.tick(3000, alive=(A,))
    kinds = {type(effect) for effect in made.others}
    assert {ListSegments, RenewLease} <= kinds


def test_new_leader_continues_tokens_and_progress() -> None:
    made = led(A, stored=(StoredUnit("orders/0", 7, progress(3, (5, 6))),), segments=1)
    state = made.leader.units["orders/0"]
    assert state.token == 8
    assert made.leader.progress_of("orders/0") == progress(3, (5, 6))


def test_fenced_leader_steps_down_and_sends_its_borrowers_away() -> None:
    made = led(A, B)
    made.hold_commits = True
    made.report(A, made.owners()[A][0], (0, 1))
    commit = made.held.pop()
    made.do(made.leader.commit_failed(commit.number, "token 6", lost=True))
    assert {message.borrower for message in made.take(Invalidate)} == {A, B}
    assert isinstance(made.others[-1], StepDown)
    with pytest.raises(DeposedError):
        made.leader.receive(Ping(GROUP, A, 5, 1), 0)


def test_leader_steps_down_by_itself_when_its_lease_has_run_out() -> None:
    made = led(A)
    made.do(made.leader.tick(10_000))
    assert made.leader.deposed


def test_lease_counts_from_when_its_renewal_was_sent() -> None:
    made = led(A)
    made.leader.lease_renewed(500)
    made.do(made.leader.tick(10_499))
    assert not made.leader.deposed
    made.do(made.leader.tick(10_500))
    assert made.leader.deposed


def test_lost_lease_ends_the_leadership() -> None:
    made = led(A)
    made.do(made.leader.lease_lost("token 6"))
    assert made.leader.deposed


# --- bad input: an error that names message and state, and nothing changes ---


def bad_messages() -> list[tuple[str, FromBorrower, type[Exception]]]:
    def about(
        unit: str,
        token: int,
        *acked: tuple[int, int],
        final: bool = False,
        attempts: tuple[tuple[int, int], ...] = (),
    ) -> Message:
        report = UnitReport(unit, token, acked, attempts, False, final)
        return UpdateProgress(GROUP, A, 5, 1, (report,))

    unexpected, stale = UnexpectedMessageError, StaleTokenError
    cases: list[tuple[str, Message, type[Exception]]] = [
        ("another group", Ping("else", A, 5, 1), unexpected),
        ("a leader's message", PingResponse(GROUP, A, 5, 1), unexpected),
        ("an unknown borrower", Ping(GROUP, "x:1:1", 5, 1), unexpected),
        ("a former leader's borrower", Ping(GROUP, A, 4, 1), stale),
        ("a newer leader's borrower", Ping(GROUP, A, 6, 1), stale),
        ("an unknown unit", about("orders/9", 1), unexpected),
        ("a former token", about("orders/0", 0, (0, 1)), stale),
        ("a token never given", about("orders/0", 2, (0, 1)), unexpected),
        ("an empty range", about("orders/0", 1, (3, 3)), unexpected),
        ("a negative range", about("orders/0", 1, (-1, 3)), unexpected),
        ("a range beyond all offsets", about("orders/0", 1, (0, 2**63)), unexpected),
        ("attempts that cannot be", about("orders/0", 1, attempts=((3, 0),)), unexpected),
        ("the end of what is not revoked", about("orders/0", 1, final=True), unexpected),
        ("finishing what is not revoked", RevokeFinished(GROUP, A, 5, "orders/0", 1), unexpected),
        ("a good-bye of nobody", Disconnect(GROUP, "x:1:1", 5, 1, ()), unexpected),
    ]
    return cases  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("message", "error"),
    [pytest.param(message, error, id=name) for name, message, error in bad_messages()],
)
def test_bad_message_is_refused_by_name_and_changes_nothing(
    message: FromBorrower, error: type[Exception]
) -> None:
    made = led(A)
    before = made.leader.snapshot()
    with pytest.raises(error) as caught:
        made.leader.receive(message, 77)
    assert type(message).__name__ in str(caught.value)
    assert "leading" in str(caught.value)
    assert made.leader.snapshot() == before


def test_report_with_one_bad_unit_is_refused_as_a_whole() -> None:
    made = led(A)
    units = (UnitReport("orders/0", 1, ((0, 1),)), UnitReport("orders/1", 9, ((0, 1),)))
    before = made.leader.snapshot()
    with pytest.raises(UnexpectedMessageError):
        made.leader.receive(UpdateProgress(GROUP, A, 5, 1, units), 0)
    assert made.leader.snapshot() == before


def test_acks_beyond_the_end_of_a_sealed_segment_are_refused() -> None:
    made = led(A, segments=1)
    made.segments(SegmentInfo("orders/0", 10, 10))
    with pytest.raises(UnexpectedMessageError, match=r"acks \[9, 11\)"):
        made.report(A, "orders/0", (9, 11))


def test_lost_borrower_is_told_to_begin_again() -> None:
    made = led(A)
    with pytest.raises(UnexpectedMessageError) as caught:
        made.leader.receive(Ping(GROUP, "x:1:1", 5, 1), 0)
    reply = caught.value.replies[0]
    assert isinstance(reply, Invalidate)
    assert (reply.borrower, reply.token) == ("x:1:1", 5)


def test_unknown_borrower_cannot_be_evicted_or_dropped() -> None:
    made = led(A)
    before = made.leader.snapshot()
    with pytest.raises(UnexpectedMessageError, match="x:1:1"):
        made.leader.evict("x:1:1", "why not", 0)
    with pytest.raises(UnexpectedMessageError, match="x:1:1"):
        made.leader.drop_silent("x:1:1", 0)
    assert made.leader.snapshot() == before


def test_goodbye_before_connecting_removes_the_borrower() -> None:
    made = Led()
    made.say(LeaderWanted(GROUP, A, 0, "a"))
    made.say(Disconnect(GROUP, A, 0, 0, ()))
    assert made.owners() == {}
    assert made.take(ProgressConfirmed) == []


@pytest.mark.parametrize("name", ["resend_ms", "stall_timeout_ms", "lease_ttl_ms"])
def test_settings_out_of_range_are_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidSharedSettingsError, match=name):
        msgspec.structs.replace(LeaderSettings(), **{name: 0})


def test_heartbeat_must_fit_into_the_lease() -> None:
    with pytest.raises(InvalidSharedSettingsError, match="heartbeat_ms"):
        LeaderSettings(heartbeat_ms=6000, lease_ttl_ms=10_000)


def test_a_lease_keeps_its_time_until_it_is_renewed_under_new_settings() -> None:
    made = led(A)
    before_ms = made.leader.settings.lease_ttl_ms
    shorter = LeaderSettings(lease_ttl_ms=before_ms // 4, heartbeat_ms=before_ms // 10)
    made.leader.configure(shorter, made.now_ms)
    made.now_ms += before_ms // 2  # longer than the new time, within that of the lease
    renewals = [e for e in made.leader.tick(made.now_ms) if isinstance(e, RenewLease)]
    assert [renewal.ttl_ms for renewal in renewals] == [shorter.lease_ttl_ms]
    made.leader.lease_renewed(made.now_ms)
    made.leader.tick(made.now_ms + shorter.lease_ttl_ms)
    assert made.leader.deposed
