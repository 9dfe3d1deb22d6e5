"""The borrower, one step at a time."""

from __future__ import annotations

import pytest

from headrace.errors import StaleTokenError, UnexpectedMessageError
from headrace.groups.progress import Progress
from headrace.groups.shared.core.borrower import Borrower
from headrace.groups.shared.core.borrower_states import TRANSITIONS, Status, UnitStatus
from headrace.groups.shared.core.effects import (
    Confirmed,
    Effect,
    Gone,
    Install,
    Release,
    Remove,
    ToLeader,
    ToRegistry,
)
from headrace.groups.shared.core.messages import (
    Disconnect,
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
from headrace.groups.shared.core.settings import BorrowerSettings
from headrace.groups.shared.core.unconfirmed import REPORTS_KEPT

GROUP, ME, UNIT, OTHER = "g", "s:1:1", "orders/0", "orders/1"


def connecting() -> Borrower:
    return Borrower(ME, group=GROUP, session="s", settings=BorrowerSettings(), now_ms=0)


def connected(*units: str) -> Borrower:
    borrower = connecting()
    borrower.receive(LeaderConnectResponse(GROUP, ME, 5, "n1"), 0)
    for unit in units:
        borrower.receive(grant(unit), 0)
    return borrower


def grant(unit: str = UNIT, token: int = 3, leader_token: int = 5) -> Grant:
    return Grant(GROUP, ME, leader_token, unit, token, Progress(10))


def revoke(unit: str = UNIT, token: int = 3) -> Revoke:
    return Revoke(GROUP, ME, 5, unit, token)


def revoked(unit: str = UNIT, token: int = 3) -> Revoked:
    return Revoked(GROUP, ME, 5, unit, token)


def told(effects: list[Effect]) -> list[Message]:
    return [effect.message for effect in effects if isinstance(effect, ToLeader | ToRegistry)]


def reports(effects: list[Effect]) -> list[UnitReport]:
    return [
        report
        for message in told(effects)
        if isinstance(message, UpdateProgress | Disconnect)
        for report in message.units
    ]


def ended(effects: list[Effect]) -> bool:
    return any(isinstance(effect, Gone) for effect in effects)


# --- finding the leader ---


def test_borrower_asks_for_its_leader_until_it_is_found() -> None:
    borrower = connecting()
    assert isinstance(told(borrower.tick(0))[0], LeaderWanted)
    assert borrower.tick(999) == []
    assert isinstance(told(borrower.tick(1000))[0], LeaderWanted)


def test_connected_borrower_pings_at_once_and_then_regularly() -> None:
    borrower = connecting()
    effects = borrower.receive(LeaderConnectResponse(GROUP, ME, 5, "n1"), 0)
    assert told(effects) == [Ping(GROUP, ME, 5, 1)]
    assert borrower.status is Status.CONNECTED
    assert told(borrower.tick(1000)) == [Ping(GROUP, ME, 5, 2)]


def test_leader_that_does_not_answer_is_lost() -> None:
    borrower = connected(UNIT)
    effects = borrower.tick(4000)
    removed, gone = effects
    assert removed == Remove(ME, UNIT, 3, True, "the leader does not answer")
    assert isinstance(gone, Gone)
    assert gone.recreate


def test_liveness_counts_from_the_ping_that_was_sent() -> None:
    """An answer may have been under way for long; the leader has heard nothing newer."""
    borrower = connected()
    borrower.tick(1000)
    borrower.receive(PingResponse(GROUP, ME, 5, 2), 3900)
    assert not ended(borrower.tick(4999))
    assert ended(borrower.tick(5000))


def test_late_answer_to_an_old_ping_proves_nothing() -> None:
    borrower = connected()
    borrower.tick(1000)
    borrower.receive(PingResponse(GROUP, ME, 5, 2), 1500)
    borrower.receive(PingResponse(GROUP, ME, 5, 1), 4000)
    assert not ended(borrower.tick(4999))
    assert ended(borrower.tick(5000))


def test_leaving_before_a_leader_is_known_says_goodbye_through_the_registry() -> None:
    for goodbye, gone in (connecting().on_unsubscribe(0), connecting().on_disconnect()):
        assert isinstance(goodbye, ToRegistry)
        assert isinstance(goodbye.message, Disconnect)
        assert isinstance(gone, Gone)
        assert not gone.recreate


# --- units ---


def test_grant_is_installed_and_acknowledged_by_a_report() -> None:
    borrower = connected()
    install, report = borrower.receive(grant(), 0)
    assert install == Install(ME, UNIT, 3, Progress(10), 5)
    assert reports([report]) == [UnitReport(UNIT, 3)]


def test_what_is_noted_of_reports_is_sifted_when_it_has_doubled() -> None:
    units = [f"orders/{number}" for number in range(REPORTS_KEPT * 2)]
    borrower = connected(*units)
    for unit in units:
        borrower.on_progress(unit, 3, acked=((10, 11),))
    # All of them are unconfirmed: to look at all of them again for each would take for ever.
    assert borrower._index.units_in_max >= 2 * REPORTS_KEPT
    assert len(borrower._index.units_in) == len(units)


def test_repeated_grant_is_acknowledged_and_not_installed_again() -> None:
    borrower = connected(UNIT)
    effects = borrower.receive(grant(), 0)
    assert [type(effect) for effect in effects] == [ToLeader]


def test_revoked_unit_is_released_finished_and_forgotten() -> None:
    borrower = connected(UNIT)
    assert borrower.receive(revoke(), 0) == [Release(ME, UNIT, 3)]
    assert borrower.units == {UNIT: UnitStatus.REVOKING}
    effects = borrower.on_progress(UNIT, 3, acked=((10, 12),), final=True)
    assert reports(effects) == [UnitReport(UNIT, 3, ((10, 12),), final=True)]
    effects = borrower.receive(revoked(), 0)
    assert effects[:2] == [
        Confirmed(ME, UNIT, 3, ((10, 12),)),
        Remove(ME, UNIT, 3, False, "revoked"),
    ]
    assert told(effects) == [RevokeFinished(GROUP, ME, 5, UNIT, 3)]
    assert borrower.units == {}


def test_final_report_repeats_everything_that_was_not_confirmed() -> None:
    borrower = connected(UNIT)
    borrower.on_progress(UNIT, 3, acked=((10, 11),))
    borrower.receive(revoke(), 0)
    effects = borrower.on_progress(UNIT, 3, acked=((12, 13),), final=True)
    assert reports(effects)[0].acked == ((10, 11), (12, 13))


def test_grant_overtaken_by_its_revocation_is_passed_over() -> None:
    borrower = connected()
    assert reports(borrower.receive(revoke(), 0)) == [UnitReport(UNIT, 3, final=True)]
    assert borrower.receive(grant(), 0) == []
    assert borrower.units == {}


def test_unit_may_come_back_with_a_higher_token() -> None:
    borrower = connected(UNIT)
    borrower.receive(revoke(), 0)
    borrower.on_progress(UNIT, 3, final=True)
    borrower.receive(revoked(), 0)
    assert isinstance(borrower.receive(grant(token=4), 0)[0], Install)


def test_repeated_revoked_is_answered_again() -> None:
    borrower = connected(UNIT)
    borrower.receive(revoke(), 0)
    borrower.on_progress(UNIT, 3, final=True)
    borrower.receive(revoked(), 0)
    assert told(borrower.receive(revoked(), 0)) == [RevokeFinished(GROUP, ME, 5, UNIT, 3)]


# --- progress ---


def test_confirmed_report_is_told_to_the_session_once() -> None:
    borrower = connected(UNIT)
    effects = borrower.on_progress(UNIT, 3, acked=((10, 11),))
    message = told(effects)[0]
    assert isinstance(message, UpdateProgress)
    confirmation = ProgressConfirmed(GROUP, ME, 5, message.report)
    assert borrower.receive(confirmation, 0) == [Confirmed(ME, UNIT, 3, ((10, 11),))]
    assert borrower.receive(confirmation, 0) == []


def test_unconfirmed_reports_are_sent_again_as_one() -> None:
    borrower = connected(UNIT, OTHER)
    borrower.on_progress(UNIT, 3, acked=((10, 11),))
    borrower.on_progress(UNIT, 3, acked=((11, 12),), attempts=((15, 2),))
    borrower.on_progress(OTHER, 3, acked=((10, 11),))
    effects = [e for e in borrower.tick(1000) if not isinstance(told([e])[0], Ping)]
    assert reports(effects) == [
        UnitReport(UNIT, 3, ((10, 11), (11, 12)), ((15, 2),)),
        UnitReport(OTHER, 3, ((10, 11),)),
    ]
    message = told(effects)[0]
    assert isinstance(message, UpdateProgress)
    confirmed = borrower.receive(ProgressConfirmed(GROUP, ME, 5, message.report), 0)
    assert len(confirmed) == 2
    assert [e for e in borrower.tick(2000) if not isinstance(told([e])[0], Ping)] == []


def test_confirmation_of_one_report_leaves_the_others_open() -> None:
    borrower = connected(UNIT)
    borrower.on_progress(UNIT, 3, acked=((10, 11),))
    second = told(borrower.on_progress(UNIT, 3, acked=((12, 13),)))[0]
    assert isinstance(second, UpdateProgress)
    effects = borrower.receive(ProgressConfirmed(GROUP, ME, 5, second.report), 0)
    assert effects == [Confirmed(ME, UNIT, 3, ((12, 13),))]
    assert reports(borrower.resend(0)) == [UnitReport(UNIT, 3, ((10, 11),))]


def test_attempts_of_acked_events_are_forgotten() -> None:
    borrower = connected(UNIT)
    borrower.on_progress(UNIT, 3, attempts=((10, 1), (20, 1)), answered=True)
    borrower.on_progress(UNIT, 3, acked=((10, 11),))
    assert reports(borrower.resend(0))[0].attempts == ((20, 1),)


# --- leaving ---


def test_unsubscribing_borrower_finishes_reports_and_ends_when_confirmed() -> None:
    borrower = connected(UNIT, OTHER)
    assert borrower.on_unsubscribe(0) == [Release(ME, UNIT, 3), Release(ME, OTHER, 3)]
    assert borrower.status is Status.UNSUBSCRIBING
    borrower.on_progress(UNIT, 3, acked=((10, 11),), final=True)
    goodbye = told(borrower.on_progress(OTHER, 3, acked=((10, 12),), final=True))[0]
    assert isinstance(goodbye, Disconnect)
    assert [report.acked for report in goodbye.units] == [((10, 11),), ((10, 12),)]
    effects = borrower.receive(ProgressConfirmed(GROUP, ME, 5, goodbye.report), 0)
    assert Confirmed(ME, OTHER, 3, ((10, 12),)) in effects
    assert effects[-1] == Gone(ME, False, "unsubscribed")


def test_unsubscribing_borrower_says_goodbye_again_until_confirmed() -> None:
    borrower = connected()
    assert isinstance(told(borrower.on_unsubscribe(0))[0], Disconnect)
    assert isinstance(told(borrower.tick(250))[0], Disconnect)


def test_session_that_takes_too_long_is_reported_as_far_as_it_came() -> None:
    borrower = connected(UNIT)
    borrower.on_unsubscribe(0)
    borrower.on_progress(UNIT, 3, acked=((10, 11),))
    effects = borrower.tick(1000)
    assert reports(effects)[0].acked == ((10, 11),)
    assert Remove(ME, UNIT, 3, True, "unsubscribed, not all confirmed") in effects
    assert borrower.status is Status.GONE


@pytest.mark.parametrize("message", [grant(OTHER), revoke(), revoked()])
def test_unsubscribing_borrower_passes_over_what_concerns_units(message: Message) -> None:
    borrower = connected(UNIT)
    borrower.on_unsubscribe(0)
    assert borrower.receive(message, 0) == []


def test_closing_session_sends_its_progress_and_ends() -> None:
    borrower = connected(UNIT)
    borrower.on_progress(UNIT, 3, acked=((10, 11),))
    effects = borrower.on_disconnect()
    assert reports(effects)[0].acked == ((10, 11),)
    assert effects[-1] == Gone(ME, False, "disconnected")


def test_invalidated_borrower_is_recreated_unless_unsubscribed() -> None:
    borrower = connected(UNIT)
    effects = borrower.receive(Invalidate(GROUP, ME, 6, "new leader"), 0)
    assert effects[-1] == Gone(ME, True, "new leader")
    leaving = connected(UNIT)
    leaving.on_unsubscribe(0)
    assert leaving.receive(Invalidate(GROUP, ME, 5, "x"), 0)[-1] == Gone(ME, False, "x")


def test_statuses_never_go_in_a_circle() -> None:
    order = list(Status)
    assert all(
        order.index(target) > order.index(source) for (source, _), target in TRANSITIONS.items()
    )


# --- bad input ---

BAD = [
    pytest.param(connecting, grant(), UnexpectedMessageError, id="grant before connecting"),
    pytest.param(connecting, Ping(GROUP, ME, 5, 1), UnexpectedMessageError, id="own ping"),
    pytest.param(connected, Ping(GROUP, ME, 5, 1), UnexpectedMessageError, id="ping echoed"),
    pytest.param(connected, grant(leader_token=4), StaleTokenError, id="former leader"),
    pytest.param(connected, grant(leader_token=6), UnexpectedMessageError, id="newer leader"),
    pytest.param(
        connected, Invalidate(GROUP, ME, 4, "old"), StaleTokenError, id="invalidate of a former"
    ),
    pytest.param(
        connected, Revoked(GROUP, ME, 5, UNIT, 3), UnexpectedMessageError, id="never revoked"
    ),
    pytest.param(lambda: connected(UNIT), revoked(), UnexpectedMessageError, id="still granted"),
    pytest.param(
        lambda: connected(UNIT), grant(token=4), UnexpectedMessageError, id="granted over"
    ),
    pytest.param(lambda: connected(UNIT), grant(token=2), StaleTokenError, id="older grant"),
    pytest.param(lambda: connected(UNIT), revoke(token=2), StaleTokenError, id="older revoke"),
    pytest.param(
        connected, PingResponse(GROUP, "x:1:1", 5, 1), UnexpectedMessageError, id="for another"
    ),
    pytest.param(
        connected, PingResponse("else", ME, 5, 1), UnexpectedMessageError, id="other group"
    ),
]


@pytest.mark.parametrize(("make", "message", "error"), BAD)
def test_bad_message_is_refused_by_name_and_changes_nothing(
    make: object, message: Message, error: type[Exception]
) -> None:
    borrower: Borrower = make()  # type: ignore[operator]
    before = borrower.snapshot()
    with pytest.raises(error) as caught:
        borrower.receive(message, 77)
    assert type(message).__name__ in str(caught.value)
    assert borrower.status.value in str(caught.value)
    assert borrower.snapshot() == before


def test_progress_of_what_is_not_held_is_refused_and_changes_nothing() -> None:
    borrower = connected(UNIT)
    before = borrower.snapshot()
    for unit, token in ((OTHER, 3), (UNIT, 2)):
        with pytest.raises(StaleTokenError, match=unit):
            borrower.on_progress(unit, token, acked=((0, 1),))
    with pytest.raises(UnexpectedMessageError, match="not released"):
        borrower.on_progress(UNIT, 3, final=True)
    with pytest.raises(UnexpectedMessageError, match="not ranges"):
        borrower.on_progress(UNIT, 3, acked=((5, 5),))
    assert borrower.snapshot() == before


def test_nothing_is_accepted_after_the_end() -> None:
    borrower = connected(UNIT)
    borrower.on_disconnect()
    before = borrower.snapshot()
    with pytest.raises(UnexpectedMessageError, match="after the end"):
        borrower.receive(grant(), 0)
    for call in (borrower.on_disconnect, lambda: borrower.on_unsubscribe(0)):
        with pytest.raises(UnexpectedMessageError):
            call()
    assert borrower.tick(10**9) == []
    assert borrower.snapshot() == before
