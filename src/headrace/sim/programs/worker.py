"""A worker: a program with a session of shared subscriptions, and an application with its habits.

It uses what any program uses: ``headrace.open``, ``hr.session``, deliveries and their answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import headrace
from headrace.errors import (
    AckUnsettledError,
    AlreadyAckedError,
    CatalogUnavailableError,
    Fenced,
    HeadraceError,
)
from headrace.groups.consumer import ConsumerOptions, Delivery
from headrace.groups.delivery import DeliveryConfig
from headrace.groups.shared.core.leader import Leader
from headrace.groups.shared.core.settings import LeaderSettings
from headrace.groups.shared.runtime.options import SharedOptions
from headrace.groups.shared.runtime.peer import LocalPeer
from headrace.groups.shared.runtime.session import Session
from headrace.sim.faults import Fault
from headrace.sim.oracle import GroupOracle
from headrace.sim.programs.mirror import content
from headrace.sim.programs.program import Program
from headrace.sim.world import InvariantViolation

if TYPE_CHECKING:
    from headrace.sim.scenarios.shared import SharedScenario

LEADER_SETTINGS = LeaderSettings(
    stall_timeout_ms=8000,
    revoke_timeout_ms=4000,
    lease_ttl_ms=6000,
    heartbeat_ms=2000,
    bench_ms_max=60_000,
)
OPTIONS = ConsumerOptions(
    delivery=DeliveryConfig(max_pending=6, ack_wait_ms=3000, backoff_min_ms=20, backoff_max_ms=500)
)
RETRY_S = 0.2
UNKNOWN = (CatalogUnavailableError, AckUnsettledError)
"""Errors that leave open whether an ack counts."""


class Worker(Program):
    """Subscribes, consumes and answers, whatever happens to it."""

    scenario: SharedScenario
    folder: Path
    wanted: tuple[str, ...] = ()
    """What it is to be subscribed to, as its owner has configured it."""
    ack_ms: tuple[int, int] = (1, 40)
    fails = False
    never_acks = False

    def start(self) -> None:
        self.hr: headrace.Headrace | None = None
        self.session: Session | None = None
        self.peer: LocalPeer | None = None
        self._given: set[tuple[str, int]] = set()
        self._changed = asyncio.Event()
        self.closing = False
        super().start()

    # --- what the outside sees and does ---

    def subscribe(self, text: str) -> None:
        """From now on it is to be subscribed."""
        self.wanted = (*self.wanted, text)
        self.inject(self._changed.set)

    def unsubscribe(self, text: str) -> None:
        """From now on it is not."""
        self.wanted = tuple(other for other in self.wanted if other != text)
        self.inject(self._changed.set)

    def close(self) -> None:
        """Shut down gracefully, and come back later."""
        self.closing = True
        self.inject(self._changed.set)

    def leader_of(self, group: str) -> Leader | None:
        """The leader of a group, if it is here."""
        if not self.alive or self.peer is None:
            return None
        found = self.peer.leaders.get(group)
        return None if found is None else found.core

    @property
    def units(self) -> tuple[str, ...]:
        """The units that are here now."""
        return self.session.units if self.alive and self.session is not None else ()

    @property
    def settled(self) -> bool:
        """Whether it is subscribed to what it shall be."""
        if not self.alive or self.session is None:
            return False
        return set(self.session.subscriptions) == set(self.wanted)

    def committing(self) -> None:
        self.scenario.outdated = True

    # --- what it does ---

    async def main(self) -> None:
        while not self.closing:
            try:
                await self._work()
            except HeadraceError as error:
                self.note("begins again: %s", type(error).__name__)
                self.world.reach(f"program.{type(error).__name__}")
                await asyncio.sleep(RETRY_S)
        self.note("closes")
        self.world.reach("program.closed")
        life, down_ms = self.incarnation, self.world.rng.randint(10, 3000)

        def again() -> None:
            if self.incarnation == life:
                self.world.crash(self, down_ms)

        self.world.call_in(0, again)

    async def _work(self) -> None:
        shared = SharedOptions(leader=self.scenario.leader_settings)
        async with headrace.open(self.folder, housekeeping=False, shared=shared) as hr:
            self.opened(hr.host.log.catalog)
            async with hr.session(self.name, options=OPTIONS) as session:
                self.peer = session._peer
                self.session = session
                try:
                    await self._consume(session)
                finally:
                    self.session = self.peer = None
                    self.note("leaves its session")

    async def _consume(self, session: Session) -> None:
        consuming = self.loop.create_task(self._take(session))
        try:
            while not self.closing:
                self._changed.clear()
                await self._subscribe(session)
                changed = self.loop.create_task(self._wait())
                await asyncio.wait((consuming, changed), return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                if consuming.done():
                    consuming.result()
                    return
        finally:
            consuming.cancel()

    async def _wait(self) -> None:
        await self._changed.wait()

    async def _subscribe(self, session: Session) -> None:
        for text in session.subscriptions:
            if text not in self.wanted:
                await session.unsubscribe(text)
        for text in self.wanted:
            if text not in session.subscriptions:
                await session.subscribe(text, start="earliest")

    async def _take(self, session: Session) -> None:
        async for delivery in session:
            self.check(partial(self._handed, delivery))
            if not self.never_acks:
                delay_ms = self.world.rng.randint(*self.ack_ms)
                self.spawn(self._answer(delivery, delay_ms))

    async def _answer(self, delivery: Delivery, delay_ms: int) -> None:
        await asyncio.sleep(delay_ms / 1000)
        rng, faults = self.world.rng, self.world.faults
        fails, habit = faults.strikes(Fault.FAIL, 0.2) and self.fails, rng.random()
        oracle, token = self.scenario.oracle_of(delivery.unit), delivery._run.owned.token
        unit, offset = delivery.segment, delivery.offset
        doubtful = oracle.is_unknown(unit, token, offset)
        confirmed = partial(oracle.confirmed, self.name, unit, offset, offset + 1)
        try:
            if fails:
                await delivery.nack()
                return
            if (gone := delivery._run.gone) is not None:
                raise gone
            oracle.acked(unit, token, offset)
            if habit < 0.1:
                async with delivery.transaction():
                    pass
                self.world.reach("answer.transaction")
            elif habit < 0.2:
                delivery.ack_soon()
                return
            else:
                await delivery.ack()
        except HeadraceError as error:
            self.note("%s/%s is not acked: %s", unit, offset, type(error).__name__)
            self.world.reach(f"answer.{type(error).__name__}")
            if isinstance(error, AlreadyAckedError):
                self.check(confirmed)
            elif isinstance(error, Fenced):
                self.check(lambda: self._fenced(oracle, unit, token, offset))
            elif doubtful or isinstance(error, UNKNOWN):
                oracle.outcome_unknown(unit, token, offset)
        else:
            self.note("%s/%s is acked under %s", unit, offset, token)
            self.check(confirmed)

    # --- checks ---

    def _handed(self, delivery: Delivery) -> None:
        owned, number = delivery._run.owned, delivery.segment
        oracle, owner = self.scenario.oracle_of(delivery.unit), f"{self.name}-{self.incarnation}"
        if (owned.unit, owned.token) not in self._given:
            self._given.add((owned.unit, owned.token))
            self.note("is given %s under %s from %s", owned.unit, owned.token, owned.progress)
            oracle.given(owner, number, owned.token, owned.progress)
        event = self.world.log.segments[number].events[delivery.offset]
        self.note("is handed %s/%s under %s", number, delivery.offset, owned.token)
        self.world.require(
            delivery.value == content(event),
            "what is published is delivered",
            f"{delivery.value!r} at {number}/{delivery.offset}",
        )
        if oracle.is_unknown(number, owned.token, delivery.offset):
            self.world.reach("delivery.of unknown outcome")
        oracle.delivered(owner, number, owned.token, event)

    def _fenced(self, oracle: GroupOracle, unit: int, token: int, offset: int) -> None:
        oracle.refused(unit, token, offset)
        self.world.require(
            self.closing or not self.scenario.calm,
            "a hand-over waits for what is in flight",
            f"{self.name} lost unit {unit} before it could answer for {offset}",
        )

    def check(self, look: Callable[[], None]) -> None:
        """Run a check against what is durable now."""
        if self._dying:
            return
        try:
            self.scenario.look()
            look()
        except InvariantViolation as violation:
            self.found(violation)
