"""The handler: the face of shared subscriptions towards one session.

It knows how a session works and nothing about leaders.  Subscriptions go in by name
(``$share/GROUP/FILTER`` and its other spellings); out come units to install, to release and to
remove.  It keeps the list of what is installed, so that a session can ask what it has, and so
that an ack for something it no longer has is refused here with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headrace.errors import (
    StaleTokenError,
    SubscriptionExistsError,
    UnknownSubscriptionError,
)
from headrace.groups.shared.core.agent import Agent
from headrace.groups.shared.core.effects import Effect, Install, Release, Remove
from headrace.groups.shared.core.messages import Message, Ping, Ranges, Unit
from headrace.groups.shared.core.naming import group_key, parse_subscription


class Installed(msgspec.Struct, frozen=True):
    """A unit that the session delivers from."""

    subscription: str
    unit_token: int
    releasing: bool = False


class SubscriptionHandler:
    """Shared subscriptions of one session."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._subscriptions: dict[str, tuple[str, str]] = {}
        self._installed: dict[tuple[str, Unit], Installed] = {}

    @property
    def subscriptions(self) -> tuple[str, ...]:
        """What the session is subscribed to; to be stored with a persistent session."""
        return tuple(self._subscriptions)

    @property
    def installed(self) -> dict[tuple[str, Unit], Installed]:
        """The units the session has, by borrower and unit."""
        return dict(self._installed)

    def subscription_of(self, borrower: str, unit: Unit) -> str:
        """The subscription that an installed unit belongs to."""
        return self._installed[borrower, unit].subscription

    @property
    def due_ms(self) -> int:
        """When ``tick`` has something to do."""
        return self._agent.due_ms

    def restore(self, subscriptions: Iterable[str], now_ms: int) -> list[Effect]:
        """Take up again the subscriptions of a persistent session."""
        effects: list[Effect] = []
        for text in subscriptions:
            effects += self.on_subscribe(text, now_ms)
        return effects

    def on_subscribe(self, text: str, now_ms: int) -> list[Effect]:
        """The session subscribes."""
        group, filter = parse_subscription(text)
        if text in self._subscriptions:
            raise SubscriptionExistsError(f"the session is subscribed to {text!r} already")
        self._subscriptions[text] = (group, filter)
        return self._agent.subscribe(text, group_key(group, filter), now_ms)

    def on_unsubscribe(self, text: str, now_ms: int) -> list[Effect]:
        """The session unsubscribes; what is in flight is still finished and reported."""
        if text not in self._subscriptions:
            raise UnknownSubscriptionError(f"the session is not subscribed to {text!r}")
        del self._subscriptions[text]
        return self._note(self._agent.unsubscribe(text, now_ms))

    def on_disconnect(self, now_ms: int) -> list[Effect]:
        """The session closes; its subscriptions stay stored if it is persistent."""
        return self._note(self._agent.disconnect(now_ms))

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
        """The session has acked or refused events, or is done with a released unit."""
        found = self._installed.get((borrower, unit))
        if found is None or found.unit_token != unit_token:
            raise StaleTokenError(
                f"progress of {unit} under token {unit_token} is refused: the session "
                f"{'has it under token ' + str(found.unit_token) if found else 'lost it'}",
                state="installed" if found else "absent",
            )
        effects = self._agent.on_progress(
            borrower,
            unit,
            unit_token,
            acked=acked,
            attempts=attempts,
            answered=answered,
            final=final,
            now_ms=now_ms,
        )
        return self._note(effects)

    def receive(self, message: Message, now_ms: int) -> list[Effect]:
        """A message of a leader, for one of the borrowers."""
        return self._note(self._agent.receive(message, now_ms))

    def on_cut(self, leader: str, now_ms: int) -> None:
        """The connection to a leader broke."""
        self._agent.on_cut(leader, now_ms)

    def seek(self, group: str, now_ms: int) -> list[Effect]:
        """The group may have a new leader."""
        return self._note(self._agent.seek(group, now_ms))

    def answered(self, pings: Iterable[Ping]) -> None:
        """Leaders in this program have answered at once."""
        self._agent.answered(pings)

    def tick(self, now_ms: int) -> list[Effect]:
        """Do what is due."""
        return self._note(self._agent.tick(now_ms))

    def _note(self, effects: list[Effect]) -> list[Effect]:
        """Keep the list of what is installed."""
        for effect in effects:
            match effect:
                case Install(borrower=borrower, unit=unit, unit_token=token):
                    name = self._agent.subscription_of(borrower) or ""
                    self._installed[borrower, unit] = Installed(name, token)
                case Release(borrower=borrower, unit=unit):
                    found = self._installed[borrower, unit]
                    released = msgspec.structs.replace(found, releasing=True)
                    self._installed[borrower, unit] = released
                case Remove(borrower=borrower, unit=unit):
                    del self._installed[borrower, unit]
        return effects
