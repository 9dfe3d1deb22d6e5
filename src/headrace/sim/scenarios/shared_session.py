"""A session of the shared scenario: a handler over an agent, and a consumer with its habits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headrace.errors import StaleDeliveryError, StaleTokenError, UnknownDeliveryError
from headrace.groups.delivery import DeliveryConfig, Dispatcher, Retry
from headrace.groups.progress import Progress
from headrace.groups.shared.core.agent import Agent
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
from headrace.groups.shared.core.handler import Handler
from headrace.groups.shared.core.messages import UpdateProgress
from headrace.groups.shared.core.settings import BorrowerSettings
from headrace.sim.faults import Fault
from headrace.sim.oracle import GroupOracle
from headrace.sim.scenarios.shared_peer import Asked
from headrace.sim.store import Done, Outcome, Snapshot, StoreConflictError
from headrace.sim.world import Process

if TYPE_CHECKING:
    from headrace.sim.scenarios.shared import SharedScenario


TICK_MS = 100
TRANSACTION_PROBABILITY = 0.1
HANDOUT_EVENTS_MAX = 4
DELIVERY = DeliveryConfig(max_pending=6, ack_wait_ms=3000, backoff_min_ms=20, backoff_max_ms=500)


def number_of(unit: str) -> int:
    """The segment's number in a unit's name."""
    return int(unit.rpartition("/")[2])


class Held:
    """A unit in a session, with the dispatcher that hands out its events."""

    def __init__(self, oracle: GroupOracle, effect: Install) -> None:
        self.oracle = oracle
        self.borrower = effect.borrower
        self.unit = effect.unit
        self.number = number_of(effect.unit)
        self.token = effect.unit_token
        self.dispatcher = Dispatcher(DELIVERY, effect.progress)
        self.releasing = False
        self.finished = False
        self.unreported: list[int] = []
        self.refused: dict[int, int] = {}
        self.answered = False
        self.in_store: set[int] = set()
        """Being acked in a transaction."""


class Session(Process):
    """A session: a handler over an agent, and a consumer."""

    scenario: SharedScenario
    durable_subscriptions: tuple[str, ...] = ()
    ack_ms: tuple[int, int] = (1, 40)
    never_acks = False
    fails = False

    def start(self) -> None:
        self.handler = Handler(Agent(self.name, self.incarnation, BorrowerSettings()))
        self.held: dict[tuple[str, str], Held] = {}
        self.let_go: set[tuple[str, str, int]] = set()
        """Which grants were given back, or closed before they came."""
        self.do(self.handler.restore(self.durable_subscriptions, self.now_ms))
        self.after(TICK_MS, "tick")

    def receive(self, source: str, message: Any) -> None:  # noqa: ARG002
        self.do(self.handler.receive(message, self.now_ms))

    def timer(self, tag: Any) -> None:
        match tag:
            case "tick":
                self.do(self.handler.tick(self.now_ms))
                for held in list(self.held.values()):
                    self._pump(held)
                    self._report(held)
                self.after(TICK_MS, "tick")
            case ("answer", held, offset, attempt):
                if self.world.rng.random() < TRANSACTION_PROBABILITY:
                    self._ack_in_transaction(held, offset, attempt)
                else:
                    self._answer(held, offset, attempt)

    # --- what the session does ---

    def subscribe(self, text: str) -> None:
        self.durable_subscriptions = (*self.durable_subscriptions, text)
        self.do(self.handler.on_subscribe(text, self.now_ms))

    def unsubscribe(self, text: str) -> None:
        kept = tuple(other for other in self.durable_subscriptions if other != text)
        self.durable_subscriptions = kept
        self.do(self.handler.on_unsubscribe(text, self.now_ms))

    def do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case ToRegistry(message=message):
                    self.send(self.world.rng.choice(self.scenario.peers).name, Asked(message))
                case ToLeader(leader=leader, message=message):
                    if isinstance(message, UpdateProgress):
                        self.let_go.update(
                            (message.borrower, r.unit, r.unit_token)
                            for r in message.units
                            if r.final
                        )
                    self.send(leader, message)
                case Install() as install:
                    self._install(install)
                case Release(borrower=borrower, unit=unit):
                    held = self.held[borrower, unit]
                    held.dispatcher.pause()
                    held.releasing = True
                    self._report(held)
                case Remove(borrower=borrower, unit=unit):
                    self.note("removes %s", effect)
                    self.held.pop((borrower, unit), None)
                case Confirmed() as confirmed:
                    self._confirmed(confirmed)
                case Gone(recreate=recreate):
                    self.note("%s", effect)
                    self.world.reach("borrower.recreated" if recreate else "borrower.gone")

    def _install(self, effect: Install) -> None:
        self.note("installs %s", effect)
        self.world.reach("borrower.granted")
        if effect.progress.ranges:
            self.world.reach("borrower.granted with acked ranges")
        subscription = self.handler.installed[effect.borrower, effect.unit].subscription
        self.world.require(
            (effect.borrower, effect.unit, effect.unit_token) not in self.let_go,
            "what was given back does not come back",
            f"{effect.borrower} takes {effect.unit} token {effect.unit_token} again",
        )
        held = Held(self.scenario.oracle_of(subscription), effect)
        held.oracle.given(effect.borrower, held.number, held.token, effect.progress)
        self.held[effect.borrower, effect.unit] = held
        self._pump(held)

    def _confirmed(self, effect: Confirmed) -> None:
        self.world.reach("borrower.confirmed")
        held = self.held[effect.borrower, effect.unit]
        for low, high in effect.acked:
            held.oracle.confirmed(effect.borrower, held.number, low, high)

    # --- what the consumer does ---

    def _pump(self, held: Held) -> None:
        """Read on in the log and hand out what may be handed out."""
        dispatcher, now_ms = held.dispatcher, self.now_ms
        for outcome in dispatcher.tick(now_ms):
            if isinstance(outcome, Retry):
                held.refused[outcome.offset] = outcome.attempts
        events = self.world.log.segments[held.number].events
        end = min(len(events), dispatcher.next_offset + dispatcher.wanted)
        if end > dispatcher.next_offset:
            offsets = range(dispatcher.next_offset, end)
            keys = [int(events[offset].key[1:]) for offset in offsets]
            dispatcher.feed(list(offsets), keys, end)
        handout = dispatcher.take(HANDOUT_EVENTS_MAX, now_ms)
        for offset, attempt in zip(handout.offsets, handout.attempts, strict=True):
            if offset in held.in_store:
                self._look_up(held, offset, attempt)
                continue
            held.oracle.delivered(held.borrower, held.number, held.token, events[offset])
            if not self.never_acks:
                delay_ms = self.world.rng.randint(*self.ack_ms)
                self.after(delay_ms, ("answer", held, offset, attempt))

    def _ack_in_transaction(self, held: Held, offset: int, attempt: int) -> None:
        """Ack together with a publish: in the store, under the claim, and told afterwards."""
        group, unit = held.oracle.group, held.unit

        def ack(tx: Snapshot) -> None:
            claim = tx.claim_of(group, unit)
            if claim is None or claim.token != held.token:
                self.world.reach("session.transaction fenced")
                raise StoreConflictError(f"{unit} is not at token {held.token}")
            held.oracle.acked(held.number, held.token, offset)
            entry = tx.get(group, unit)
            assert entry is not None
            acked = entry.value.progress.acked()
            acked.ack(offset)
            progress = Progress.of(acked, dict(entry.value.progress.attempts))
            tx.put(group, unit, msgspec.structs.replace(entry.value, progress=progress))
            self.world.reach("session.transaction")

        if self.held.get((held.borrower, held.unit)) is held and offset not in held.in_store:
            held.in_store.add(offset)
            self.submit(("transaction", held, offset, attempt), ack)

    def _look_up(self, held: Held, offset: int, attempt: int) -> None:
        """The answer of a transaction was lost: see whether it counted before going on."""

        def look(tx: Snapshot) -> bool:
            entry = tx.get(held.oracle.group, held.unit)
            return entry is not None and offset in entry.value.progress.acked()

        self.submit(("looked up", held, offset, attempt), look)

    def stored(self, tag: Any, outcome: Outcome) -> None:
        match tag, outcome:
            case ("transaction", held, offset, attempt), Done():
                self._answer(held, offset, attempt, certain=True)
            case ("transaction", held, offset, _), _:
                held.in_store.discard(offset)  # handed out again when its time is over
            case ("looked up", held, offset, attempt), Done(value=True):
                self.world.reach("session.transaction looked up")
                self._answer(held, offset, attempt, certain=True)
            case ("looked up", held, offset, _), Done(value=False):
                held.in_store.discard(offset)

    def _answer(self, held: Held, offset: int, attempt: int, *, certain: bool = False) -> None:
        """The consumer is through with an event."""
        refuses = not certain and self.fails and self.world.faults.strikes(Fault.FAIL, 0.2)
        if self.held.get((held.borrower, held.unit)) is not held:
            return  # the unit is gone: the work does not count
        try:
            if refuses:
                retry = held.dispatcher.nack(offset, attempt, self.now_ms)
                held.refused[offset] = retry.attempts
                held.answered = True
            else:
                held.dispatcher.ack(offset, attempt, self.now_ms)
                held.unreported.append(offset)
                held.oracle.acked(held.number, held.token, offset)
        except (StaleDeliveryError, UnknownDeliveryError):
            self.world.reach("session.late answer")
            return
        if self.world.rng.random() < 0.3 or held.releasing:
            self._report(held)
        self._pump(held)

    def _report(self, held: Held) -> None:
        """Pass on what was acked and refused; the last word once nothing is in flight."""
        if held.finished or self.held.get((held.borrower, held.unit)) is not held:
            return
        final = held.releasing and held.dispatcher.idle
        if not (held.unreported or held.refused or final):
            return
        acked = tuple((offset, offset + 1) for offset in held.unreported)
        attempts = tuple(held.refused.items())
        answered = held.answered
        held.unreported, held.refused, held.answered = [], {}, False
        held.finished = final
        try:
            self.do(
                self.handler.on_progress(
                    held.borrower,
                    held.unit,
                    held.token,
                    acked=acked,
                    attempts=attempts,
                    answered=answered,
                    final=final,
                    now_ms=self.now_ms,
                )
            )
        except StaleTokenError:
            self.world.fail("a session knows what it has", f"{held.unit} of {held.borrower}")
