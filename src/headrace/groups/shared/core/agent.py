"""The agent: all borrowers of one session.

It has little to decide.  It makes borrowers and gives each an identifier that is never used again
(session, incarnation of the session, a count), passes events to the one they concern, and makes a
new borrower when one has ended out of step with its leader.  A subscription that was cancelled
and made again quickly has two borrowers for a while, one finishing and one connecting; they do
not know of each other.

Pings that are due together go out as one heartbeat for each program that leads their groups.

For a borrower that is no more the agent answers in its place: a leader that still grants
something to it learns at once that nobody is there, instead of waiting for a timeout.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.errors import StaleTokenError, UnexpectedMessageError
from headrace.groups.shared.core.borrower import Borrower
from headrace.groups.shared.core.borrower_states import Status
from headrace.groups.shared.core.effects import Beat, Effect, Gone, ToRegistry
from headrace.groups.shared.core.messages import (
    Disconnect,
    Grant,
    LeaderConnectResponse,
    Message,
    Ping,
    PingResponse,
    Ranges,
    Revoke,
    Revoked,
    Unit,
)
from headrace.groups.shared.core.settings import FAR_MS, BorrowerSettings


class Agent:
    """Keeps one borrower per subscription, and those that are finishing."""

    def __init__(self, session: str, incarnation: int, settings: BorrowerSettings) -> None:
        self.session = session
        self.incarnation = incarnation
        self.settings = settings
        self._borrowers: dict[str, Borrower] = {}
        self._subscription_of: dict[str, str] = {}
        self._current: dict[str, str] = {}
        """The borrower that serves each subscription."""
        self._made = 0
        self._due_ms: int | None = None
        """When a borrower has something to do, or earlier; None if that is to be found out."""

    @property
    def borrowers(self) -> dict[str, Borrower]:
        """Every living borrower by its identifier."""
        return self._borrowers

    @property
    def due_ms(self) -> int:
        """When ``tick`` may have something to do."""
        if self._due_ms is None:
            self._due_ms = min((b.due_ms for b in self._borrowers.values()), default=FAR_MS)
        return self._due_ms

    @property
    def lost_ms(self) -> int:
        """When the first leader counts as lost, if no answer comes until then."""
        led = (Status.CONNECTED, Status.UNSUBSCRIBING)
        found = (b.pulse.lost_ms for b in self._borrowers.values() if b.status in led)
        return min(found, default=FAR_MS)

    @property
    def subscriptions(self) -> tuple[str, ...]:
        """The subscriptions that are wanted."""
        return tuple(self._current)

    def snapshot(self) -> tuple[object, ...]:
        """Everything that decides what it will do, as comparable values."""
        return (
            self._made,
            tuple(self._current.items()),
            tuple((name, b.snapshot()) for name, b in self._borrowers.items()),
        )

    def subscription_of(self, borrower: str) -> str | None:
        """The subscription a borrower serves or has served."""
        return self._subscription_of.get(borrower)

    def subscribe(self, subscription: str, group: str, now_ms: int) -> list[Effect]:
        """Begin to borrow for a subscription."""
        self._made += 1
        self._due_ms = None
        name = f"{self.session}:{self.incarnation}:{self._made}"
        borrower = Borrower(
            name, group=group, session=self.session, settings=self.settings, now_ms=now_ms
        )
        self._borrowers[name] = borrower
        self._subscription_of[name] = subscription
        self._current[subscription] = name
        return borrower.find(now_ms)

    def unsubscribe(self, subscription: str, now_ms: int) -> list[Effect]:
        """Stop borrowing for a subscription; its borrower finishes by itself."""
        self._due_ms = None
        borrower = self._borrowers[self._current.pop(subscription)]
        return self._handle(borrower.on_unsubscribe(now_ms), now_ms)

    def disconnect(self, now_ms: int) -> list[Effect]:
        """The session closes: everyone says good-bye."""
        self._due_ms = None
        effects: list[Effect] = []
        for borrower in list(self._borrowers.values()):
            effects += self._handle(borrower.on_disconnect(), now_ms)
        self._current.clear()
        return effects

    def receive(self, message: Message, now_ms: int) -> list[Effect]:
        """Pass a message on; a borrower that cannot make sense of it begins again."""
        borrower = self._borrowers.get(message.borrower)
        if borrower is None:
            return self._answer_for_nobody(message)
        if not isinstance(message, PingResponse):  # that only puts off when the leader is lost
            self._due_ms = None
        try:
            effects = borrower.receive(message, now_ms)
        except StaleTokenError:
            return []  # a former leader, or a former grant
        except UnexpectedMessageError as error:
            effects = borrower.invalidate(str(error))
        return self._handle(effects, now_ms)

    def on_progress(
        self,
        borrower: str,
        unit: Unit,
        unit_token: int,
        *,
        acked: Ranges = (),
        attempts: Ranges = (),
        answered: bool = False,
        final: bool = False,
        now_ms: int,
    ) -> list[Effect]:
        """Pass on what the session has acked; refused if the borrower is no more."""
        found = self._borrowers.get(borrower)
        if found is None:
            raise StaleTokenError(
                f"progress of {unit} under token {unit_token} is refused: borrower {borrower} of "
                f"session {self.session} is gone",
                state="gone",
            )
        self._due_ms = None
        effects = found.on_progress(
            unit, unit_token, acked=acked, attempts=attempts, answered=answered, final=final
        )
        return self._handle(effects, now_ms)

    def on_cut(self, leader: str, now_ms: int) -> None:
        """The connection to a leader broke; its borrowers send again what may be lost."""
        self._due_ms = None
        for borrower in self._borrowers.values():
            if borrower.leader == leader:
                borrower.on_cut(now_ms)

    def seek(self, group: str, now_ms: int) -> list[Effect]:
        """The group may have a new leader: who looks for it asks now, and not when it is due."""
        self._due_ms = None
        effects: list[Effect] = []
        for borrower in self._borrowers.values():
            if borrower.group == group and borrower.status is Status.CONNECTING:
                effects += borrower.find(now_ms)
        return effects

    def tick(self, now_ms: int) -> list[Effect]:
        """Do what is due."""
        self._due_ms = None
        effects: list[Effect] = []
        beats: dict[str, list[Ping]] = {}
        made, next_ms = self._made, FAR_MS
        for borrower in list(self._borrowers.values()):
            ping = borrower.beat(now_ms)
            if ping is not None:
                beats.setdefault(borrower.leader, []).append(ping)
            due_ms = borrower.due_ms  # not yet, if there was a ping
            if now_ms >= due_ms:
                effects += self._handle(borrower.tick(now_ms), now_ms)
                due_ms = borrower.due_ms
            if due_ms < next_ms:
                next_ms = due_ms
        if made == self._made:
            self._due_ms = next_ms
        effects += [Beat(leader, tuple(pings)) for leader, pings in beats.items()]
        return effects

    def answered(self, pings: Iterable[Ping]) -> None:
        """Leaders in this program have answered at once."""
        for ping in pings:
            borrower = self._borrowers.get(ping.borrower)
            if borrower is not None:
                borrower.pulse.answered(ping.number)

    def lose_leader(self, borrower: str, now_ms: int) -> list[Effect]:
        """A borrower's leader is known to be gone: act as on its ping timeout."""
        self._due_ms = None
        return self._handle(self._borrowers[borrower].lose_leader(), now_ms)

    def _handle(self, effects: list[Effect], now_ms: int) -> list[Effect]:
        """Look for borrowers that have ended, and replace those that are still wanted."""
        result: list[Effect] = []
        for effect in effects:
            result.append(effect)
            if isinstance(effect, Gone):
                group = self._borrowers.pop(effect.borrower).group
                subscription = self._subscription_of.pop(effect.borrower)
                if self._current.get(subscription) == effect.borrower and effect.recreate:
                    result += self.subscribe(subscription, group, now_ms)
        return result

    @staticmethod
    def _answer_for_nobody(message: Message) -> list[Effect]:
        match message:
            case LeaderConnectResponse() | Grant() | Revoke() | Revoked():
                goodbye = Disconnect(message.group, message.borrower, message.token, 0, ())
                return [ToRegistry(goodbye)]
        return []
