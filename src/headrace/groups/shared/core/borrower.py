"""The borrower: one shared subscription of one session, as seen by its leader.

Theory of operation.  A borrower looks for a leader, is granted units, passes on what the session
acks, and gives units back.  Its status and that of each unit move along the two tables in
``borrower_states`` and never in a circle: a borrower that finds itself out of step does not repair
itself, it ends, and its agent makes a new one with a new identifier.

Three things make it safe on a network that loses, repeats and reorders:

* *Liveness is counted from the ping that was sent, not from the answer that came* (``pulse``).
* *A unit's token decides which of two messages about it is late.*  ``closed`` remembers the
  highest token per unit that this borrower is through with, so that a grant overtaken by its own
  revocation is not taken for a new one.
* *Reports are kept until confirmed* and sent again as one; adding them twice changes nothing.

Messages that a correct leader may cause (repeats, late ones) are answered or passed over.  A
message with an old token raises ``StaleTokenError``; one that cannot be explained raises
``UnexpectedMessageError``.  Neither changes anything; the agent then ends the borrower on the
second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from headrace.errors import StaleTokenError, UnexpectedMessageError
from headrace.groups.shared.core.borrower_states import (
    TRANSITIONS,
    UNIT_TRANSITIONS,
    Status,
    UnitStatus,
)
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
    NO_TOKEN,
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
    Ranges,
    Revoke,
    Revoked,
    RevokeFinished,
    Unit,
    UnitReport,
    UpdateProgress,
)
from headrace.groups.shared.core.pulse import Pulse
from headrace.groups.shared.core.settings import FAR_MS, BorrowerSettings
from headrace.groups.shared.core.unconfirmed import HeldUnit, ReportIndex


class Borrower:
    """The state machine of one shared subscription in one session."""

    def __init__(
        self,
        borrower: str,
        *,
        group: str,
        session: str,
        settings: BorrowerSettings,
        now_ms: int,
    ) -> None:
        self.borrower = borrower
        self.group = group
        self.session = session
        self.settings = settings
        self.status = Status.CONNECTING
        self.token = NO_TOKEN
        self.leader = ""
        self._held: dict[Unit, HeldUnit] = {}
        self._closed: dict[Unit, int] = {}
        self._reports = 0
        self._index = ReportIndex()
        self._sent: deque[tuple[int, int]] = deque()
        """(report, time): that report was not sent before that time; one entry per known time."""
        self._clock_ms = now_ms
        """The last time that it was given; now is not before it."""
        self.pulse = Pulse(settings, now_ms)
        self._find_due_ms = now_ms
        self._resend_due_ms = now_ms + settings.resend_ms
        self._unsubscribe_deadline_ms = now_ms
        self._goodbye: int | None = None
        """The first report in which good-bye was said, while waiting for its confirmation."""

    # --- what it knows ---

    @property
    def units(self) -> dict[Unit, UnitStatus]:
        """The units it has, by status."""
        return {unit: held.status for unit, held in self._held.items()}

    @property
    def due_ms(self) -> int:
        """When ``tick`` has something to do."""
        if self.status is Status.CONNECTING:
            return self._find_due_ms
        if self.status is Status.GONE:
            return FAR_MS
        due_ms = min(self.pulse.due_ms, self.pulse.lost_ms, self._resend_due_ms)
        unsubscribing = self.status is Status.UNSUBSCRIBING
        return min(due_ms, self._unsubscribe_deadline_ms) if unsubscribing else due_ms

    def snapshot(self) -> tuple[object, ...]:
        """Everything that decides what it will do, as comparable values."""
        return (
            self.status,
            self.token,
            self.leader,
            tuple(
                (u, h.token, h.status, h.final, tuple(h.reports.items()), tuple(h.attempts.items()))
                for u, h in self._held.items()
            ),
            tuple(sorted(self._closed.items())),
            self._reports,
            tuple(self._sent),
            self.pulse.snapshot(),
            self._find_due_ms,
            self._resend_due_ms,
            self._unsubscribe_deadline_ms,
            self._goodbye,
        )

    # --- messages ---

    def receive(self, message: Message, now_ms: int) -> list[Effect]:
        """Take a message from the leader."""
        self._check_address(message)
        self._clock_ms = now_ms
        match message:
            case Invalidate():
                return self._end("invalidate", message.reason, recreate=self._wanted)
            case LeaderConnectResponse() if self.status is Status.CONNECTING:
                return self._connect(message, now_ms)
            case LeaderConnectResponse():
                return []  # a repeat: this leader is known
            case PingResponse():
                self.pulse.answered(message.number)
                return []
            case ProgressConfirmed():
                return self._confirm(message)
            case Grant() | Revoke() | Revoked() if self.status is Status.UNSUBSCRIBING:
                return []  # good-bye answers them all
            case Grant():
                return self._grant(message)
            case Revoke():
                return self._revoke(message)
            case Revoked():
                return self._revoked(message)
        raise self._unexpected(message, "is not for a borrower")

    def _check_address(self, message: Message) -> None:
        if message.borrower != self.borrower or message.group != self.group:
            raise self._unexpected(message, f"is for {message.borrower} of {message.group}")
        if self.status is Status.GONE:
            raise self._unexpected(message, "comes after the end")
        if self.status is Status.CONNECTING:
            if not isinstance(message, LeaderConnectResponse | Invalidate):
                raise self._unexpected(message, "comes before any leader is known")
        elif message.token < self.token:
            raise self._stale(message, f"has the leader token {message.token}, not {self.token}")
        elif message.token > self.token and not isinstance(message, Invalidate):
            raise self._unexpected(message, f"is from a newer leader than {self.token}")

    def _connect(self, message: LeaderConnectResponse, now_ms: int) -> list[Effect]:
        self._move("leader_connect_response")
        self.token = message.token
        self.leader = message.leader
        self.pulse.begin(now_ms)
        self._resend_due_ms = now_ms + self.settings.resend_ms
        # The leader gives units only to borrowers that have answered: ping at once.
        return [self._tell(self._ping(now_ms))]

    def _grant(self, message: Grant) -> list[Effect]:
        unit, token = message.unit, message.unit_token
        held = self._held.get(unit)
        if held is not None:
            self._check_unit_token(message, token, held)
            return [self._report_all([unit])]
        if token <= self._closed.get(unit, 0):
            return []  # overtaken by its own revocation
        self._held[unit] = HeldUnit(token)
        install = Install(self.borrower, unit, token, message.progress, self.token)
        return [install, self._report_all([unit])]

    def _revoke(self, message: Revoke) -> list[Effect]:
        unit, token = message.unit, message.unit_token
        held = self._held.get(unit)
        if held is None:
            # The grant is still under way, or was lost: there is nothing to finish.
            self._closed[unit] = max(token, self._closed.get(unit, 0))
            return [self._report((UnitReport(unit, token, final=True),))]
        self._check_unit_token(message, token, held)
        if held.status is UnitStatus.GRANTED:
            self._move_unit(held, "revoke")
            return [Release(self.borrower, unit, token)]
        return [self._report_all([unit])] if held.final else []

    def _revoked(self, message: Revoked) -> list[Effect]:
        unit, token = message.unit, message.unit_token
        held = self._held.get(unit)
        if held is None:
            if token > self._closed.get(unit, 0):
                raise self._unexpected(message, f"{unit} was never revoked here")
            return [self._finished(unit, token)]
        if token < held.token:
            return [self._finished(unit, token)]  # late, of an earlier grant of the same unit
        self._check_unit_token(message, token, held)
        if not held.final:
            raise self._unexpected(message, f"{unit} is {held.status} and not finished")
        return [
            *self._drop(unit, fenced=False, reason="revoked"),
            self._finished(unit, token),
        ]

    def _check_unit_token(self, message: Message, token: int, held: HeldUnit) -> None:
        if token < held.token:
            raise self._stale(message, f"has the unit token {token}, not {held.token}")
        if token > held.token:
            raise self._unexpected(message, f"skips the revocation of token {held.token}")

    def _confirm(self, message: ProgressConfirmed) -> list[Effect]:
        effects: list[Effect] = []
        while self._sent and self._sent[0][0] <= message.report:
            _, sent_ms = self._sent.popleft()
            self.pulse.confirmed(sent_ms)
        for unit in self._index.confirmed(message.report):
            held = self._held.get(unit)
            if held is not None and (acked := held.confirm(message.report)):
                effects.append(Confirmed(self.borrower, unit, held.token, acked))
        if self._goodbye is not None and message.report >= self._goodbye:
            effects += self._end("final progress confirmed", "unsubscribed", recreate=False)
        return effects

    # --- callbacks of the session ---

    def on_progress(
        self,
        unit: Unit,
        unit_token: int,
        *,
        acked: Ranges = (),
        attempts: Ranges = (),
        answered: bool = False,
        final: bool = False,
    ) -> list[Effect]:
        """The session has acked or refused events of a unit, or is done with it (`final`)."""
        held = self._held.get(unit)
        if held is None or held.token != unit_token or held.final:
            state = "finished" if held and held.final else f"token {held.token}" if held else "gone"
            raise StaleTokenError(
                f"progress of {unit} under token {unit_token} is refused: the unit is {state} at "
                f"borrower {self.borrower} ({self.status})",
                state=self.status,
            )
        if any(not 0 <= low < high for low, high in acked):
            raise self._bad_call(f"acked ranges {acked} of {unit} are not ranges of offsets")
        if final and held.status is UnitStatus.GRANTED:
            raise self._bad_call(f"{unit} cannot be finished: it was not released")
        held.final = final
        held.attempts = {
            offset: count
            for offset, count in (*held.attempts.items(), *attempts)
            if not any(low <= offset < high for low, high in acked)
        }
        self._reports += 1
        held.reports[self._reports] = acked
        self._index.note(self._reports, unit, self._held)
        if not final:
            report = UnitReport(unit, held.token, acked, attempts, answered)
            return [self._tell_progress(self._reports, (report,))]
        # A final report repeats all that is unconfirmed, so that its receipt confirms all of it.
        if self.status is Status.UNSUBSCRIBING and self._all_final:
            return [self._say_goodbye()]
        return [self._report_all([unit])]

    def on_unsubscribe(self, now_ms: int) -> list[Effect]:
        """The session does not want the subscription any more; finish, report, end."""
        match self.status:
            case Status.CONNECTING:
                return [self._leave_unconnected(), *self._end("on_unsubscribe", "unsubscribed")]
            case Status.CONNECTED:
                self._move("on_unsubscribe")
                self._unsubscribe_deadline_ms = now_ms + self.settings.unsubscribe_timeout_ms
                self._resend_due_ms = now_ms + self.settings.unsubscribe_resend_ms
                effects: list[Effect] = []
                for unit, held in self._held.items():
                    if held.status is UnitStatus.GRANTED:
                        self._move_unit(held, "on_unsubscribe")
                        effects.append(Release(self.borrower, unit, held.token))
                if self._all_final:
                    effects.append(self._say_goodbye())
                return effects
        raise self._bad_call("it is unsubscribed already")

    def on_disconnect(self) -> list[Effect]:
        """The session closes now: send the last progress to the leader, and end."""
        if self.status is Status.GONE:
            raise self._bad_call("it is gone already")
        last = self._leave_unconnected() if not self.leader else self._say_goodbye()
        return [last, *self._end("on_disconnect", "disconnected")]

    def invalidate(self, reason: str) -> list[Effect]:
        """Out of step with the leader: end, and have the agent begin again."""
        if self.status is Status.GONE:
            raise self._bad_call("it is gone already")
        return self._end("invalidate", reason, recreate=self._wanted)

    # --- time ---

    def on_cut(self, now_ms: int) -> None:
        """The connection to the leader broke: send again at once what may be lost."""
        self.pulse.due_ms = self._resend_due_ms = now_ms

    def beat(self, now_ms: int) -> Ping | None:
        """The ping, if that is all that is due; None: see ``tick``."""
        pulse = self.pulse
        connected = self.status is Status.CONNECTED and now_ms < pulse.lost_ms
        if not connected or now_ms < pulse.due_ms:
            return None
        if not self._unconfirmed:
            self._resend_due_ms = now_ms + self.settings.resend_ms
        elif now_ms >= self._resend_due_ms:
            return None
        self._clock_ms = now_ms
        return Ping(self.group, self.borrower, self.token, pulse.ping(now_ms))

    def tick(self, now_ms: int) -> list[Effect]:
        """Do what is due."""
        self._clock_ms = now_ms
        if self.status is Status.CONNECTING:
            return self.find(now_ms) if now_ms >= self._find_due_ms else []
        if self.status is Status.GONE:
            return []
        if now_ms >= self.pulse.lost_ms:
            return self.lose_leader()
        if self.status is Status.UNSUBSCRIBING and now_ms >= self._unsubscribe_deadline_ms:
            return self.give_up_unsubscribing()
        effects: list[Effect] = []
        if now_ms >= self.pulse.due_ms:
            effects.append(self._tell(self._ping(now_ms)))
        if now_ms >= self._resend_due_ms:
            effects += self.resend(now_ms)
        return effects

    def find(self, now_ms: int) -> list[Effect]:
        """Ask for the leader, and again after a while."""
        self._find_due_ms = now_ms + self.settings.find_leader_ms
        wanted = LeaderWanted(self.group, self.borrower, NO_TOKEN, self.session)
        return [ToRegistry(wanted)]

    def lose_leader(self) -> list[Effect]:
        """No ping was answered for too long."""
        return self._end("ping timeout", "the leader does not answer", recreate=self._wanted)

    def give_up_unsubscribing(self) -> list[Effect]:
        """The session, or the leader, takes too long: report what there is and end."""
        effects: list[Effect] = [self._say_goodbye()]
        return effects + self._end("unsubscribe timeout", "unsubscribed, not all confirmed")

    def resend(self, now_ms: int) -> list[Effect]:
        """Send again what has not been confirmed."""
        unsubscribing = self.status is Status.UNSUBSCRIBING
        pause_ms = self.settings.unsubscribe_resend_ms if unsubscribing else self.settings.resend_ms
        self._resend_due_ms = now_ms + pause_ms
        if self._goodbye is not None:
            return [self._say_goodbye()]
        units = self._unconfirmed
        return [self._report_all(units)] if units else []

    # --- parts ---

    @property
    def _wanted(self) -> bool:
        """Whether the session still wants the subscription."""
        return self.status is not Status.UNSUBSCRIBING

    @property
    def _all_final(self) -> bool:
        return all(held.final for held in self._held.values())

    @property
    def _unconfirmed(self) -> list[Unit]:
        """The units of which something is to be sent again."""
        return [unit for unit, held in self._held.items() if held.reports or held.final]

    def _ping(self, now_ms: int) -> Ping:
        return Ping(self.group, self.borrower, self.token, self.pulse.ping(now_ms))

    def _report_all(self, units: Iterable[Unit]) -> Effect:
        """Report everything that is not confirmed of some units."""
        return self._report(self._repeat(units))

    def _repeat(self, units: Iterable[Unit]) -> tuple[UnitReport, ...]:
        """Everything that is not confirmed, noted as the content of the next report.

        A unit is called final only to a leader that has revoked it; one that unsubscribes says
        good-bye to all of its units at once.
        """
        number = self._reports + 1
        connected = self.status is Status.CONNECTED
        reports = []
        for unit in units:
            held = self._held[unit]
            attempts = tuple(held.attempts.items())
            acked, final = held.unconfirmed(), held.final and connected
            reports.append(UnitReport(unit, held.token, acked, attempts, final=final))
            if held.reports or held.final:
                held.reports[number] = None
                self._index.note(number, unit, self._held)
        return tuple(reports)

    def _report(self, units: tuple[UnitReport, ...]) -> Effect:
        self._reports += 1
        return self._tell_progress(self._reports, units)

    def _tell_progress(self, number: int, units: tuple[UnitReport, ...]) -> Effect:
        if not self._sent or self._sent[-1][1] != self._clock_ms:
            self._sent.append((number, self._clock_ms))
        return self._tell(UpdateProgress(self.group, self.borrower, self.token, number, units))

    def _say_goodbye(self) -> Effect:
        units = self._repeat(self._held)
        self._reports += 1
        if self._goodbye is None:
            self._goodbye = self._reports
        return self._tell(Disconnect(self.group, self.borrower, self.token, self._reports, units))

    def _leave_unconnected(self) -> Effect:
        return ToRegistry(Disconnect(self.group, self.borrower, NO_TOKEN, 0, ()))

    def _finished(self, unit: Unit, token: int) -> Effect:
        return self._tell(RevokeFinished(self.group, self.borrower, self.token, unit, token))

    def _tell(self, message: FromBorrower) -> Effect:
        return ToLeader(self.leader, message)

    def _drop(self, unit: Unit, *, fenced: bool, reason: str) -> list[Effect]:
        held = self._held.pop(unit)
        self._closed[unit] = held.token
        effects: list[Effect] = []
        unconfirmed = held.unconfirmed()
        if unconfirmed and not fenced:
            # `revoked` says that the final report, which held all of them, is durable.
            effects.append(Confirmed(self.borrower, unit, held.token, unconfirmed))
        effects.append(Remove(self.borrower, unit, held.token, fenced, reason))
        return effects

    def _end(self, cause: str, reason: str, *, recreate: bool = False) -> list[Effect]:
        confirmed = cause == "final progress confirmed"
        self._move(cause)
        effects: list[Effect] = []
        for unit in list(self._held):
            effects += self._drop(unit, fenced=not confirmed, reason=reason)
        effects.append(Gone(self.borrower, recreate, reason))
        return effects

    def _move(self, cause: str) -> None:
        self.status = TRANSITIONS[self.status, cause]

    @staticmethod
    def _move_unit(held: HeldUnit, cause: str) -> None:
        held.status = UNIT_TRANSITIONS[held.status, cause]

    def _unexpected(self, message: Message, why: str) -> UnexpectedMessageError:
        return UnexpectedMessageError(self._says(message, why), state=self.status)

    def _stale(self, message: Message, why: str) -> StaleTokenError:
        return StaleTokenError(self._says(message, why), state=self.status)

    def _says(self, message: Message, why: str) -> str:
        name = type(message).__name__
        return f"{name} to borrower {self.borrower} ({self.status}) is refused: it {why}"

    def _bad_call(self, why: str) -> UnexpectedMessageError:
        return UnexpectedMessageError(
            f"call of borrower {self.borrower} ({self.status}) is refused: {why}",
            state=self.status,
        )
