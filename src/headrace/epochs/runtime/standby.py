"""Waiting to be the active program of a publisher."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.catalog import Tx, epochs, leases
from headrace.catalog.leases import Lease
from headrace.epochs.core.antichains import Frontier
from headrace.epochs.runtime import recorded
from headrace.epochs.runtime.commit import Ledgered
from headrace.epochs.runtime.opening import Begun, Busy, Recover, leave, try_open
from headrace.errors import PublisherInUseError
from headrace.host import Host

LOOK_MS_MAX = 1000


async def wait_for_lease(
    host: Host,
    where: Ledgered,
    name: str,
    ttl_ms: int,
    *,
    start: Frontier | None,
    recover: Recover,
    standby: bool,
) -> Begun:
    """Take the lease when it is free; until then what another program has stays as it is.

    It is over by the catalog's clock, or if it was not renewed for the time that it had left, by
    the clock of this program: a wall clock may be put back.
    """
    owner = host.clock.name()
    lease_name = epochs.lease_name(where.stream.id, name)
    news = asyncio.Event()
    over: Lease | None = None
    seen, until_ms = over, 0
    locks = [*where.locks, leases.lock(lease_name), *recorded.locks([where.stream.name])]
    unsubscribe: Callable[[], None] | None = None

    def attempt(tx: Tx) -> Begun | Busy:
        return try_open(tx, where, name, owner, ttl_ms, start=start, recover=recover, over=over)

    def give_back(tx: Tx, found: Begun | Busy) -> None:
        if isinstance(found, Begun):
            leave(tx, where, name, found.lease.token)

    try:
        while True:
            found = await host.taking(attempt, locks, give_back)
            if isinstance(found, Begun):
                return found
            if not standby:
                raise PublisherInUseError(where.stream.name, name, found.lease.owner)
            if unsubscribe is None:
                unsubscribe = await host.listen(leases.channel(lease_name), news.set)
                continue
            if found.lease != seen:
                seen, until_ms = found.lease, host.now_ms() + found.left_ms
            over = found.lease if host.now_ms() >= until_ms else None
            if over is None:
                left_ms = min(found.left_ms, until_ms - host.now_ms())
                await host.wait(news, max(10, min(left_ms + 2, LOOK_MS_MAX)) / 1000)
                news.clear()
    finally:
        if unsubscribe is not None:
            unsubscribe()
