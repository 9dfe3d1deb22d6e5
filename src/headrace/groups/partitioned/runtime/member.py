"""A member at work: an instance of it in this process, and the consumer of what it owns.

The instance (``membership``) decides when this process consumes which partitions; the consumer
hands their events out.  This module stands between them: it carries out what the instance asks
for, and tells it what became of the partitions.  Several programs may join as the same member;
one of them is active and the others stand by.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from headrace.catalog import Tx
from headrace.errors import Fenced, HeadraceError, InvalidInputError
from headrace.groups.consumer import CatalogAcks, Consumer, OwnedUnit
from headrace.groups.consumer.participant import Participant
from headrace.groups.decisions import What
from headrace.groups.partitioned.core.membership import Instance
from headrace.groups.partitioned.core.messages import (
    Abandon,
    AcquirePin,
    ClaimPartition,
    Close,
    Consume,
    Drain,
    Event,
    InstanceDecision,
    InstanceEffect,
    Phase,
    PinRenewed,
    ReleasePartition,
    ReleasePin,
    RenewPin,
)
from headrace.groups.partitioned.names import GroupName
from headrace.groups.partitioned.runtime import ownership
from headrace.groups.partitioned.runtime.hub import Hub, hub_of
from headrace.groups.partitioned.runtime.options import join_options
from headrace.groups.partitioned.runtime.ownership import Taken
from headrace.groups.partitioned.runtime.partition import OwnedPartition
from headrace.groups.partitioned.runtime.requests import Asked, owner_of, segments_of
from headrace.groups.partitioned.runtime.units import Layout
from headrace.host import Host
from headrace.host.services import Closing

LOUD = frozenset({What.WAITS, What.EVICTED, What.FENCED})
"""Decisions that a person should hear of without asking."""

_log = logging.getLogger(__name__)


class InstanceStatus(msgspec.Struct, frozen=True):
    """Where a member stands in this process."""

    phase: Phase
    instance: str
    partitions: tuple[int, ...]
    """Those that it consumes now."""
    explanation: tuple[str, ...]
    """What it is and what it waits for."""


class Member(Participant["MemberInstance"]):
    """A member of a partitioned group in this process; made by ``hr.join``.

    Use it with ``async with``, then take its events in one of three ways: ``async for delivery
    in member``, ``async for batch in member.batches()`` or ``await member.consume(handler)``.
    """

    def __init__(self, running: MemberInstance, client: object) -> None:
        super().__init__(running, client)
        self.name = running.name
        self.member = running.member

    @property
    def status(self) -> InstanceStatus:
        """Whether it is active, stands by or waits, and for what."""
        return self.running.status

    async def wait_for(self, phase: Phase) -> None:
        """Wait until the instance is in a phase."""
        await self.running.wait_for(phase)

    async def settled(self) -> None:
        """Wait until it consumes just what the config gives it."""
        core = self.running.core
        await self.wait_until(lambda: core.phase is Phase.PINNED and core.settled)

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition over this member holds."""
        await self.running.wait_until(condition)


