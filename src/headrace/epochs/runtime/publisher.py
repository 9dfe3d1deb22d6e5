"""A named publisher of an epoch stream: rows by epoch, and how far each publisher is.

One program at a time is active under a name, by a lease with a token that every commit checks.
What counts is in the catalog; this object remembers only what was committed.
"""

from __future__ import annotations

import logging
import weakref
from datetime import datetime
from typing import Any, Self

import pyarrow as pa

from headrace.catalog import epochs, leases
from headrace.catalog.producers import Placed
from headrace.epochs.core import ledger, lines
from headrace.epochs.core.antichains import Frontier
from headrace.epochs.core.commits import AbortStream, EpochCommit, GiveUp, Step
from headrace.epochs.core.ledger import PublisherState
from headrace.epochs.core.times import Time, TimeShape
from headrace.epochs.runtime import recorded
from headrace.epochs.runtime.appender import EpochAppender
from headrace.epochs.runtime.capability import Capability, EpochOutput
from headrace.epochs.runtime.commit import LedgerPart, Tenure
from headrace.epochs.runtime.opening import (
    LEASE_TTL_MS,
    Recover,
    Recovered,
    check_settings,
    find,
    finish,
    leave,
    rows_taken_back,
    taken_back,
)
from headrace.epochs.runtime.renewals import Renewed, renewals_of
from headrace.epochs.runtime.rows import (
    EMPTY,
    RowTimes,
    Wanted,
    distinct,
    frontier_of,
    lone_of,
    refuse_late,
    rows_in,
    timed,
)
from headrace.epochs.runtime.standby import wait_for_lease
from headrace.errors import Fenced, HeadraceError, InvalidInputError, PublisherClosedError
from headrace.host import Host, Stage
from headrace.log.append import Outcome, Write
from headrace.log.events import Event, Events, Headers
from headrace.log.message import Single
from headrace.log.output import Output
from headrace.log.pending import EpochProgress
from headrace.log.position import Position
from headrace.subjects import check_name

_log = logging.getLogger(__name__)


