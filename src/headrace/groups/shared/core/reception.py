"""Reception: what borrowers say to a leader, checked and then applied to what the group holds.

A message is checked whole before any of it is applied: one that is refused changes nothing.  A
message with an old token raises ``StaleTokenError``, one that a correct borrower never sends raises
``UnexpectedMessageError``; either may carry an ``Invalidate`` that tells its sender to begin again.
"""

from __future__ import annotations

from headrace.errors import DeposedError, StaleTokenError, UnexpectedMessageError
from headrace.groups.decisions.core.record import What
from headrace.groups.progress.bounds import OFFSET_MAX
from headrace.groups.shared.core.assignment import FREE, GRANTING, AssignmentStatus, UnitState
from headrace.groups.shared.core.holdings import LOADED, Holdings, LedMember
from headrace.groups.shared.core.leader_view import LeaderView
from headrace.groups.shared.core.ledger import Ledger
from headrace.groups.shared.core.messages import (
    NO_TOKEN,
    Disconnect,
    Invalidate,
    LeaderConnectResponse,
    LeaderWanted,
    Message,
    Ping,
    RevokeFinished,
    UnitReport,
    UpdateProgress,
)
from headrace.groups.shared.core.records import LeaderEffect, ToBorrower


class Reception(LeaderView):
    """The part of a leader that takes messages."""

    def __init__(
        self, group: str, name: str, token: int, holdings: Holdings, ledger: Ledger
    ) -> None:
        super().__init__(holdings, ledger)
        self.group = group
        self.name = name
        self.token = token
        self.deposed = False

    def _take(self, message: Message, now_ms: int) -> list[LeaderEffect]:
        """Check and apply a message; returns the answers to it."""
        if message.group != self.group:
            raise self._unexpected(message, f"is for group {message.group}")
        if isinstance(message, LeaderWanted):
            return self._take_in(message, now_ms)
        member = self._sender(message)
        effects: list[LeaderEffect] = []
        match message:
            case UpdateProgress():
                self._progress(member, message, now_ms)
            case Ping():
                effects = self._pinged(member, message, now_ms)
            case RevokeFinished():
                self._revoke_finished(member, message)
            case Disconnect():
                self._disconnect(member, message, now_ms)
            case _:
                raise self._unexpected(message, "is not for a leader")
        member.seen_ms = now_ms
        return effects

    def _sender(self, message: Message) -> LedMember:
        member = self._holdings.members.get(message.borrower)
        if member is not None and message.token == self.token:
            return member  # nearly always
        early_leave = (
            isinstance(message, Disconnect) and message.token == NO_TOKEN and member is not None
        )
        if message.token > self.token:
            raise self._stale(message, f"comes from the time of a newer leader, {message.token}")
        if message.token < self.token and not early_leave:
            raise self._stale(
                message, f"has the leader token {message.token}", invalidate="the leader is new"
            )
        if member is None:
            raise self._unexpected(
                message, "comes from an unknown borrower", invalidate="not known to the leader"
            )
        return member

    def _member(self, borrower: str) -> LedMember:
        member = self._holdings.members.get(borrower)
        if member is None:
            raise UnexpectedMessageError(
                f"leader {self.name} of {self.group} knows no borrower {borrower}", state="leading"
            )
        return member

    def _lost(self, member: LedMember, now_ms: int) -> None:
        """It was not heard for too long, or is known to be dead."""
        silent_s = max(0, now_ms - member.seen_ms) / 1000
        self._holdings.drop(member, What.LOST, f"silent for {silent_s:.3f} s", now_ms)

    def _take_in(self, message: LeaderWanted, now_ms: int) -> list[LeaderEffect]:
        self._holdings.join(message.borrower, message.session, now_ms)
        response = LeaderConnectResponse(self.group, message.borrower, self.token, self.name)
        return [ToBorrower(response)]

    def _pinged(self, member: LedMember, message: Ping, now_ms: int) -> list[LeaderEffect]:
        self._holdings.proven(member, now_ms)
        return [ToBorrower(message.response)]

    def answers(self, ping: Ping, now_ms: int) -> bool:
        """Take a ping that changes nothing but when its sender was last heard; it is answered.

        False: it may change more, or is refused, and has to be received like any message.
        """
        member = self._holdings.members.get(ping.borrower)
        if member is None or not member.proven or ping.token != self.token:
            return False
        member.seen_ms = now_ms
        return True

    def _progress(self, member: LedMember, message: UpdateProgress, now_ms: int) -> None:
        # All are checked before any of them is applied.
        found = []
        for report in message.units:
            found.append((self._reported(member, message, report), report))
        to_confirm = False
        for state, report in found:
            if self._apply(member, state, report, now_ms) or report.acked or report.final:
                to_confirm = True
        if to_confirm:
            # Confirmed when everything known about these units is durable: at once if it is.
            self._ledger.confirm(member.borrower, message.report)

    def _reported(self, member: LedMember, message: Message, report: UnitReport) -> UnitState:
        """The unit a report is about, if the report counts; changes nothing."""
        state = self._holdings.units.get(report.unit)
        if state is None:
            raise self._unexpected(message, f"reports {report.unit}, which is not in the group")
        if state.token != report.unit_token or state.borrower != member.borrower:
            if report.unit_token > state.token:
                raise self._unexpected(message, f"has a token of {report.unit} never given")
            raise self._stale(
                message, f"has the token {report.unit_token} of {report.unit}, not {state.token}"
            )
        if not state.claimed or state.status is FREE:
            raise self._unexpected(message, f"reports {report.unit}, which was not granted yet")
        if report.final and state.status in LOADED:
            raise self._unexpected(
                message,
                f"finishes {report.unit}, which is not being revoked",
                invalidate="finished a unit that was not revoked",
            )
        end = OFFSET_MAX if state.end is None else state.end
        for low, high in report.acked:
            if not 0 <= low < high <= end:
                raise self._unexpected(message, f"acks [{low}, {high}) of {report.unit}")
        for offset, count in report.attempts:
            if not (0 <= offset < end and count > 0):
                raise self._unexpected(message, f"counts {count} attempts at {offset}")
        return state

    def _apply(self, member: LedMember, state: UnitState, report: UnitReport, now_ms: int) -> bool:
        """Add a report to what is known; True if that has to be stored."""
        gained = 0
        for low, high in report.acked:
            gained += state.acked.ack_range(low, high)
        retried = False
        for offset, count in report.attempts:
            if offset not in state.acked and count > state.attempts.get(offset, 0):
                state.attempts[offset] = count
                retried = True
        if gained and state.attempts:
            state.attempts = {o: n for o, n in state.attempts.items() if o not in state.acked}
        if state.status is GRANTING:
            state.move("progress")
            del self._holdings.in_transition[state.unit]
        finishing = report.final and not state.final
        state.final = state.final or report.final
        if gained:
            self._holdings.worked(member)
        if (gained or report.answered) and member.waiting:
            member.waiting.pop(state.unit, None)
        self._holdings.watch(member, state, now_ms)
        if gained or retried or finishing:
            self._ledger.save(state)
            return True
        return False

    def _revoke_finished(self, member: LedMember, message: RevokeFinished) -> None:
        state = self._holdings.units.get(message.unit)
        mine = state is not None and state.borrower == member.borrower
        if state is None or not mine or state.token > message.unit_token:
            return  # late: the unit was handed over in the meantime, as it should
        if state.token < message.unit_token or state.status is not AssignmentStatus.REVOKED:
            raise self._unexpected(
                message,
                f"finishes {message.unit}, which is {state.status}",
                invalidate="finished a unit that was not revoked",
            )
        self._holdings.unassign(state, "revoke_finished")

    def _disconnect(self, member: LedMember, message: Disconnect, now_ms: int) -> None:
        # Good-bye is taken whatever it says; of its progress only what still counts.
        for report in message.units:
            try:
                state = self._reported(member, message, report)
            except (StaleTokenError, UnexpectedMessageError):
                continue
            self._apply(member, state, report, now_ms)
        if message.token != NO_TOKEN:
            self._ledger.confirm(member.borrower, message.report)
        self._holdings.drop(member, What.LEFT, "disconnected", now_ms)

    # --- refusing ---

    def _check_leading(self) -> None:
        if self.deposed:
            raise DeposedError(
                f"leader {self.name} of {self.group} has stepped down (token {self.token})",
                state="deposed",
            )

    def _unexpected(
        self, message: Message, why: str, *, invalidate: str | None = None
    ) -> UnexpectedMessageError:
        return UnexpectedMessageError(
            self._says(message, why), state="leading", replies=self._reply(message, invalidate)
        )

    def _stale(
        self, message: Message, why: str, *, invalidate: str | None = None
    ) -> StaleTokenError:
        return StaleTokenError(
            self._says(message, why), state="leading", replies=self._reply(message, invalidate)
        )

    def _says(self, message: Message, why: str) -> str:
        return (
            f"{type(message).__name__} of {message.borrower} to leader {self.name} of {self.group} "
            f"(leading, token {self.token}) is refused: it {why}"
        )

    def _reply(self, message: Message, reason: str | None) -> tuple[Invalidate, ...]:
        if reason is None:
            return ()
        return (Invalidate(self.group, message.borrower, self.token, reason),)