class MemberInstance:
    """An instance of a member, in this process; see the module's text."""

    def __init__(self, host: Host, stream: str, group: str, member: str, **options: object) -> None:
        self.name = GroupName(stream, group)
        self.member = member
        self.pin = self.name.pin(member)
        self.host = host
        self._options = join_options(self.name, member, **options)  # type: ignore[arg-type]
        self.core = Instance(member, host.clock.local_name(), self._options.timings)
        self._consumer: Consumer | None = None
        self._hub: Hub | None = None
        self._taken: dict[int, Taken] = {}  # what each partition stands for, under its token
        self._holdings: dict[int, OwnedPartition] = {}
        self._inbox: deque[Event] = deque()
        self._busy = False
        self._changed = asyncio.Event()
        self._closing: Closing | None = None
        self._rechecking = False
        self._last_said: tuple[What, str] | None = None
        """Of a thousand partitions that wait for the same, one line is enough."""
        self.announced = False
        """Whether it is recorded that it joined."""

    # -- for the application ------------------------------------------------------------

    async def open(self) -> None:
        """Join the group."""
        self.host.check()
        self._consumer = Consumer(self.host, self._options.consumer, CatalogAcks(self.host))
        self._hub = hub_of(self.host)
        try:
            await self._hub.join(self)
        except BaseException:
            await self.close()  # by now it may hold the pin
            raise

    async def close(self) -> None:
        """Store the answers that were given, hand the partitions over, and leave.

        It is done even if whoever waits for it is cancelled.
        """
        if self._consumer is None or self._hub is None or self.host.is_forked:
            return
        if self._closing is None:
            closing = self.host.spawn(self._close(self._consumer, self._hub), awaited=True)
            self._closing = Closing(closing)
        await self._closing.wait()

    async def _close(self, consumer: Consumer, hub: Hub) -> None:
        try:
            await consumer.close()
            with suppress(HeadraceError):
                await hub.record.flush()  # what it took is told before that it leaves
        finally:
            self.feed(Close())
            ttl_s = self._options.timings.pin_ttl_ms / 1000
            try:
                # Without an answer the pin runs out by itself.
                async with self.host.timeout(ttl_s):
                    await self.wait_for(Phase.CLOSED)
                    await hub.flushed()  # a pin that is granted now is given back
                with suppress(HeadraceError):
                    await hub.record.flush()
            except TimeoutError:
                _log.warning("%s: the catalog does not answer; the pin will run out", self)
            finally:
                hub.leave(self)

    @property
    def consumer(self) -> Consumer:
        """What hands the events out."""
        if self._consumer is None:
            raise InvalidInputError(f"{self} has not joined yet; use `async with hr.join(…)`")
        return self._consumer

    @property
    def ends(self) -> bool:
        """Whether it is closed, or about to be."""
        return self._closing is not None

    @property
    def status(self) -> InstanceStatus:
        """Whether it is active, stands by or waits, and for what."""
        return InstanceStatus(
            phase=self.core.phase,
            instance=self.core.instance,
            partitions=self._partitions(),
            explanation=tuple(self.core.explain()),
        )

    def _partitions(self) -> tuple[int, ...]:
        view = None if self._hub is None else self._hub.view(self)
        if view is None or view.layout is Layout.SEGMENTS or view.group is None:
            return tuple(sorted(self._holdings))
        return self.partitions_of_share() if self._holdings else ()

    def partitions_of_share(self) -> tuple[int, ...]:
        """The partitions that its member has by the config."""
        view = None if self._hub is None else self._hub.view(self)
        group = None if view is None else view.group
        return () if group is None else group.assignment().get(self.member, ())

    async def wait_for(self, phase: Phase) -> None:
        """Wait until the instance is in a phase."""
        await self.wait_until(lambda: self.core.phase is phase)

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition over this member holds."""
        while not condition():
            await self._changed.wait()

    def __str__(self) -> str:
        return f"member {self.member} of group {self.name.key} ({self.core.instance})"

    # -- what the instance decides --------------------------------------------------------

    def feed(self, event: Event) -> None:
        """Let the instance hear of something, and carry out what it asks for."""
        self._inbox.append(event)
        if self._busy:
            return  # one event after the other, however they come
        self._busy = True
        try:
            while self._inbox:
                for effect in self.core.handle(self._inbox.popleft(), self.host.now_ms()):
                    self._carry_out(effect)
        finally:
            self._busy = False
        if self._hub is not None and self._consumer is not None:
            self._revalidate(self._consumer)
            self._hub.wake(self)
        self._changed.set()
        self._changed.clear()

    def renewed(self, event: PinRenewed) -> None:
        """Its pin was renewed; most often that changes only until when it lasts."""
        core = self.core
        if event.whole or core.doubts_pin() or not core.prolonged(event.token, event.asked_ms):
            self.feed(event)
        elif self._consumer is not None:
            self._revalidate(self._consumer)

    def _revalidate(self, consumer: Consumer) -> None:
        until_ms = self.core.pin_until_ms
        consumer.valid_until_s = math.inf if until_ms is None else until_ms / 1000

    def _carry_out(self, effect: InstanceEffect) -> None:
        assert self._hub is not None
        match effect:
            case AcquirePin() | ClaimPartition():
                self._hub.ask(Asked(self, effect, 0))
            case ReleasePin():
                self._hub.ask(Asked(self, effect, 0, (), self.core.unpin_reason, self.core.closing))
            case RenewPin():
                self._hub.renew(self, effect)
            case ReleasePartition():
                self._release(effect)
            case Consume(partition, token):
                self._consume(partition, token)
            case Drain(partition, _):
                self._holdings[partition].give_back()
            case Abandon(partition, _):
                if (holding := self._holdings.pop(partition, None)) is not None:
                    holding.give_up()
            case InstanceDecision():
                self._hub.record.add(self, effect)
                said, self._last_said = self._last_said, (effect.what, effect.reason)
                loud = effect.what in LOUD and said != self._last_said
                level = logging.WARNING if loud else logging.INFO
                where = "" if effect.partition is None else f", partition {effect.partition}"
                _log.log(level, "%s%s: %s, %s", self, where, effect.what.value, effect.reason)

    def took(self, taken: Taken) -> None:
        """A partition was claimed; the instance has not heard of it yet."""
        self._taken[taken.partition] = taken

    def _consume(self, partition: int, token: int) -> None:
        taken = self._taken[partition]
        assert taken.token == token, f"{self}: partition {partition} has token {taken.token}"
        holding = self._holdings[partition] = OwnedPartition(self, partition, token)
        for unit in taken.units:
            holding.open(unit)

    def _release(self, effect: ReleasePartition) -> None:
        partition, token = effect.partition, effect.token
        holding, taken = self._holdings.get(partition), self._taken.get(partition)
        if holding is not None and holding.token == token:
            del self._holdings[partition]
        units: tuple[tuple[str, str, int], ...] = ()
        if taken is not None and taken.token == token:
            del self._taken[partition]
            # A share has claims of its own in each segment; a partition is its segment.
            units = tuple(
                (u.group, u.unit, u.token) for u in taken.units if u.group != self.name.key
            )
        assert self._hub is not None
        self._hub.ask(Asked(self, effect, self.core.pin_token or 0, units))

    # -- what its partitions ask for ------------------------------------------------------

    @property
    def reads_shares(self) -> bool:
        """Whether it reads its partitions from every segment of the stream."""
        return self._hub is not None and self._hub.layout(self) is Layout.SHARES

    async def take_more(
        self, partition: int, token: int, held: Mapping[int, int]
    ) -> list[OwnedUnit]:
        """Claim the segments of a share that became readable, beside those that are held."""
        owner, stream = owner_of(self, self.core.pin_token or 0), self.name.stream
        segments = await self.host.in_thread(
            self.host.log.catalog.read, lambda tx: segments_of(tx, names=[stream])[stream]
        )

        def run(tx: Tx) -> list[OwnedUnit]:
            return ownership.follow(tx, self.name, owner, partition, token, held, segments)

        locks = ownership.claim_locks(self.name, owner, [partition], segments)
        found = await self.host.in_transaction(run, locks)
        taken = self._taken.get(partition)
        if taken is not None and taken.token == token:
            units = (*taken.units, *found)
            self._taken[partition] = msgspec.structs.replace(taken, units=units)
        return found

    @property
    def held(self) -> list[tuple[str, str, int]]:
        """(group, unit, token) of what is consumed here."""
        open_units = (unit for each in self._holdings.values() for unit in each.units.values())
        return [(unit.group, unit.unit, unit.token) for unit in open_units]

    def lost(self, units: Sequence[Fenced]) -> None:
        """Units were taken away (by a seek): claim them anew, and go on from where they are."""
        gone = {(fenced.group, fenced.unit, fenced.token) for fenced in units}
        for holding in list(self._holdings.values()):
            if any((u.group, u.unit, u.token) in gone for u in holding.units.values()):
                holding.lost()

    def recheck(self) -> None:
        """A stream is gone, or was made anew: see what became of the group."""
        if not self._rechecking and self.core.phase is not Phase.CLOSED:
            self._rechecking = True
            self.host.spawn(self._recheck())

    async def _recheck(self) -> None:
        """If the group is there, claim what is owned once more."""
        assert self._hub is not None
        try:
            await self._hub.show(self.name)
            for holding in list(self._holdings.values()):
                holding.lost()
        except HeadraceError as error:
            _log.warning("%s: %s", self, error)
        finally:
            self._rechecking = False
