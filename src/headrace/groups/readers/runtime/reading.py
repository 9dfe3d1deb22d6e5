"""A reader: one life of it after another, and the consumer that hands its events out.

*Lives.*  A reader that was put offline, by a reset, by an operator or because it seemed dead, drops
what it owns (answers raise ``Fenced``) and joins again; the application's loop goes on.  One that
was put offline because its application answered nothing joins again when it does.

*Checkpoints.*  Before a checkpoint is answered ``on_checkpoint`` is called: nothing of this reader
is in flight then.  If it raises, the checkpoint waits, and it is called again later.
"""

from __future__ import annotations

import asyncio
import logging
import math

import msgspec

from headrace.catalog import leases
from headrace.errors import (
    CatalogClosedError,
    HeadraceError,
    InvalidInputError,
    ReaderBusyError,
    ReaderGroupElsewhereError,
    UnknownReaderGroupError,
)
from headrace.groups.consumer import Consumer, OwnedUnit
from headrace.groups.delivery import Stalled
from headrace.groups.readers.core.synchronizer import Followed
from headrace.groups.readers.core.updates import RemoveReader
from headrace.groups.readers.names import ReaderGroupName
from headrace.groups.readers.runtime import liveness
from headrace.groups.readers.runtime.acks import ReaderAcks
from headrace.groups.readers.runtime.at_home import GroupHome
from headrace.groups.readers.runtime.automatic import AutomaticCheckpoints
from headrace.groups.readers.runtime.callbacks import Callbacks, OnCheckpoint, OnSegments
from headrace.groups.readers.runtime.hub import Following, ReaderHub, hub_of
from headrace.groups.readers.runtime.joining import take_name
from headrace.groups.readers.runtime.life import ReaderLife
from headrace.groups.readers.runtime.liveness import JoinedAs, NameHeld
from headrace.groups.readers.runtime.options import reader_options
from headrace.groups.readers.runtime.record import EVICTED
from headrace.groups.readers.runtime.streams import drop_gone
from headrace.host import Host
from headrace.host.services import Closing
from headrace.subjects import check_name

RETRY_S = 0.2
HAND_OVER_S = 10.0
"""How long answers are waited for when a group goes to another region."""

_log = logging.getLogger(__name__)


class ReaderStatus(msgspec.Struct, frozen=True):
    """Where a reader stands in this process."""

    online: bool
    instance: str
    segments: tuple[str, ...]
    """Those that it reads now."""
    owes: tuple[str, ...]
    """Checkpoints that wait for it."""
    waits_for: str
    """What it waits for; empty if it reads."""


