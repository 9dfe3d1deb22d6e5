"""A named subscription: its frontier is kept in the catalog, and one program holds it at a time.

The program holds a lease and renews it; every ack, also in a transaction, checks the token.  Others
stand by, and take over when the lease is given back or has run out.  The row is made before
the start is chosen, so that nothing is trimmed meanwhile; it goes again if that start is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Self
from uuid import uuid4

from headrace.catalog import Tx, epoch_subscriptions, leases
from headrace.catalog import streams as stored_streams
from headrace.epochs.core.antichains import Frontier, not_before
from headrace.epochs.core.form import (
    SubscriptionForm,
    decode_form,
    decode_frontier,
    encode_form,
    encode_frontier,
)
from headrace.epochs.core.times import TimeShape
from headrace.epochs.runtime import recorded
from headrace.epochs.runtime.starting import EpochBegin, EpochStart
from headrace.errors import (
    CatalogUnavailableError,
    EpochAckError,
    EpochSubscriptionError,
    EpochSubscriptionInUseError,
    Fenced,
    HeadraceError,
    LeaseLost,
)
from headrace.groups.decisions import What
from headrace.host.host import Host
from headrace.log.output import Output


class NamedHold:
    """This program's hold of one named subscription."""

    def __init__(
        self,
        host: Host,
        name: str,
        *,
        standby: bool,
        lease_ms: int,
        expiry_ms: int | None = None,
    ) -> None:
        self._host = host
        self.name = name
        self._lease_name = epoch_subscriptions.lease_name(name)
        self._locks = (leases.lock(self._lease_name),)
        self._standby = standby
        self._lease_ms = lease_ms
        self._expiry_us = None if expiry_ms is None else expiry_ms * 1000
        self._streams: tuple[str, ...] = ()
        self._predecessor: str | None = None
        self._owner = f"{name}-{uuid4().hex[:12]}"
        self._watch = leases.Watch()
        self._token = 0
        self._shape = TimeShape()
        self._acked: Frontier | None = None
        self._chosen = True
        """Whether there is a start, as far as this program knows."""
        self._renewing: asyncio.Task[None] | None = None
        self._renewed_ms = 0
        """When the lease was last taken or renewed, by this program's clock."""
        self._lost: Fenced | None = None
        self.on_loss: Callable[[], None] = lambda: None
        """Called when another program turns out to have it."""

    # -- taking it ----------------------------------------------------------------------

    async def take(
        self,
        streams: Sequence[str],
        mode: str,
        start: EpochStart | None,
        segments: Iterable[int] | None,
    ) -> EpochStart | None:
        """Hold it, wait for that if need be; where to start: its frontier, if it has one."""
        form = await self._host.in_thread(self._form, streams, mode, start, segments)
        self._shape = TimeShape(form.length)
        self._streams = tuple(name for name, _ in form.streams)
        await self._acquire()
        self._renewing = self._host.spawn(self._renew())

        def look(tx: Tx) -> bytes | None:
            self._check_token(tx)
            found = epoch_subscriptions.get(tx, self.name)
            if found is None:
                epoch_subscriptions.create(tx, self.name, encode_form(form), ids, self._expiry_us)
                self._note(tx, What.JOINED, "is made, and its start is being chosen")
                return None
            self._check_form(decode_form(found.form, self.name), form, given=start is not None)
            if self._expiry_us is not None and self._expiry_us != found.expiry_us:
                epoch_subscriptions.put_expiry(tx, self.name, self._expiry_us)
            self._taken_over(tx, found.frontier)
            return found.frontier

        ids = [stream_id for _, stream_id in form.streams]
        locks = [*self._record_locks, *map(stored_streams.lock, ids)]
        self._chosen = False
        stored = await self._host.in_transaction(look, locks)
        if stored is None:
            return start
        self._chosen = True
        self._acked = decode_frontier(stored, self.name)
        return self._acked

    def _form(
        self,
        streams: Sequence[str],
        mode: str,
        start: EpochStart | None,
        segments: Iterable[int] | None,
    ) -> SubscriptionForm:
        found = [self._host.log.stream(name) for name in sorted(streams)]
        lengths = [one.config.epochs.length for one in found if one.config.epochs is not None]
        return SubscriptionForm(
            streams=tuple((one.name, one.id) for one in found),
            length=lengths[0] if lengths else 0,
            mode=str(mode),
            start="open" if start is None else str(start),
            segments=None if segments is None else tuple(sorted(segments)),
        )

    def _check_form(self, known: SubscriptionForm, form: SubscriptionForm, *, given: bool) -> None:
        for what, before, now in (
            ("streams", known.streams, form.streams),
            ("mode", known.mode, form.mode),
            ("segments", known.segments, form.segments),
            ("start", known.start, form.start if given else known.start),
        ):
            if before != now:
                raise EpochSubscriptionError(
                    f"subscription {self.name!r} was made with {what} {before!r}, not {now!r}; "
                    "open it as it was made, choose another name, or forget it "
                    f"(headrace epoch forget {self.name})"
                )

    async def _acquire(self) -> None:
        """Take the lease; stand by while another program has it."""
        host, news = self._host, asyncio.Event()
        leave = await host.listen(leases.channel(self._lease_name), news.set)
        try:
            while True:
                news.clear()
                began_ms = host.now_ms()
                taken = await host.taking(self._try, self._locks, self._give_back)
                if taken is not None:
                    self._token, self._renewed_ms = taken.token, began_ms
                    return
                if not self._standby:
                    raise EpochSubscriptionInUseError(
                        f"subscription {self.name!r} is held by another program; wait for it with "
                        "standby=True, or headrace epoch forget"
                    )
                timer = host.after(self._lease_ms / 4000, news.set)
                await news.wait()
                timer.clear()
        finally:
            leave()

    @property
    def _record_locks(self) -> list[str]:
        return [*self._locks, *recorded.locks(self._streams)]

    def _note(self, tx: Tx, what: What, how: str) -> None:
        for stream in self._streams:
            recorded.note(
                tx,
                stream,
                what,
                f"subscription {self.name} {how}",
                target=self.name,
                instance=self._owner,
                token=self._token,
            )

    def _taken_over(self, tx: Tx, frontier: bytes | None) -> None:
        at = "its start"
        if frontier is not None:
            at = f"{list(decode_frontier(frontier, self.name))}"
        for stream in self._streams:
            recorded.taken_over(
                tx,
                stream,
                self.name,
                before=self._predecessor,
                now=self._owner,
                token=self._token,
                goes_on=f"a program goes on with subscription {self.name} at {at}",
            )

    def _try(self, tx: Tx) -> leases.Lease | None:
        self._predecessor, *_ = leases.last(tx, self._lease_name)
        found, held = leases.last_owner(tx, self._lease_name), leases.get(tx, self._lease_name)
        over = None
        if held is not None and found is not None:
            # Its time to live is what its holder chose, which may be another.
            lasts_us = found.expires_us - found.heard_us
            ttl_ms = lasts_us // 1000 if found.heard_us else self._lease_ms
            if self._watch.is_over(held, tx.now_us(), self._host.now_ms(), ttl_ms):
                over = held
        return leases.acquire(tx, self._lease_name, self._owner, self._lease_ms, over)

    def _give_back(self, tx: Tx, taken: leases.Lease | None) -> None:
        if taken is not None:
            leases.release(tx, self._lease_name, taken.token)

    async def _renew(self) -> None:
        while self._lost is None:
            await self._host.sleep(self._host.beat_s(max(1, self._lease_ms // 3)))
            with suppress(HeadraceError):
                await self._extend()

    async def _extend(self) -> None:
        """Renew the lease, also one that has run out and that nobody took."""
        began_ms = self._host.now_ms()

        def extend(tx: Tx) -> None:
            self._check_token(tx)
            leases.extend(tx, self._lease_name, self._token, self._lease_ms)

        try:
            await self._host.in_transaction(extend, self._locks, sync=False, small=True)
        except Fenced as error:
            self._lost = error
            self.on_loss()
            raise
        self._renewed_ms = began_ms

    async def check_held(self) -> None:
        """Raise ``Fenced`` once another program has it; asked before anything is given.

        A program that was frozen for longer than its lease asks the catalog, since its successor
        may have acked by now what it is about to give.  No answer is none: it waits for one.
        """
        while self._lost is None and self._host.now_ms() - self._renewed_ms > self._lease_ms:
            try:
                await self._extend()
            except CatalogUnavailableError:
                await self._host.sleep(self._lease_ms / 3000)
        if self._lost is not None:
            raise self._lost

    @property
    def lost(self) -> bool:
        """Whether another program is known to have it."""
        return self._lost is not None

    async def hold(self, begun: EpochBegin) -> None:
        """The start was chosen: everything before it is not wanted."""
        if self._acked is not None:
            return
        first = begun.start
        if first is None:
            # From now on: what has begun is left out this time, and open all the same.
            times = [time for place in begun.streams for time in place.lower]
            first = tuple(sorted(set(times)))
        await self._put(first)
        self._chosen = True

    async def leave(self) -> None:
        """Give the lease back."""
        if self._renewing is not None:
            self._renewing.cancel()
            self._renewing = None
        if self._token:
            token, self._token = self._token, 0

            def release(tx: Tx) -> None:
                ours = leases.release(tx, self._lease_name, token)
                if not ours:
                    return
                epoch_subscriptions.let_go(tx, self.name)
                self._note(tx, What.LEFT, "is held by nobody now")
                if not self._chosen:
                    # Without a start it would hold everything back, for nobody.
                    found = epoch_subscriptions.get(tx, self.name)
                    if found is not None and found.frontier is None:
                        epoch_subscriptions.remove(tx, self.name)

            await self._host.in_transaction(release, self._record_locks)

    # -- acks ---------------------------------------------------------------------------

    async def ack(self, frontier: Frontier) -> None:
        """All before a frontier is dealt with."""
        self.check(frontier)
        await self._put(frontier)

    async def _put(self, frontier: Frontier) -> None:
        await self._host.in_transaction(lambda tx: self.stage(tx, frontier), self.locks, small=True)
        self._acked = frontier

    @property
    def token(self) -> int:
        """The fencing token; 0 while it is not held."""
        return self._token

    @property
    def locks(self) -> tuple[str, ...]:
        """What a transaction with an ack locks."""
        return self._locks

    def check(self, frontier: Frontier) -> None:
        """Raise if this was acked, or what comes after it."""
        if self._acked is not None:
            self._check_after(self._acked, frontier)

    def _check_after(self, acked: Frontier, frontier: Frontier) -> None:
        if frontier == acked or not not_before(self._shape, frontier, acked):
            raise EpochAckError(
                f"subscription {self.name!r}: acked up to {list(acked)} already; epochs are acked "
                "once, in the order in which they were given"
            )

    def stage(self, tx: Tx, frontier: Frontier) -> None:
        """In a transaction: check the token, and move the frontier, which only goes forward.

        So an ack counts once, also if its program was cancelled before it heard of it.
        """
        self._check_token(tx)
        found = epoch_subscriptions.get(tx, self.name)
        if found is not None and found.frontier is not None:
            self._check_after(decode_frontier(found.frontier, self.name), frontier)
        epoch_subscriptions.put_frontier(tx, self.name, encode_frontier(frontier))

    def _check_token(self, tx: Tx) -> None:
        try:
            leases.check(tx, self._lease_name, self._token)
        except LeaseLost as error:
            _, current, _ = leases.last(tx, self._lease_name)
            raise Fenced(f"epochs/{self.name}", "frontier", self._token, current) from error

    def acked(self, frontier: Frontier) -> None:
        """A transaction has stored it."""
        self._acked = frontier


class EpochTransaction(Output):
    """Output and the ack of an epoch, which commit together or not at all."""

    def __init__(self, host: Host, hold: NamedHold, frontier: Frontier) -> None:
        super().__init__(host.log, host.log.write_of())
        self._host = host
        self._hold = hold
        self._frontier = frontier

    async def __aenter__(self) -> Self:
        self._hold.check(self._frontier)
        await self._begin(self._host.in_thread)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            return
        self._host.check()
        self._hold.check(self._frontier)
        self._write.stage = lambda tx: self._hold.stage(tx, self._frontier)
        self._write.stage_locks = self._hold.locks
        self.placed = (await self._host.commit(self._write)).placed
        self._hold.acked(self._frontier)