class EpochPublisher:
    """See :meth:`headrace.Headrace.epoch_publisher`."""

    _how = "was not opened yet; use it with async with"
    """Why it is not the active one; empty while it is."""

    def __init__(
        self,
        host: Host,
        stream: str,
        name: str,
        *,
        start: Wanted = None,
        standby: bool = True,
        recover: Recover = "rollback",
        lease_ttl_ms: int = LEASE_TTL_MS,
    ) -> None:
        self.stream = stream
        self.name = check_name(name, "publisher")
        check_settings(recover, lease_ttl_ms)
        self._host = host
        self._start = start
        self._standby = standby
        self._recover: Recover = recover
        self._ttl_ms = lease_ttl_ms
        self._state = PublisherState(name, ())
        self._lower: Frontier = ()
        self.recovered = Recovered()
        """What was taken back when this program took over."""
        self.client: object = None
        self.leaving: object = None

    def __repr__(self) -> str:
        held = ledger.shown(self._state.held)
        return f"<EpochPublisher {self.name!r} of {self.stream!r}, holding {held}>"

    def __del__(self) -> None:
        if not self._how:
            self._host.dropped(self, self.leave)

    # -- beginning and end ---------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._host.check()
        self.where = await self._host.in_thread(find, self._host.log, self.stream)
        start = None if self._start is None else frontier_of(self.shape, self._start)
        opened = await wait_for_lease(
            self._host,
            self.where,
            self.name,
            self._ttl_ms,
            start=start,
            recover=self._recover,
            standby=self._standby,
        )
        self._held = Tenure(self.name, opened.lease.token, self._ttl_ms)
        self._state, self._lower = opened.state, opened.lower
        self._how = ""
        lost = weakref.WeakMethod(self.fenced)
        lease = Renewed(opened.lease.name, opened.lease.token, self._ttl_ms, lost)
        renewals_of(self._host).keep(lease)
        try:
            log, where = self._host.log, self.where
            self.recovered = await self._host.in_thread(taken_back, log, where, opened)
        except BaseException:
            await self.leave()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            await self.leave()
        except Fenced:
            pass  # it is another program's by now, which is as good
        except HeadraceError as error:
            if kind is None:
                raise
            # What ended the block says more; the lease runs out by itself.
            _log.warning("publisher %r of stream %r: %s", self.name, self.stream, error)

    async def leave(self) -> None:
        """Give the lease back; the times stay held, and the rows stay as they are."""
        if self._how or self._host.is_forked:
            return
        self._end("has left")
        token = self._held.token
        await self._host.in_transaction(
            lambda tx: leave(tx, self.where, self.name, token), self._lease_locks
        )

    async def close(self) -> None:
        """Give up the times: nothing more comes from this publisher.

        When the last one of a stream does it, the stream is closed for good.
        """
        await self._give_up(GiveUp(self.name, self._token(), lines.CLOSED), "has closed")

    async def abort(self, reason: str) -> None:
        """End the stream as aborted, for everybody."""
        if not isinstance(reason, str) or not reason.strip():
            raise InvalidInputError("abort needs a reason, for those who read the stream")
        await self._give_up(AbortStream(self.name, self._token(), reason), "has aborted the stream")

    async def rollback(self) -> Recovered:
        """Take back all rows in epochs that it still holds; the times stay held."""
        self.check_open()
        part = await self._commit(Step(), take_back=True)
        assert part.decided is not None
        line = part.decided.line
        assert line is not None
        number = part.decided.state.line - 1
        return await self._host.in_thread(
            rows_taken_back, self._host.log, self.where, self.name, line.first_open, number
        )

    # -- where it is ---------------------------------------------------------------------

    @property
    def shape(self) -> TimeShape:
        """The shape of the stream's times."""
        return self.where.shape

    @property
    def frontier(self) -> Any:
        """Where its source resumes: everything before it was published and is complete here.

        A time, or a tuple of times where more than one is held (or none).
        """
        found = self.frontiers
        return found[0] if len(found) == 1 else found

    @property
    def frontiers(self) -> Frontier:
        """Where its source resumes, always as a tuple of times."""
        return ledger.minimal(self.where.shape, self._state.held) if self._state.frontier else ()

    @property
    def held(self) -> tuple[Time, ...]:
        """All times that it holds, those of capabilities included."""
        return self._state.held

    @property
    def host(self) -> Host:
        return self._host

    @property
    def state(self) -> PublisherState:
        """What it holds, as far as that is stored."""
        return self._state

    @property
    def lower(self) -> Frontier:
        """The stream's frontier after its last commit."""
        return self._lower

    @property
    def token(self) -> int:
        """The fencing token under which it commits."""
        return self._token()

    # -- publishing ----------------------------------------------------------------------

    async def append(
        self,
        time: Time | None,
        data: Events,
        *,
        advance_to: Wanted = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> tuple[Placed, ...]:
        """Append rows of one epoch, or (``time=None``) of the epochs in their ``epoch`` column.

        With ``advance_to`` the frontier moves in the same commit.
        """
        self.check_open()
        lone = lone_of(self.shape, data, time) if producer is None else None
        given, times = lone or timed(self.shape, await self._host.writes.checked(data), time)
        if producer is None:
            refuse_late(self.stream, self.shape, self._state, self._lower, rows_in(given), times)
        write = self._host.log.write_of(producer=producer, sequence=sequence)
        part = self.part(write, given, times, advance_to)
        return (await self._committed(write, part)).placed

    async def publish(
        self,
        time: Time,
        subject: str,
        value: bytes,
        *,
        key: str | None = None,
        headers: Headers | None = None,
        timestamp: datetime | None = None,
        advance_to: Wanted = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> Position:
        """Publish one event of an epoch."""
        event = Event(subject=subject, value=value, key=key, headers=headers, timestamp=timestamp)
        (placed,) = await self.append(
            time, event, advance_to=advance_to, producer=producer, sequence=sequence
        )
        return Position(placed.stream, placed.segment, placed.start)

    async def advance_to(self, frontier: Wanted) -> None:
        """What lies before ``frontier`` is complete, as far as this publisher is concerned."""
        self.check_open()
        await self._commit(Step(advance_to=frontier_of(self.shape, frontier)))

    async def hold(self, time: Time) -> Capability:
        """Hold a time apart from the frontier, to publish at or after it later."""
        self.check_open()
        checked = self.shape.check(time)
        number = self._state.next_capability
        await self._commit(Step(capabilities=((number, checked),)))
        return Capability(self, number, checked)

    def appender(self) -> EpochAppender:
        """Publish in a plain loop at full speed::

            async with pub.appender() as rows:
                for day, table in source:
                    await rows.append(day, table, advance_to=day + 1)

        Calls return before what they gave is stored, share commits and keep their order; the end
        of the block waits for all of it.  If one cannot be stored, none behind it is.
        """
        self.check_open()
        appender = EpochAppender(self)
        self._host.serve(Stage.APPENDERS, appender)
        return appender

    def within(self, transaction: Output) -> EpochOutput:
        """Publish as part of ``hr.transaction()`` or ``delivery.transaction()``."""
        self.check_open()
        return EpochOutput(self, transaction)

    # -- parts ---------------------------------------------------------------------------

    def part(
        self,
        write: Write,
        given: pa.RecordBatch | Single,
        times: RowTimes | None,
        advance_to: Wanted = None,
        *,
        joins: bool = False,
    ) -> LedgerPart:
        """Add an append to a write."""
        rows = rows_in(given)
        known = distinct(self.shape, times)[0] if rows and times is not None else ()
        frontier = None if advance_to is None else frontier_of(self.shape, advance_to)
        step = Step(times=known, rows=rows, advance_to=frontier)
        part = LedgerPart(
            self.where,
            self._held,
            (step,),
            times if rows else None,
            rows,
            joins=joins,
            publisher=self,
        )
        write.add(self.stream, given, captured=not rows, progress=part)
        return part

    async def _commit(self, step: Step, *, take_back: bool = False) -> LedgerPart:
        """A commit without rows."""
        write = self._host.log.write_of()
        part = LedgerPart(self.where, self._held, (step,), publisher=self, take_back=take_back)
        write.add(self.stream, EMPTY, captured=True, progress=part)
        await self._committed(write, part)
        return part

    async def _committed(self, write: Write, part: LedgerPart) -> Outcome:
        try:
            outcome = await self._host.commit(write)
        except Fenced:
            self.fenced()
            raise
        if not outcome.repeat:
            self.told(part)
        return outcome

    def told(self, part: EpochProgress | None) -> None:
        """A commit of it is stored; those of one turn may be told in any order."""
        decided = part.decided if isinstance(part, LedgerPart) else None
        if decided is None or decided.publisher is None:
            return
        if decided.publisher.line >= self._state.line:
            self._state = decided.publisher
            self._lower = decided.state.lower

    async def _give_up(self, change: EpochCommit, how: str) -> None:
        self.check_open()
        where, held = self.where, self._held
        try:
            await self._host.in_transaction(
                lambda tx: finish(tx, where, change, held, how), self._lease_locks
            )
        except Fenced:
            self.fenced()
            raise
        self._end(how)

    @property
    def _lease_locks(self) -> list[str]:
        name = epochs.lease_name(self.where.stream.id, self.name)
        return [*self.where.locks, leases.lock(name), *recorded.locks([self.stream])]

    def check_open(self) -> None:
        """Raise if it is not the active one, as far as it knows."""
        self._host.check()
        self.check_active()

    def check_active(self) -> None:
        """Raise if it is not the active one, on any thread."""
        if self._how == "lost":
            raise Fenced(f"epochs/{self.stream}", self.name, self._held.token)
        if self._how:
            raise PublisherClosedError(self.stream, self.name, self._how)

    def _token(self) -> int:
        self.check_open()
        return self._held.token

    def fenced(self) -> None:
        """Another program has taken its place."""
        if not self._how:
            self._end("lost")

    def _end(self, how: str) -> None:
        self._how = how
        renewals_of(self._host).drop(epochs.lease_name(self.where.stream.id, self.name))