class ReaderInstance:
    """A reader, in this process; see the module's text."""

    def __init__(
        self,
        host: Host,
        group: str,
        reader: str,
        *,
        on_checkpoint: OnCheckpoint | None = None,
        on_assigned: OnSegments | None = None,
        on_revoked: OnSegments | None = None,
        **options: object,
    ) -> None:
        self.host = host
        self.name = ReaderGroupName(group)
        self.reader = check_name(reader, "reader name")
        self._callbacks = Callbacks(self, on_checkpoint, on_assigned, on_revoked)
        self._options = reader_options(self.reader, **options)
        self.instance = host.clock.name()
        self._consumer: Consumer | None = None
        self._hub: ReaderHub | None = None
        self._following: Following | None = None
        self._life: ReaderLife | None = None
        self._automatic: AutomaticCheckpoints | None = None
        self._joining: asyncio.Task[None] | None = None
        self._closing: Closing | None = None
        self._why = "it has not joined yet"
        self._evicted = False
        self._healing = False
        self._opened = False
        self._elsewhere = False
        """Whether it waits because the group is read in another region."""
        self._handing: asyncio.Task[None] | None = None

    def __str__(self) -> str:
        return f"reader {self.reader} of group {self.name.group} ({self.instance})"

    # -- for the application --------------------------------------------------------------

    async def open(self) -> None:
        """Join the group."""
        self.host.check()
        if self._consumer is not None:
            raise InvalidInputError(f"{self} was opened before; make another one")
        self._consumer = Consumer(self.host, self._options.consumer, ReaderAcks(self.host))
        self._consumer.answered_late = self._answered_late
        self._hub = hub_of(self.host)
        try:
            self._following = await self._hub.follow(self.name, self)
            self._automatic = AutomaticCheckpoints(
                self.host, self._hub, self._following, self.reader
            )
            self._automatic.follow()
            try:
                await self._join()
            except ReaderGroupElsewhereError as error:
                self._wait_here(error)
            self._opened = True
            self._see_home()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Store the answers that were given, give back what it owns, and leave the group.

        What is not answered is delivered again, by whoever owns it next.
        """
        if self._consumer is None or self.host.is_forked:
            return
        if self._closing is None:
            closing = self.host.spawn(self._close(self._consumer), awaited=True)
            self._closing = Closing(closing)
        await self._closing.wait()

    async def _close(self, consumer: Consumer) -> None:
        life = self._life
        if self._automatic is not None:
            self._automatic.stop()
        if self._handing is not None:
            self._handing.cancel()
            await asyncio.gather(self._handing, return_exceptions=True)
        if life is not None:
            life.stop()
        if self._joining is not None:
            self._joining.cancel()
            await asyncio.gather(self._joining, return_exceptions=True)
        try:
            await consumer.close()
        finally:
            self._life = None
            try:
                if life is not None:
                    await self._leave(life)
            finally:
                if self._following is not None and self._hub is not None:
                    self._hub.leave(self._following, self)

    async def _leave(self, life: ReaderLife | JoinedAs) -> None:
        assert self._hub is not None
        ttl_s = self._options.settings.lease_ttl_ms / 1000
        try:
            # Without an answer the lease runs out by itself.
            async with self.host.timeout(ttl_s):
                await self._hub.transact(
                    self.name,
                    lambda commit: liveness.leave(
                        commit, self.reader, life.token, life.lease_token, ""
                    ),
                )
        except TimeoutError:
            _log.warning("%s: the catalog does not answer; the lease will run out", self)
        except UnknownReaderGroupError:
            pass

    @property
    def consumer(self) -> Consumer:
        """What hands the events out."""
        if self._consumer is None:
            raise InvalidInputError(f"{self} has not joined yet; use `async with group.reader(…)`")
        return self._consumer

    @property
    def ends(self) -> bool:
        """Whether it is closed, or about to be."""
        return self._closing is not None

    @property
    def status(self) -> ReaderStatus:
        """Whether it is online, what it reads, which checkpoints it owes, what it waits for."""
        life = self._life
        if life is None or self._following is None or self._following.record is None:
            return ReaderStatus(
                online=False, instance=self.instance, segments=(), owes=(), waits_for=self._why
            )
        state = self._following.state
        segments = tuple(sorted(map(str, life.held)))
        return ReaderStatus(
            online=state.member(self.reader, life.token) is not None,
            instance=self.instance,
            segments=segments,
            owes=state.checkpoints.owed_by(self.reader),
            waits_for="" if segments else "a segment that nobody else reads",
        )

    # -- joining --------------------------------------------------------------------------

    async def _join(self) -> None:
        """Take the name and join; raises if somebody else keeps the name alive."""
        assert self._hub is not None
        assert self._following is not None
        settings = self._options.settings
        ttl_ms = settings.lease_ttl_ms
        self._why = "the name, which an earlier program may have"
        answer, self.consumer.valid_until_s = await take_name(
            self.host, self.name, self.reader, ttl_ms, lambda over: self._ask(over, ttl_ms)
        )
        self._evicted = False
        self._life = ReaderLife(self, self.consumer, self._hub, self._following, answer, settings)
        self._life.soon()

    async def _ask(self, over: leases.Lease | None, ttl_ms: int) -> JoinedAs | NameHeld:
        assert self._hub is not None
        joining = self._hub.transact(
            self.name,
            lambda commit: liveness.join(
                commit, self.reader, self.instance, ttl_ms, over, self._home.number
            ),
            locks=(leases.lock(self.name.lease(self.reader)),),
        )
        return await self.host.or_undo(self.host.spawn(joining, awaited=True), self._joined_late)

    def _joined_late(self, answer: JoinedAs | NameHeld) -> None:
        """Joining was given up, and came about all the same."""
        if isinstance(answer, JoinedAs):
            self.host.spawn(self._leave(answer))

    def life_over(self, life: ReaderLife) -> None:
        """A life was put offline: begin another one, unless the application has to answer first."""
        if self._life is life:
            self._life = None
            self.consumer.valid_until_s = math.inf
            self._why = "to join again"
            if self._evicted:
                self._why = "an answer of its application, which holds events and answered none"
            else:
                self._join_again()

    def _answered_late(self) -> None:
        if self._evicted and self._life is None:
            self._evicted = False
            self._join_again()

    def _join_again(self) -> None:
        if self._closing is None and (self._joining is None or self._joining.done()):
            self._joining = self.host.spawn(self._rejoin())

    async def _rejoin(self) -> None:
        while True:
            try:
                await self._join()
            except CatalogClosedError:
                return
            except ReaderGroupElsewhereError as error:
                self._wait_here(error)
                return
            except (UnknownReaderGroupError, ReaderBusyError) as error:
                self._give_up(error)
                return
            except HeadraceError as error:
                _log.warning("%s: %s", self, error)
                await self.host.sleep(RETRY_S)
            else:
                return

    def _give_up(self, error: HeadraceError) -> None:
        """The application hears why, and then that no more will come."""
        self._why = str(error)
        self.consumer.fail(error)
        self._end_soon()

    def _end_soon(self) -> None:
        if not self.consumer.closed:
            self.host.spawn(self.consumer.close())

    # -- regions --------------------------------------------------------------------------

    @property
    def _home(self) -> GroupHome:
        assert self._following is not None
        return self._following.home

    def _wait_here(self, error: ReaderGroupElsewhereError) -> None:
        """The group is not read in this region now; once it is, this reader joins."""
        self._why, self._elsewhere = error.why, True
        self._home.look()

    def _see_home(self) -> None:
        """Give everything back if the group is read in another region, and join if it is here."""
        if not self._opened or self._closing is not None or self._handing is not None:
            return
        if self._life is None:
            if self._elsewhere and self._home.waits:
                self._why = self._home.waits
            elif self._elsewhere:
                self._elsewhere = False
                self._join_again()
        elif self._home.waits:
            _log.info("%s gives back what it has: %s", self, self._home.waits)
            self._handing = self.host.spawn(self._hand_over(self._life))

    async def _hand_over(self, life: ReaderLife) -> None:
        try:
            await life.hand_over(HAND_OVER_S)
            await self._leave(life)
        except HeadraceError as error:
            _log.warning("%s: %s", self, error)  # its lease runs out
        finally:
            self._handing = None
        if self._life is life:
            self._life, self._elsewhere = None, True
            self.consumer.valid_until_s = math.inf
        self._see_home()

    # -- what the group tells -------------------------------------------------------------

    def followed(self, news: Followed | None) -> None:  # noqa: ARG002
        """The state went on."""
        if self._automatic is not None:
            self._automatic.follow()
        if self._life is not None:
            self._life.soon()
        self._see_home()
        if self._following is not None and self._following.state.end_of_data:
            self._end_soon()  # it takes no more, and loops end

    def group_gone(self, error: HeadraceError) -> None:
        """The group was deleted."""
        life, self._life = self._life, None
        if life is not None:
            life.end()
            self._give_up(error)

    # -- what its life tells --------------------------------------------------------------

    def assigned(self, segments: tuple[str, ...]) -> None:
        """Segments are read from now on."""
        self._callbacks.assigned(segments)

    def revoked(self, segments: tuple[str, ...]) -> None:
        """Segments are read no longer."""
        self._callbacks.revoked(segments)

    def stalls(self, life: ReaderLife, stall: Stalled, unit: OwnedUnit) -> None:
        """Put itself offline: others read what its application does not."""
        if self._life is life and not self._evicted:
            self._evicted = True
            why = (
                f"{EVICTED}its application holds {stall.unanswered} events and answers none, the "
                f"oldest at offset {stall.oldest_offset} of {unit.unit}"
            )
            self.host.spawn(self._evict(life, why))

    async def _evict(self, life: ReaderLife, why: str) -> None:
        assert self._hub is not None
        try:
            await self._hub.update(self.name, RemoveReader(self.reader, token=life.token, why=why))
        except HeadraceError as error:
            _log.warning("%s: %s", self, error)
            self._evicted = False

    def stream_gone(self, error: HeadraceError) -> None:
        """See whether the group reads a stream that is not there any more."""
        if not self._healing and self._closing is None:
            self._healing = True
            _log.warning("%s: %s", self, error)
            self.host.spawn(self._heal())

    async def _heal(self) -> None:
        assert self._hub is not None
        try:
            await self._hub.transact(self.name, drop_gone)
        except HeadraceError as error:
            _log.warning("%s: %s", self, error)
        finally:
            self._healing = False

    async def may_answer(self, checkpoint: str, positions: dict[str, int]) -> bool:
        """Call ``on_checkpoint``; false if it runs already, or raised."""
        return await self._callbacks.may_answer(checkpoint, positions)
