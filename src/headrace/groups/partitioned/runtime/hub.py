"""What all instances of one process share: watches, clock and transactions.

Theory of operation
-------------------
An instance (``membership``) decides; the hub carries out what it asks for.  A transaction for each
request would do, but five hundred members in one process would then make five hundred times the
traffic.  So the hub batches:

*Requests* (pins and claims) that come up while a transaction is under way go together into the
next one (group commit).  Each is judged and answered for itself.

*Renewals* of pins are put off to common moments, a fraction of the time to live apart, and all
that are due go into one transaction that does not wait for the disk.

*Standbys* look at their pins in one query; only for a pin that is free is a transaction made.
They look when the catalog tells of a release, when a pin that they know of runs out, and every
``WATCH_S``: a pin that is not renewed for its time to live is over, however the wall clock was set.

*News* of configs, pins, claims and requests to step down come through one callback that sets
flags; what they mean is looked up once for all instances.

A request that fails is not answered: the instance asks again, by its own clock.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from headrace.catalog import Tx, claims, entries, leases, progress
from headrace.errors import CatalogClosedError, HeadraceError, InvalidGroupConfigError
from headrace.groups.homes import GROUPS_BUCKET, PROOF_BUCKET, asking_of
from headrace.groups.partitioned.core.config import ElasticGroupConfig
from headrace.groups.partitioned.core.messages import (
    AcquirePin,
    ClaimPartition,
    ClaimsFreed,
    ConfigSeen,
    Phase,
    PinFreed,
    PinGranted,
    PinHeld,
    PinLost,
    PinRenewed,
    RenewPin,
    StepDownAsked,
    Tick,
)
from headrace.groups.partitioned.names import ELASTIC_BUCKET, STATIC_BUCKET, GroupName
from headrace.groups.partitioned.runtime import ownership
from headrace.groups.partitioned.runtime.filling import warn_if_nobody_fills
from headrace.groups.partitioned.runtime.ownership import STEP_DOWN_BUCKET, View
from headrace.groups.partitioned.runtime.record import Record
from headrace.groups.partitioned.runtime.requests import (
    Asked,
    Told,
    carry_out,
    locks_of,
    owner_of,
    segments_of,
)
from headrace.groups.partitioned.runtime.units import Layout
from headrace.host import Host, Timer

if TYPE_CHECKING:
    from headrace.groups.partitioned.runtime.member import MemberInstance

BUCKETS = (STATIC_BUCKET, ELASTIC_BUCKET, STEP_DOWN_BUCKET, GROUPS_BUCKET, PROOF_BUCKET)
NEWS_EVERY_S = 0.005
"""The least time between two looks at the catalog, however much news there is."""
RENEWALS_APART = 3
"""Pins are renewed at common moments, this many of them per renewal time."""
WATCH_S = 0.5
"""How often the pins that standbys wait for are looked at."""
REQUESTS_MAX = 2_000
"""Requests in one transaction at most."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Hub:
    """See the module's text; made by :func:`hub_of`."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.record = Record(host)
        self._joined: dict[MemberInstance, None] = {}
        self._by_group: dict[str, dict[MemberInstance, None]] = {}
        self._by_pin: dict[str, dict[MemberInstance, None]] = {}
        self._views: dict[str, View] = {}
        self._numbers = itertools.count(1)
        self._revisions = dict.fromkeys(BUCKETS, 0)
        self._unsubscribe: dict[str, Callable[[], None]] = {}
        self._requests: dict[object, Asked] = {}
        self._renewals: dict[MemberInstance, RenewPin] = {}
        self._uncertain: set[MemberInstance] = set()
        self._watch = leases.Watch()
        self._seen_free: dict[str, leases.Lease | None] = {}  # pins that were just looked at
        self._watching = host.timer(self._look_at_pins)
        self._flushing: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._timers: dict[MemberInstance, Timer] = {}
        self._news: set[tuple[str, str]] = set()
        self._told = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None
        self._queues: dict[str, asyncio.Task[None]] = {}

    # -- coming and going ---------------------------------------------------------------

    async def join(self, joined: MemberInstance) -> None:
        """Take an instance in: it hears of its group's config, and goes on from there."""
        name = joined.name
        self._joined[joined] = None
        self._by_group.setdefault(name.key, {})[joined] = None
        self._by_pin.setdefault(joined.pin, {})[joined] = None
        if self._listening is None:
            self._listening = self._host.spawn(self._listen())
        await self._subscribe(
            {
                **{entries.channel(bucket): ("entries", bucket) for bucket in BUCKETS},
                leases.channel(joined.pin): ("pin", joined.pin),
                claims.channel(name.key): ("claims", name.key),
                progress.seek_channel(name.key): ("seek", name.key),
            }
        )
        # Subscribe first, then read: no change is missed in between.
        view = await self._look(name)
        if joined in self._joined:
            joined.feed(ConfigSeen(view.number, view.config, view.elsewhere))
            self._watch_queue(name)

    def _watch_queue(self, name: GroupName) -> None:
        """Warn, while members wait, if nobody fills the work queue."""
        view = self._views.get(name.key)
        if name.key not in self._queues and view and isinstance(view.group, ElasticGroupConfig):
            self._queues[name.key] = self._host.spawn(warn_if_nobody_fills(self._host, name))

    def leave(self, joined: MemberInstance) -> None:
        """Let an instance go; with the last one everything stops."""
        name, pin = joined.name, joined.pin
        self._joined.pop(joined, None)
        if (timer := self._timers.pop(joined, None)) is not None:
            timer.clear()
        self._uncertain.discard(joined)
        for index, key, channel in (
            (self._by_group, name.key, claims.channel(name.key)),
            (self._by_group, name.key, progress.seek_channel(name.key)),
            (self._by_pin, pin, leases.channel(pin)),
        ):
            index.get(key, {}).pop(joined, None)
            if not index.get(key):
                index.pop(key, None)
                self._drop(channel)
                self._watch.forget(key)
        if name.key not in self._by_group:
            self._views.pop(name.key, None)
            if (watching := self._queues.pop(name.key, None)) is not None:
                watching.cancel()
        if not self._joined:
            self._stop()

    def _stop(self) -> None:
        for channel in list(self._unsubscribe):
            self._drop(channel)
        if self._listening is not None:
            self._listening.cancel()
            self._listening = None
        self.record.close()
        self._watching.clear()
        if self._host.parts.get(Hub) is self:
            del self._host.parts[Hub]

    async def _subscribe(self, channels: dict[str, tuple[str, str]]) -> None:
        fresh = {c: what for c, what in channels.items() if c not in self._unsubscribe}
        if not fresh:
            return
        for channel in fresh:
            self._unsubscribe[channel] = lambda: None
        # A task: whoever joins may give up, and others rely on these subscriptions by then.
        await asyncio.shield(self._host.spawn(self._listen_to(fresh), awaited=True))

    async def _listen_to(self, channels: dict[str, tuple[str, str]]) -> None:
        def subscribe() -> list[Callable[[], None]]:
            return [self._host.on_news(c, partial(self._hear, w)) for c, w in channels.items()]

        for channel, stop in zip(channels, await self._host.in_thread(subscribe), strict=True):
            if channel in self._unsubscribe:
                self._unsubscribe[channel] = stop
            else:
                stop()

    def _drop(self, channel: str) -> None:
        stop = self._unsubscribe.pop(channel, None)
        if stop is not None:
            stop()

    # -- news ---------------------------------------------------------------------------

    def _hear(self, what: tuple[str, str]) -> None:
        self._news.add(what)
        self._told.set()

    async def _listen(self) -> None:
        while True:
            await self._told.wait()
            self._told.clear()
            news, self._news = self._news, set()
            try:
                await self._take_in(news)
            except CatalogClosedError:
                return
            except HeadraceError as error:
                _log.warning("partitioned groups: %s", error)
                self._news |= news
                self._host.after(1.0, self._told.set)
            await self._host.sleep(NEWS_EVERY_S)

    async def _take_in(self, news: Iterable[tuple[str, str]]) -> None:
        heard: dict[str, list[str]] = {}
        for what, key in news:
            heard.setdefault(what, []).append(key)
        if "entries" in heard:
            await self._take_in_entries(heard["entries"])
        pins = {pin: found for pin in heard.get("pin", ()) if (found := self._standbys(pin))}
        if pins:
            now_us, held = await self._read_pins(pins)
            for pin, standbys in pins.items():
                lease = held.get(pin)
                if lease is None or self._is_over(lease, now_us, standbys[0]):
                    self._seen_free[pin] = lease
                    for joined in standbys:
                        joined.feed(PinFreed())
        await self._take_away(heard.get("seek", ()))
        for key in heard.get("claims", ()):
            for joined in list(self._by_group.get(key, ())):
                if joined.core.waits_for_claims:
                    joined.feed(ClaimsFreed())

    def _standbys(self, pin: str) -> list[MemberInstance]:
        return [j for j in self._by_pin.get(pin, ()) if j.core.phase is Phase.STANDBY]

    def _is_over(self, pin: leases.Lease, now_us: int, joined: MemberInstance) -> bool:
        """Whether a pin is free by now; if not, it is looked at again soon."""
        ttl_ms = joined.core.timings.pin_ttl_ms
        over = self._watch.is_over(pin, now_us, self._host.now_ms(), ttl_ms)
        if not over:
            self._watching.bring_forward(self._host.now_s() + WATCH_S)
        return over

    def _look_at_pins(self) -> None:
        for pin in self._by_pin:
            if self._standbys(pin):
                self._hear(("pin", pin))

    async def _take_away(self, keys: Iterable[str]) -> None:
        """Tell instances which units a seek has taken, before a refused ack would tell them."""
        held = {joined: joined.held for key in keys for joined in self._by_group.get(key, ())}
        units = [unit for each in held.values() for unit in each]
        if units:
            lost = await self._read(lambda tx: claims.lost(tx, units))
            for joined in held if lost else ():
                joined.lost(lost)

    async def _take_in_entries(self, buckets: list[str]) -> None:
        since = dict(self._revisions)

        def look(tx: Tx) -> dict[str, entries.Changes]:
            tx.foresee(*(q for b in buckets for q in entries.asking_changes(b, since[b])))
            return {bucket: entries.changes(tx, bucket, since[bucket]) for bucket in buckets}

        changed: set[str] = set()
        for bucket, found in (await self._read(look)).items():
            self._revisions[bucket] = found.revision
            if bucket == STEP_DOWN_BUCKET:
                self._step_down(found.entries)
            elif bucket == PROOF_BUCKET:
                changed |= {key for key, view in self._views.items() if view.unproven}
                changed |= self._by_group.keys() & asking_of(self._host).looking
            elif found.reset:
                changed |= self._by_group.keys()
            else:
                changed |= self._by_group.keys() & {entry.key for entry in found.entries}
        for key in sorted(changed):
            await self.show(GroupName.of_key(key))

    def _step_down(self, asked: Iterable[entries.Entry]) -> None:
        for entry in asked:
            key, _, member = entry.key.rpartition(".")
            if entry.value is None or key not in self._by_group:
                continue
            for joined in list(self._by_pin.get(GroupName.of_key(key).pin(member), {})):
                joined.feed(StepDownAsked(int(entry.value)))

    async def show(self, name: GroupName) -> None:
        """Let all instances of a group see its config."""
        try:
            view = await self._look(name)
        except InvalidGroupConfigError as error:
            _log.error("group %s stays as it was: %s", name.key, error)
            return
        for joined in list(self._by_group.get(name.key, {})):
            joined.feed(ConfigSeen(view.number, view.config, view.elsewhere))

    async def _look(self, name: GroupName) -> View:
        number = next(self._numbers)
        look = partial(ownership.read_view, name=name, number=number)
        consumed = (seen := self._views.get(name.key)) is not None and seen.config is not None
        view = await asking_of(self._host).look(name.key, look, consumed=consumed)
        known = self._views.get(name.key)
        if known is not None and known.number > number:
            return known
        if known is not None and known.config == view.config and known.group == view.group:
            # Many members see one record, which keeps the assignment that was worked out for it.
            view = msgspec.structs.replace(view, config=known.config, group=known.group)
        self._views[name.key] = view
        return view

    # -- the clock ----------------------------------------------------------------------

    def wake(self, joined: MemberInstance) -> None:
        """Set the instance's timer anew; called after each of its events."""
        core = joined.core
        at_ms = core.wake_at_ms if joined in self._joined else None
        if at_ms is not None and core.phase is Phase.PINNED and core.settled:
            # Only the renewal is due: round it up to the next common moment.
            apart = max(1, core.timings.renew_every_ms // RENEWALS_APART)
            at_ms = -(-at_ms // apart) * apart
        timer = self._timers.get(joined)
        if at_ms is None:
            if timer is not None:
                timer.clear()
            return
        if timer is None:
            timer = self._timers[joined] = self._host.timer(partial(joined.feed, Tick()))
        timer.set_ms(at_ms)

    # -- requests -----------------------------------------------------------------------

    def ask(self, asked: Asked) -> None:
        """Have something done in the catalog; the answer comes as an event.

        What is asked for again before it was begun stands in the queue once.
        """
        self._requests[asked.key] = asked
        if self._flushing is None:
            self._flushing = self._host.spawn(self._flush())

    def renew(self, joined: MemberInstance, request: RenewPin) -> None:
        """Have a pin renewed, together with others."""
        self._renewals[joined] = request
        if self._renewing is None:
            self._renewing = self._host.spawn(self._renew())

    async def _flush(self) -> None:
        try:
            while self._requests:
                keys = list(itertools.islice(self._requests, REQUESTS_MAX))
                batch = [self._requests.pop(key) for key in keys]
                try:
                    await self._carry_out(batch)
                except HeadraceError as error:
                    self._uncertain.update(asked.joined for asked in batch)
                    if not isinstance(error, CatalogClosedError):
                        _log.warning("partitioned groups: %s", error)
        finally:
            self._flushing = None

    async def _carry_out(self, batch: list[Asked]) -> None:
        batch, over = await self._without_held_pins(batch)
        if not batch:
            return
        shares = {
            asked.joined.name.stream
            for asked in batch
            if isinstance(asked.request, ClaimPartition)
            and self.layout(asked.joined) is Layout.SHARES
        }
        segments = await self._read(partial(segments_of, names=shares)) if shares else {}

        def run(tx: Tx) -> list[Told]:
            return carry_out(tx, batch, segments, over)

        # Tokens must survive whatever happens to the database; other answers may be given again.
        synced = any(isinstance(a.request, AcquirePin | ClaimPartition) for a in batch)
        locks = locks_of(batch, segments)
        for joined, event, taken in await self._host.in_transaction(run, locks, sync=synced):
            if taken is not None:
                joined.took(taken)
            joined.announced = joined.announced or isinstance(event, PinGranted | PinHeld)
            joined.feed(event)

    async def _without_held_pins(
        self, batch: list[Asked]
    ) -> tuple[list[Asked], dict[str, leases.Lease]]:
        """Answer those who ask for a pin that another instance has, by looking alone.

        Returns the rest, and the pins that were seen to be over.
        """
        asking = {asked.joined.pin for asked in batch if isinstance(asked.request, AcquirePin)}
        free = {pin: self._seen_free.pop(pin) for pin in asking if pin in self._seen_free}
        over = {pin: lease for pin, lease in free.items() if lease is not None}
        asking -= free.keys()
        if not asking:
            return batch, over
        now_us, held = await self._read_pins(asking)
        left = []
        for asked in batch:
            joined = asked.joined
            pin = held.get(joined.pin) if isinstance(asked.request, AcquirePin) else None
            if pin is None or pin.owner == joined.core.instance:
                left.append(asked)
            elif self._is_over(pin, now_us, joined):
                over[joined.pin] = pin
                left.append(asked)
            else:
                self.record.joined(joined)
                joined.feed(PinHeld(pin.owner, ownership.expires_in_ms(pin.expires_us, now_us)))
        return left, over

    def view(self, joined: MemberInstance) -> View | None:
        """The group of an instance as it was last seen."""
        return self._views.get(joined.name.key)

    def layout(self, joined: MemberInstance) -> Layout:
        """How the partitions of an instance's group lie."""
        view = self.view(joined)
        return Layout.SEGMENTS if view is None else view.layout

    async def flushed(self) -> None:
        """Wait until everything that was asked for so far is answered."""
        while self._flushing is not None:
            await asyncio.wait([self._flushing])

    # -- renewals -----------------------------------------------------------------------

    async def _renew(self) -> None:
        try:
            while self._renewals:
                await asyncio.sleep(0)  # all that are due at this moment go together
                batch, self._renewals = self._renewals, {}
                try:
                    await self._renew_all(list(batch.items()))
                except HeadraceError as error:
                    if not isinstance(error, CatalogClosedError):
                        _log.warning("partitioned groups: pins were not renewed: %s", error)
        finally:
            self._renewing = None

    async def _renew_all(self, batch: list[tuple[MemberInstance, RenewPin]]) -> None:
        pins = [(j.pin, r.token, j.core.timings.pin_ttl_ms) for j, r in batch]
        uncertain = {j for j, _ in batch} & self._uncertain
        looks = uncertain | {j for j, r in batch if r.look}

        def run(tx: Tx) -> list[tuple[bool, tuple[tuple[int, int], ...]]]:
            found = []
            for (j, r), kept in zip(batch, ownership.renew_pins(tx, pins), strict=True):
                looked = kept and j in looks
                owner = owner_of(j, r.token)
                found.append((kept, ownership.claims_under(tx, j.name, owner) if looked else ()))
            return found

        answers = await self._host.in_transaction(run, sync=False)
        self._uncertain -= uncertain
        for (joined, request), (kept, held) in zip(batch, answers, strict=True):
            if kept:
                joined.renewed(PinRenewed(request.token, request.asked_ms, held, joined in looks))
            else:
                joined.feed(PinLost(request.token))

    # -- reading ------------------------------------------------------------------------

    async def _read_pins(self, names: Iterable[str]) -> tuple[int, dict[str, leases.Lease]]:
        wanted = list(names)

        def look(tx: Tx) -> tuple[int, list[leases.Lease]]:
            tx.foresee(*leases.asking_not_released(wanted))
            return tx.now_us(), leases.not_released(tx, wanted)

        now_us, held = await self._read(look)
        return now_us, {lease.name: lease for lease in held}

    async def _read(self, fn: Callable[[Tx], T]) -> T:
        return await self._host.in_thread(self._host.log.catalog.read, fn)


def hub_of(host: Host) -> Hub:
    """The hub of a program, made for its first member."""
    found: Hub | None = host.parts.get(Hub)
    if found is None:
        found = host.parts[Hub] = Hub(host)
    return found
